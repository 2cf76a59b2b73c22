"""Repairing a chat template, with proof."""
