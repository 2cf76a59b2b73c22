"""Recognises misspelt words of the call's grammar: ``parametr1`` for ``parameter``.

A word is like another if the other begins it or is begun by it, or if at most two letters were added, dropped,
changed or swapped (one in a short word).
"""

from __future__ import annotations

from functools import lru_cache

_SHORT = 4
"""Letters from which on a beginning counts: ``para`` for ``parameter``, but not ``p``."""


@lru_cache(maxsize=4096)
def is_like(word: str, target: str) -> bool:
    """Return whether ``word`` is ``target``, misspelt or not; case, digits and a plural do not count."""
    bare = word.lower().strip("0123456789_-")
    if bare.startswith(target):
        return True
    bare = bare.removesuffix("s")
    if len(bare) >= _SHORT and target.startswith(bare):
        return True
    return _distances(bare, target)[-1] <= _allowed(target)


@lru_cache(maxsize=4096)
def may_become_like(word: str, target: str) -> bool:
    """Return whether a text that begins with ``word`` may go on to be like ``target``."""
    bare = word.lower()
    return bare.startswith(target) or min(_distances(bare, target)) <= _allowed(target)


def _allowed(target: str) -> int:
    return 2 if len(target) >= 8 else 1


def _distances(word: str, target: str) -> list[int]:
    """Return how many edits lead from ``word`` to every beginning of ``target`` (a swap of neighbours is one)."""
    if len(word) > len(target) + 3:
        return [len(word)] * (len(target) + 1)
    before: list[int] = []
    row = list(range(len(target) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i] + [0] * len(target)
        for j, other in enumerate(target, 1):
            row[j] = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == target[j - 2] and word[i - 2] == other:
                row[j] = min(row[j], earlier[j - 2] + 1)
    return row
