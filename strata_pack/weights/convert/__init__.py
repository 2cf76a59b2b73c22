"""Checkpoints in safetensors to GGUF."""
