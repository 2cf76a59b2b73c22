"""Choosing a pack's template, and installing one into a finished pack."""
