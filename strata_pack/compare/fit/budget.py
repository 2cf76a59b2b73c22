"""Parses a size budget: ``600MiB``, ``4.5bpw``, or ``16GiB card at 32k context``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from strata_pack.errors import WrongUse
from strata_pack.llama.memory import OVERHEAD, kv_cache_bytes

UNITS = {
    "": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SIZE = re.compile(r"(?P<number>\d{1,15}(?:\.\d+)?)\s*(?P<unit>[A-Za-z]+)")
_CARD = re.compile(r"(?P<size>.+?) card at (?P<context>\d{1,12})(?P<k>k?) context", re.IGNORECASE)
EXAMPLE = "write for example 600MiB, 4.5bpw or '16GiB card at 32k context'"


@dataclass(frozen=True)
class FitBudget:
    """The size budget of a file: ``size`` in bytes or ``bits`` per weight; the KV cache of ``context`` tokens must
    fit too."""

    text: str
    size: int | None = None
    bits: float | None = None
    context: int | None = None

    def file_bytes(self, parameters: int, metadata: Mapping[str, object]) -> int:
        """Return the maximum bytes of a file with ``parameters`` weights.

        ``metadata`` are the model's plain GGUF values, which determine the size of its KV cache. ``WrongUse`` if
        nothing is left for the weights.
        """
        if self.bits is not None:
            return int(parameters * self.bits / 8)
        assert self.size is not None
        if self.context is None:
            return self.size
        cache = kv_cache_bytes(metadata, self.context)
        left = self.size - cache - OVERHEAD
        if left <= 0:
            taken = (
                f"{cache / 2**30:.1f} GiB of KV cache for {self.context:,} tokens and {OVERHEAD >> 20} MiB of buffers"
            )
            raise WrongUse(f"{taken} leave nothing for the weights", where=f"--fit {self.text}")
        return left


def parse_budget(text: str) -> FitBudget:
    """Return the budget that ``text`` describes; the message of ``WrongUse`` has an example."""
    text = " ".join(text.split())
    where = f"--fit {text}"
    card = _CARD.fullmatch(text)
    if card is not None:
        size = parse_budget(card["size"])
        if size.size is None:
            raise WrongUse("a card has a size in bytes", where=where, remedy=EXAMPLE)
        return FitBudget(text, size.size, context=int(card["context"]) * (1024 if card["k"] else 1))
    match = _SIZE.fullmatch(text)
    if match is None:
        raise WrongUse("is no size", where=where, remedy=EXAMPLE)
    number, unit = float(match["number"]), match["unit"]
    if unit.lower() == "bpw":
        return FitBudget(text, bits=number)
    factor = {name.lower(): factor for name, factor in UNITS.items()}.get(unit.lower())
    if factor is None:
        raise WrongUse(f"there is no unit {unit!r}", where=where, remedy=EXAMPLE)
    return FitBudget(text, int(number * factor))
