"""A running model server, and the interface that loads one on demand."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.settings import Served
from strata_pack.gateway.token_ids import TokenPieces
from strata_pack.gateway.upstream import Upstream
from strata_pack.parsing import CallFormat, Dialect


@dataclass(frozen=True)
class RunningModel:
    """A running server: how to build its prompts and parse its output.

    ``served``: the model's facts, ``None`` if the settings have them. ``slots``: requests that it serves at a
    time. ``pieces``: texts of its token ids, ``None`` if unavailable.
    """

    upstream: Upstream
    prompts: Prompts
    call_format: CallFormat = "auto"
    served: Served | None = None
    slots: int = 1
    pieces: TokenPieces | None = None

    @property
    def dialect(self) -> Dialect:
        """The tags of the model's output, from its template."""
        return self.prompts.dialect


class Host(Protocol):
    """Loads a model on demand."""

    @property
    def state(self) -> str:
        """ "unloaded", "loading", "loaded" or "leaving"."""

    def hold(self) -> AbstractAsyncContextManager[RunningModel]:
        """Keep the model loaded for the block."""
