"""A running model server, and the interface that loads one on demand."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from strata_pack.gateway.failures import UNREACHED, ApiError
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


class Attempt:
    """One attempt at a request, as a context manager.

    If ``may_fail``, it swallows the error of a server that could not be reached, and has ``failed``; but not after the
    reply has ``begun``. ``engine`` is that server.
    """

    def __init__(self, *, may_fail: bool) -> None:
        self.may_fail = may_fail
        self.engine: RunningModel | None = None
        self.begun = False
        self.failed = False

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        unreached = isinstance(error, ApiError) and error.kind == UNREACHED
        self.failed = unreached and self.may_fail and not self.begun
        return self.failed


class Host(Protocol):
    """Loads a model on demand."""

    @property
    def state(self) -> str:
        """ "unloaded", "loading", "loaded" or "leaving"."""

    def hold(self) -> AbstractAsyncContextManager[RunningModel]:
        """Keep the model loaded for the block."""

    def lose(self, engine: RunningModel | None) -> None:
        """Load the model again for the next request, because the server of ``engine`` takes no connections."""
