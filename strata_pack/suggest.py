"""Words the refusal of a mistyped value: the nearest valid values, and all of them."""

from __future__ import annotations

from collections.abc import Iterable

from strata_pack.errors import WrongUse

SHOWN = 40
"""Values that are listed at most."""


def unknown(kind: str, value: str, known: Iterable[str], *, where: str | None = None) -> WrongUse:
    """Return the failure "no ``kind`` is called ``value``", with the nearest of ``known`` and the list of them."""
    from difflib import get_close_matches

    names = list(known)
    lower = {name.lower(): name for name in reversed(names)}
    near = get_close_matches(value.lower(), lower, n=1, cutoff=0.6)
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    remedy = f"choose from {listed}" if names else None
    hint = f"; did you mean {lower[near[0]]!r}?" if near else ""
    return WrongUse(f"no {kind} is called {value!r}{hint}", where=where, remedy=remedy)
