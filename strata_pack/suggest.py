"""Builds the error for a mistyped value: the nearest valid value, and the list of valid values."""

from __future__ import annotations

from collections.abc import Iterable

from strata_pack.errors import WrongUse

SHOWN = 40
"""Largest number of values that are listed."""


def nearest(value: str, known: Iterable[str]) -> str | None:
    """Return the value in ``known`` nearest to ``value``, ``None`` if none is near."""
    from difflib import get_close_matches

    lower = {name.lower(): name for name in reversed(list(known))}
    near = get_close_matches(value.lower(), lower, n=1, cutoff=0.6)
    return lower[near[0]] if near else None


def hint(value: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the nearest of ``known``, an empty text if none is near."""
    near = nearest(value, known)
    return f"; did you mean {near!r}?" if near else ""


def unknown(kind: str, value: str, known: Iterable[str], *, where: str | None = None) -> WrongUse:
    """Return the failure "no ``kind`` is called ``value``", with the nearest of ``known`` and the list of them."""
    names = list(known)
    listed = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    remedy = f"choose from {listed}" if names else None
    return WrongUse(f"no {kind} is called {value!r}{hint(value, names)}", where=where, remedy=remedy)
