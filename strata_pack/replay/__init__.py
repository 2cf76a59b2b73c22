"""Recorded replies, parsed again: what was lost."""
