"""Opens the engines for a proof: those in this process, and llama.cpp, whose server is restarted for each template.

A proof renders with two templates, the stock and the repaired one; a server renders only the one it was started with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from strata_pack.chat.engines.engines import ENGINE_NAMES, SERVER, Engine, available_engines
from strata_pack.chat.engines.server import LlamaServerEngine, serve_template
from strata_pack.extras import missing as missing_package
from strata_pack.suggest import unknown as unknown_value


class RestartingServer:
    """llama.cpp's engine in a real server. ``capabilities`` are the flags that the server derives from a template by
    rendering trial conversations. They determine how it processes requests, so a repair must not change them."""

    name = LlamaServerEngine.name
    known_as = LlamaServerEngine.known_as

    def __init__(self) -> None:
        self.version = ""
        self._source: str | None = None
        self._engine: LlamaServerEngine | None = None
        self._stack = ExitStack()
        self._capabilities: dict[str, Mapping[str, Any]] = {}

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        return self._serving(source).render(source, inputs)

    def capabilities(self, source: str) -> Mapping[str, Any]:
        """Return the capability flags of the template ``source``."""
        if source not in self._capabilities:
            self._serving(source)
        return self._capabilities[source]

    def _serving(self, source: str) -> LlamaServerEngine:
        if self._engine is None or self._source != source:
            self.close()
            server = self._stack.enter_context(serve_template(source))
            self._capabilities[source] = server.client.props().template_caps
            self._engine, self._source = LlamaServerEngine(server, source), source
            self.version = self._engine.version
        return self._engine

    def close(self) -> None:
        """Stop the server, if one runs."""
        self._engine = self._source = None
        self._stack.close()


@contextmanager
def proof_engines(names: Sequence[str] = ()) -> Iterator[list[Engine]]:
    """Yield the engines ``names``, by default all that run in this process, jinja2 first.

    Raises ``WrongUse`` for an unknown name, ``EnvironmentFailure`` for one that is not installed.
    """
    unknown = [name for name in names if name not in ENGINE_NAMES]
    if unknown:
        raise unknown_value("engine", unknown[0], ENGINE_NAMES)
    here = available_engines()
    found = {engine.name: engine for engine in here}
    missing = [name for name in names if name != SERVER and name not in found]
    if missing:
        raise missing_package(missing[0], "engines", f"the engine {missing[0]}")
    server = RestartingServer()
    try:
        yield [found.get(name, server) for name in dict.fromkeys(names)] if names else here
    finally:
        server.close()
