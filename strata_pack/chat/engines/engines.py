"""Gives the template engines (jinja2, minijinja, transformers, llama.cpp) a common interface.

``jinja2`` is always available; ``minijinja`` and ``transformers`` are optional packages; ``llama.cpp`` runs a server.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from strata_pack.chat.engines.packages import MinijinjaEngine, TransformersEngine
from strata_pack.chat.engines.server import LlamaServerEngine, serve_template
from strata_pack.chat.render.budget import RenderLimits
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.extras import install_command
from strata_pack.suggest import unknown as unknown_value

__all__ = [
    "ENGINE_NAMES",
    "Engine",
    "Jinja2Engine",
    "LlamaServerEngine",
    "MinijinjaEngine",
    "TransformersEngine",
    "available_engines",
    "expand_names",
    "open_engines",
]


class Engine(Protocol):
    """A template engine.

    ``known_as`` are the names under which a golden case's ``differs_on`` lists this engine.
    """

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def known_as(self) -> tuple[str, ...]: ...

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        """Return the prompt of template ``source`` for ``inputs`` (``messages``, ``tools`` and all other variables).

        Raises ``TemplateRefused`` with the template's own message, ``TemplateError`` for any other failure of the
        template, ``EnvironmentFailure`` if the engine is not available.
        """
        ...


class Jinja2Engine:
    """The reference engine: jinja2 as transformers configures it, with limits."""

    name = "jinja2"
    known_as = ("jinja2",)

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self.version = version("jinja2")
        self._limits = limits
        self._template: ChatTemplate | None = None

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        if self._template is None or self._template.source != source:
            self._template = ChatTemplate(source, limits=self._limits)
        values = dict(inputs)
        messages, tools = values.pop("messages"), values.pop("tools", None)
        return self._template.render(messages, tools, **values)


SERVER = "llama.cpp"
IN_PROCESS: Mapping[str, tuple[str, Callable[[], Engine]]] = {
    "jinja2": ("jinja2", Jinja2Engine),
    "minijinja": ("minijinja", MinijinjaEngine),
    "transformers": ("transformers", TransformersEngine),
}
"""Maps a name to the package it needs and the function that creates the engine."""

ENGINE_NAMES = (*IN_PROCESS, SERVER)


def available_engines() -> list[Engine]:
    """Return the engines that can run here without a server, jinja2 first."""
    return [make() for package, make in IN_PROCESS.values() if importlib.util.find_spec(package) is not None]


def expand_names(names: Sequence[str] | None) -> list[str]:
    """Return the engines of a command line: jinja2 if none is named; for "all", the installed ones and llama.cpp."""
    if not names:
        return ["jinja2"]
    every = [*(engine.name for engine in available_engines()), SERVER] if "all" in names else []
    return list(dict.fromkeys([*(name for name in names if name != "all"), *every]))


def missing_engines() -> dict[str, str]:
    """Return the engines that "all" skips because they are not installed, each with the remedy."""
    absent = (package for package, _ in IN_PROCESS.values() if importlib.util.find_spec(package) is None)
    return {package: f"run: {install_command('engines')}" for package in absent}


@contextmanager
def open_engines(names: Sequence[str], source: str, *, model: Path | None = None) -> Iterator[list[Engine]]:
    """Yield the engines ``names``, ready for the template ``source``; for "llama.cpp" a server is started.

    ``model`` is the GGUF that the server loads (default: a stub model). Raises ``WrongUse`` for an unknown name,
    ``EnvironmentFailure`` for an unavailable engine, ``TemplateError`` if the server does not start with the template.
    """
    unknown = [name for name in names if name not in ENGINE_NAMES]
    if unknown:
        raise unknown_value("engine", unknown[0], (*ENGINE_NAMES, "all"))
    with ExitStack() as stack:
        engines: list[Engine] = []
        for name in names:
            if name == SERVER:
                engines.append(LlamaServerEngine(stack.enter_context(serve_template(source, model=model)), source))
            else:
                engines.append(IN_PROCESS[name][1]())
        yield engines
