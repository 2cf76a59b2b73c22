"""Defines a scenario: id, statement, requirements, time limit, and function.

The texts are data (``data/scenarios.json``); ``registry`` maps ids to functions. A function yields its checks;
``runner`` handles time, log and failures of the server.
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
"""The requirements of a scenario. ``native``: a llama.cpp server started by this process; ``public``: an external
server, through its public API; ``file``: the model's files and no server; ``template``: the template's text is
known; ``calls``: it writes tool calls; ``suite``: there are golden cases; ``projector``: the model has a projector;
``draft``: it has a draft head."""

Play = Callable[["SmokeContext", "Scenario"], Iterable[Check]]


@dataclass(frozen=True)
class Scenario:
    """One scenario. ``stock`` and ``repaired`` describe the expected results with a stock and with a repaired
    template."""

    id: str
    proves: str
    stock: str
    repaired: str
    needs: frozenset[Need]
    limit_seconds: float


class Impossible(Exception):
    """The scenario cannot run on this target and is skipped; the message says why."""


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Return every scenario, in order of execution."""
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
