"""Downloading from the Hugging Face Hub: choosing files, fetching bodies, checking content."""
