"""Defines the engines from optional Python packages: minijinja (the engine of Rust servers) and transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NoReturn

from strata_pack.chat.render.failures import TemplateError, TemplateRefused
from strata_pack.chat.render.sandbox import strftime_now
from strata_pack.extras import need

FUEL = 100_000_000
"""Limit of one rendering in minijinja's instructions ("fuel"): some seconds."""


class MinijinjaEngine:
    """minijinja as Rust servers configure it: with Python methods, ``strftime_now``, and ``tojson`` in Python's
    spelling.

    Of the options of ``tojson`` only ``indent`` is supported, as in minijinja's own."""

    name = "minijinja"
    known_as = ("minijinja",)

    def __init__(self) -> None:
        need("minijinja", "engines", "the engine minijinja")
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
            raise TemplateError(f"minijinja: {error}", line=getattr(error, "line", None)) from error
        return text

    def _compile(self, source: str) -> Any:
        environment: Any = self._library.Environment(trim_blocks=True, lstrip_blocks=True, pycompat=True, fuel=FUEL)
        environment.add_filter("tojson", _json)
        environment.add_function("strftime_now", strftime_now)
        try:
            environment.add_template("chat", source)
        except self._library.TemplateError as error:
            raise TemplateError(f"minijinja: {error.message}", line=error.line) from error
        return environment


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _Recorded(Exception):
    """Stops a rendering after its refusal was recorded."""


def _recorder(refusals: list[str]) -> Callable[[object], NoReturn]:
    def raise_exception(message: object) -> NoReturn:
        refusals.append(str(message))
        raise _Recorded

    return raise_exception


class TransformersEngine:
    """transformers' own renderer, without torch. It has no limits, so use it only for trusted templates."""

    name = "transformers"
    known_as = ("transformers",)

    def __init__(self) -> None:
        need("transformers", "engines", "the engine transformers")
        # Without a tensor library transformers prints advice that does not apply here.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        from transformers.utils.chat_template_utils import render_jinja_template

        self.version = version("transformers")
        self._render = render_jinja_template

    def render(self, source: str, inputs: Mapping[str, Any]) -> str:
        import jinja2

        variables = dict(inputs)
        messages = variables.pop("messages")
        try:
            rendered = self._render(conversations=[messages], chat_template=source, **variables)[0]
        except jinja2.TemplateError as error:
            if type(error) is jinja2.TemplateError:
                raise TemplateRefused(error.message or "") from error
            raise TemplateError(f"transformers: {error}", line=getattr(error, "lineno", None)) from error
        except Exception as error:
            raise TemplateError(f"transformers: {type(error).__name__}: {error}") from error
        return str(rendered[0])
