"""Tokenizers as GGUF metadata and as files."""
