"""What lint works on and what it says: ``Subject`` (a template, read once), ``Rule``, and ``Finding``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.lint.played import Plays, play_all
from strata_pack.chat.render.sandbox import GenerationBlock
from strata_pack.chat.render.template import ChatTemplate, TemplateError
from strata_pack.chat.repair.repair import RepairRefused, call_form
from strata_pack.chat.repair.rules import CallForm

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""The worst first."""

TOOLS_VARIANT = "tool_use"
"""The name of such a variant: a file's, or the one in a list of named templates."""

ENGINE_SEVERITY: Mapping[str, Severity] = {
    "jinja2": "error",
    "llama.cpp": "error",
    "minijinja": "warning",
    "hf.js": "info",
}
"""How bad it is when a construct fails on an engine: packs are served by llama.cpp and checked by jinja2."""


@dataclass(frozen=True)
class Found:
    """What a check saw: ``line`` is 1-based, None for the whole template; ``text`` is what to point at in the line."""

    message: str
    line: int | None = None
    text: str = ""
    severity: Severity | None = None
    engines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule: ``check`` yields what it sees in a template; ``severity`` is that of a finding without its own."""

    id: str
    name: str
    severity: Severity
    summary: str
    remedy: str
    check: Callable[[Subject], Iterable[Found]]


RuleCheck = Callable[["Subject"], Iterable[Found]]


def rule(id: str, name: str, severity: Severity, summary: str, remedy: str) -> Callable[[RuleCheck], Rule]:
    """Return the decorator that makes a rule of a check, so that all there is to say of a rule stands in one place."""
    return lambda check: Rule(id, name, severity, summary, remedy, check)


@dataclass(frozen=True)
class Finding:
    """One finding of one rule. ``line`` and ``column`` are 1-based, None where the whole template is meant."""

    rule: Rule
    severity: Severity
    message: str
    path: str
    line: int | None = None
    column: int | None = None
    engines: tuple[str, ...] = ()
    excerpt: str = ""

    def to_dict(self) -> dict[str, Any]:
        optional: dict[str, Any] = {
            "line": self.line,
            "column": self.column,
            "engines": list(self.engines) or None,
            "excerpt": self.excerpt or None,
        }
        return {
            "rule": self.rule.id,
            "name": self.rule.name,
            "severity": self.severity,
            "message": self.message,
            "remedy": self.rule.remedy,
            "path": self.path,
            **{key: value for key, value in optional.items() if value is not None},
        }


def severity_on(engines: Iterable[str]) -> Severity:
    """Return how bad it is that a construct breaks on ``engines``."""
    found = {ENGINE_SEVERITY[engine] for engine in engines}
    return next(severity for severity in SEVERITIES if severity in found)


@dataclass(frozen=True)
class Subject:
    """A template under lint. Everything derived from its text is made once, when a rule asks for it."""

    source: str
    path: str = "chat_template.jinja"
    copies: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends; only ``\\n`` ends a line."""
        return self.source.split("\n")

    @cached_property
    def parsed(self) -> nodes.Template | TemplateError:
        """The syntax tree, or why there is none."""
        try:
            return environment().parse(self.source)
        except jinja2.TemplateSyntaxError as error:
            return TemplateError(error.message or "syntax error", line=error.lineno)
        except RecursionError:
            return TemplateError("is nested too deeply")

    @cached_property
    def tokens(self) -> list[tuple[int, str, str]]:
        """The tokens as (line, kind, text); empty if the text cannot be read."""
        try:
            return list(environment().lex(self.source))
        except jinja2.TemplateSyntaxError:
            return []

    @cached_property
    def compiled(self) -> ChatTemplate | TemplateError:
        """The template, ready to render, or why it does not compile."""
        try:
            return ChatTemplate(self.source)
        except TemplateError as error:
            return error

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The template, ready to render, None where it does not compile."""
        return self.compiled if isinstance(self.compiled, ChatTemplate) else None

    @property
    def for_tools(self) -> bool:
        """Whether it is the variant that transformers and llama.cpp take when tools are given."""
        return TOOLS_VARIANT in self.path

    @cached_property
    def plays(self) -> Plays:
        """The prompts of the standard conversations."""
        return play_all(self.source)

    @cached_property
    def form(self) -> CallForm | None:
        """The form of the template's calls, None if it has none that we know."""
        try:
            return None if self.template is None else call_form(self.source, Jinja2Engine())
        except RepairRefused:
            return None

    def all(self, *kinds: type[nodes.Node]) -> Iterator[Any]:
        """Yield every node of the tree that is one of ``kinds``; nothing if the template does not parse."""
        if isinstance(self.parsed, nodes.Template):
            for kind in kinds:
                yield from self.parsed.find_all(kind)


def environment() -> jinja2.Environment:
    """Return an environment that parses what transformers parses. It renders nothing."""
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
