"""Converts tokenizers to GGUF metadata, and writes them as files."""
