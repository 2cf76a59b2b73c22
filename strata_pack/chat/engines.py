"""The engines that render a chat template in the field, each behind the same small face.

``jinja2`` is always there; ``minijinja`` and ``transformers`` are optional packages; ``llama.cpp`` is a real server.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, NoReturn, Protocol

from strata_pack.chat.template import ChatTemplate, Limits, TemplateError, TemplateRefused
from strata_pack.errors import EnvironmentFailure, WrongUse


class Engine(Protocol):
    """Something that renders templates.

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
        template, ``EnvironmentFailure`` if the engine itself is not there.
        """
        ...


class Jinja2Engine:
    """jinja2 as transformers sets it up: the reference."""

    name = "jinja2"
    known_as = ("jinja2",)

    def __init__(self, limits: Limits | None = None) -> None:
        self.version = version("jinja2")
        self._limits = limits
        self._template: ChatTemplate | None = None

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        if self._template is None or self._template.source != source:
            self._template = ChatTemplate(source, limits=self._limits)
        values = dict(inputs)
        messages, tools = values.pop("messages"), values.pop("tools", None)
        return self._template.render(messages, tools, **values)


class MinijinjaEngine:
    """minijinja with its Python methods on and ``tojson`` as Python writes JSON: what Rust servers set up."""

    name = "minijinja"
    known_as = ("minijinja",)

    def __init__(self) -> None:
        _need("minijinja", "engines")
        import minijinja

        self.version = version("minijinja")
        self._library = minijinja
        self._source: str | None = None
        self._environment: Any = None

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        if self._source != source:
            self._environment, self._source = self._compile(source), source
        refusals: list[str] = []
        self._environment.add_function("raise_exception", _recorder(refusals))
        try:
            text: str = self._environment.render_template("chat", **inputs)
        except Exception as error:
            if refusals:
                raise TemplateRefused(refusals[0]) from error
            raise TemplateError(f"minijinja: {error}") from error
        return text

    def _compile(self, source: str) -> Any:
        environment = self._library.Environment(trim_blocks=True, lstrip_blocks=True, pycompat=True, fuel=100_000_000)
        environment.add_filter("tojson", _json)
        try:
            environment.add_template("chat", source)
        except self._library.TemplateError as error:
            raise TemplateError(f"minijinja: {error.message}", line=error.line) from error
        return environment


def _json(value: Any, **_options: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Recorded(Exception):
    """Stops a rendering whose refusal is already recorded."""


def _recorder(refusals: list[str]) -> Any:
    def raise_exception(message: object) -> NoReturn:
        refusals.append(str(message))
        raise _Recorded(str(message))

    return raise_exception


def _need(package: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise EnvironmentFailure(f"{package} is not installed", remedy=f"pip install 'strata-pack[{extra}]'")


ENGINES: dict[str, type[Jinja2Engine] | type[MinijinjaEngine]] = {"jinja2": Jinja2Engine, "minijinja": MinijinjaEngine}


def available_engines() -> list[Engine]:
    """Return the engines that can run here without a server, jinja2 first."""
    return [make() for name, make in ENGINES.items() if importlib.util.find_spec(name) is not None]


def open_engine(name: str) -> Engine:
    """Return the engine called ``name``; ``WrongUse`` for an unknown one, ``EnvironmentFailure`` for a missing one."""
    if name not in ENGINES:
        raise WrongUse(f"no engine is called {name!r}", remedy=f"choose from {', '.join(ENGINES)}")
    return ENGINES[name]()
