"""Common prefixes of texts."""

from __future__ import annotations


def common_length(a: str, b: str) -> int:
    """Return the length of the common prefix of two texts, by bisection, because the interpreter compares slices
    fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
