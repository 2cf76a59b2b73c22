"""Quantizing GGUF files: presets, recipes, importance matrices, plan and run."""
