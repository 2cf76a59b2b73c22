"""What a gateway knows of a server that runs, and who loads one when it is needed."""

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
    """How to ask a server, and how to read what it generates.

    ``served``: what it says of itself, ``None`` where the settings say all. ``slots``: requests that it generates at a
    time. ``pieces``: what its token ids say, ``None`` for nothing.
    """

    upstream: Upstream
    prompts: Prompts
    call_format: CallFormat = "auto"
    served: Served | None = None
    slots: int = 1
    pieces: TokenPieces | None = None

    @property
    def dialect(self) -> Dialect:
        """The tags in which the model writes: its template's."""
        return self.prompts.dialect


class Host(Protocol):
    """Who loads a model when it is needed."""

    @property
    def state(self) -> str:
        """ "unloaded", "loading", "loaded" or "leaving"."""

    def hold(self) -> AbstractAsyncContextManager[RunningModel]:
        """Keep the model loaded for the block."""
