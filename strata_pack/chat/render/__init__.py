"""Renders chat templates in a sandbox with limits."""
