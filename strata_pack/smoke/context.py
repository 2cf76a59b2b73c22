"""Holds the context of scenarios: the server, its template, and further servers that start on demand."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata_pack.chat.engines.server import serve_template
from strata_pack.chat.golden.cases import GoldenSuite
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.smoke.call_support import CallSupport, call_support
from strata_pack.smoke.data_files import Form, read_text


@dataclass(frozen=True)
class Target:
    """The model or server under test.

    ``model`` is None for an external server. ``template`` is the text that the server should use: the manifest's, the
    given one, or the model's own; ``template_file`` is its file if it is not the one in the GGUF; ``pinned_sha256`` is
    the manifest's hash; ``suite`` has its golden cases; ``recurrent``: layers of the model have a state that a server
    cannot truncate; ``files`` are all files of the model, ``pack`` its folder if it is a pack, ``source`` its named
    source, if any; ``projector`` is its vision projector, ``draft_layers`` the number of blocks of its draft head.
    """

    name: str
    model: Path | None = None
    template: str | None = None
    template_file: Path | None = None
    gguf_template: str | None = None
    pinned_sha256: str | None = None
    template_name: str = "unknown"
    suite: GoldenSuite | None = None
    recurrent: bool = False
    files: tuple[Path, ...] = ()
    pack: Path | None = None
    source: Path | None = None
    projector: Path | None = None
    draft_layers: int = 0


@dataclass
class SmokeContext:
    """The client of the server under test, and the state that scenarios share.

    ``runtime`` starts further servers; ``model_name`` is the model's name in requests, if needed; ``server`` is the
    server under test if this process started it; ``alone`` maps each replay's id to its result as the only stream.
    """

    client: LlamaClient
    target: Target
    runtime: Runtime | None
    model_name: str | None = None
    server: LlamaServer | None = None
    beside: ExitStack = field(default_factory=ExitStack)
    alone: dict[str, Any] = field(default_factory=dict)
    _control: LlamaClient | None = None

    @property
    def template(self) -> str:
        """The template's text, ``""`` if unknown."""
        return self.target.template or ""

    @property
    def call_support(self) -> CallSupport:
        """How the template writes calls, if it does."""
        return call_support(self.template)

    @property
    def form(self) -> Form:
        """The format in which calls are replayed."""
        return self.call_support.form

    def own_server(self) -> LlamaServer:
        """Return the server under test, which this process started."""
        assert self.server is not None
        return self.server

    def small_server(self, template: str) -> AbstractContextManager[LlamaServer]:
        """Return a server of the same runtime with ``template`` as a file and a stub model.

        A server's processing of a conversation does not depend on the weights, so a large model need not be loaded
        twice.
        """
        return serve_template(template, runtime=self.runtime)

    def control(self) -> LlamaClient:
        """Return the control server (a stock template), started once."""
        if self._control is None:
            self._control = self.beside.enter_context(self.small_server(read_text(f"stock.{self.form}.jinja"))).client
        return self._control
