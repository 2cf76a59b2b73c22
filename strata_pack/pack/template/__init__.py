"""Chooses a pack's chat template, and installs a template into a finished pack."""
