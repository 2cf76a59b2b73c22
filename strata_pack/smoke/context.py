"""Holds what scenarios are played on: a server, its template, and further servers that start on demand."""

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
from strata_pack.smoke.data_files import Form, read_text
from strata_pack.smoke.manner import Manner, manner_of


@dataclass(frozen=True)
class Target:
    """What is tested.

    ``model`` is None for a server that somebody else runs. ``template`` is the text that the server should use: the
    manifest's, the one asked for, or the model's own; ``template_file`` is its file where it does not come from the
    GGUF key; ``pinned_sha256`` is the hash that the manifest names; ``suite`` its golden cases; ``recurrent`` whether
    layers of the model keep a state that a server cannot cut; ``files`` are all files of the model, ``pack`` its folder
    if it is a pack, ``source`` what it was made from, if that was named; ``projector`` is the file that lets it see,
    ``draft_layers`` the blocks of its draft head.
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
    """The client of the server under test, and what the scenarios share.

    ``runtime`` is what further servers are started with; ``model_name`` is what a request must name, if anything;
    ``server`` is the one under test where it is ours; ``alone`` is what each replay (by id) gave when it was the only
    stream.
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
        """The template's text, ``""`` if it is not known."""
        return self.target.template or ""

    @property
    def manner(self) -> Manner:
        """Whether and how the template writes calls."""
        return manner_of(self.template)

    @property
    def form(self) -> Form:
        """The form in which calls are played."""
        return self.manner.form

    def own_server(self) -> LlamaServer:
        """Return the server under test, in a run on one of ours."""
        assert self.server is not None
        return self.server

    def small_server(self, template: str) -> AbstractContextManager[LlamaServer]:
        """Return a server of the same runtime that was given ``template`` as a file, with a stub of a model.

        What a server does to a conversation does not depend on the weights, and a large model is not loaded twice.
        """
        return serve_template(template, runtime=self.runtime)

    def control(self) -> LlamaClient:
        """Return the control server (a stock template), started once."""
        if self._control is None:
            self._control = self.beside.enter_context(self.small_server(read_text(f"stock.{self.form}.jinja"))).client
        return self._control
