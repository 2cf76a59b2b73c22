"""Reads GGUF headers, and replaces metadata without moving tensors."""
