"""Recognises misspelt words of the call's grammar: ``parametr1`` for ``parameter``.

Two words are alike if one is a prefix of the other, or if at most two letters were added, dropped, changed or swapped
(one in a short word).
"""

from __future__ import annotations

from functools import lru_cache

_SHORT = 4
"""Minimum letters of a prefix that counts: ``para`` for ``parameter``, but not ``p``."""


@lru_cache(maxsize=4096)
def is_like(word: str, target: str) -> bool:
    """Return whether ``word`` is ``target`` or a misspelling of it; case, digits and a plural s are ignored."""
    bare = word.lower().strip("0123456789_-")
    if bare.startswith(target):
        return True
    bare = bare.removesuffix("s")
    if len(bare) >= _SHORT and target.startswith(bare):
        return True
    return _distances(bare, target)[-1] <= _allowed(target)


@lru_cache(maxsize=4096)
def may_become_like(word: str, target: str) -> bool:
    """Return whether a text that begins with ``word`` may become like ``target``."""
    bare = word.lower()
    return bare.startswith(target) or min(_distances(bare, target)) <= _allowed(target)


def _allowed(target: str) -> int:
    return 2 if len(target) >= 8 else 1


def _distances(word: str, target: str) -> list[int]:
    """Return the edit distance of ``word`` to every prefix of ``target`` (a swap of neighbours counts as one edit)."""
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
