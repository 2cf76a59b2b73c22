"""GGUF files: reading headers, and replacing metadata without moving tensors."""
