"""Downloads from the Hugging Face Hub: chooses files, fetches bodies, checks content."""
