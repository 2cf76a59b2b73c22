"""The environment in which a template runs: what transformers gives it, inside jinja2's sandbox, under limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata_pack.errors import BadInput


@dataclass(frozen=True)
class Limits:
    """What one template may cost. Sizes are in bytes or characters, time in seconds."""

    source_bytes: int = 1 << 20
    output_chars: int = 64 << 20
    seconds: float = 10.0


class TemplateError(BadInput):
    """A template that does not compile or does not run. ``line`` is 1-based, ``None`` where it is not known."""

    def __init__(self, cause: str, *, line: int | None = None, remedy: str | None = None) -> None:
        self.cause = cause
        self.line = line
        where = "chat template" if line is None else f"chat template, line {line}"
        super().__init__(cause, where=where, remedy=remedy)


class TemplateLimit(TemplateError):
    """A template that needs more time, memory or output than its ``Limits`` allow."""


class TemplateRefused(TemplateError):
    """The template called ``raise_exception``; ``message`` is the text it gave."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        self.message = message
        super().__init__(f"refuses the conversation: {message}", line=line)


class _Raised(Exception):
    """What ``raise_exception`` throws through the template."""


class GenerationBlock(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``: transformers' mark, without effect on the text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body, lineno=line)


def _raise_exception(message: object) -> NoReturn:
    raise _Raised(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> jinja2.Environment:
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = _strftime_now
    return env


def compile_template(source: str, limits: Limits) -> jinja2.Template:
    """Return ``source`` compiled; raises ``TemplateError`` with the line."""
    if len(source.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        raise TemplateLimit(f"is larger than {limits.source_bytes} bytes")
    try:
        return _environment().from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(error.message or "syntax error", line=error.lineno) from error
    except RecursionError as error:
        raise TemplateLimit("is nested too deeply") from error


def render_compiled(template: jinja2.Template, values: Mapping[str, Any], limits: Limits) -> str:
    """Render ``template`` with ``values``."""
    try:
        text = template.render(values)
    except _Raised as error:
        raise TemplateRefused(str(error), line=_line_of(error)) from None
    except Exception as error:
        raise TemplateError(f"{type(error).__name__}: {error}", line=_line_of(error)) from error
    if len(text) > limits.output_chars:
        raise TemplateLimit(f"renders more than {limits.output_chars} characters")
    return text


def _line_of(error: BaseException) -> int | None:
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
