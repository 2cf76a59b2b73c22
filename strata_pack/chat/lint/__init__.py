"""Lints chat templates: static rules, and rules on rendered conversations."""
