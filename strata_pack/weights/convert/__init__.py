"""Converts checkpoints in safetensors to GGUF."""
