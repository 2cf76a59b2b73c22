"""Defines a scenario: id, what it proves, what it needs, its time limit, and its function.

The words are data (``data/scenarios.json``); the functions are in ``plays``. A play returns what it found; time, log
and failures of the server are the player's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from strata_pack.report import Check
from strata_pack.smoke.data_files import read

if TYPE_CHECKING:
    from strata_pack.smoke.context import SmokeContext

Need = Literal["native", "public", "file", "template", "calls", "suite", "projector", "draft"]
"""``native``: a llama.cpp server of ours; ``public``: one of somebody else, by the public interface alone; ``file``:
the model's files and no server; ``template``: the template's text is known; ``calls``: it writes tool calls;
``suite``: there are golden cases; ``projector``: it sees; ``draft``: it has a draft head."""

Play = Callable[["SmokeContext", "Scenario"], Iterable[Check]]


@dataclass(frozen=True)
class Scenario:
    """One scenario. ``stock`` and ``repaired`` say in words what is expected of either kind of template."""

    id: str
    proves: str
    stock: str
    repaired: str
    needs: frozenset[Need]
    limit_seconds: float


class Impossible(Exception):
    """This target cannot play the scenario; the message says why. It is skipped."""


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Return every scenario, in the order of play."""
    return tuple(
        Scenario(
            id=entry["id"],
            proves=entry["proves"],
            stock=entry["stock"],
            repaired=entry["repaired"],
            needs=frozenset(entry["needs"]),
            limit_seconds=float(entry["limit_seconds"]),
        )
        for entry in read("scenarios")
    )
