"""Puts a count before a noun in the number that fits: ``1 file``, ``2 files``."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return ``count`` and ``noun`` (in the singular), with an ``s`` unless the count is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
