"""Measures how much of a prompt stays the same from turn to turn, and names the cause where it changes."""
