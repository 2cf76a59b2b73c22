"""Quantizes models: presets, recipes, importance matrices, plan and run."""
