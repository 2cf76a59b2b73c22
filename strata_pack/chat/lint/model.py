"""Defines lint's data: ``Subject`` (a template, parsed once), ``Rule``, and ``Finding``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NotRequired, TypedDict

import jinja2
from jinja2 import nodes
from jinja2.ext import loopcontrols

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.lint.rendered import RenderedConversations, render_all
from strata_pack.chat.render.sandbox import GenerationBlock
from strata_pack.chat.render.template import ChatTemplate, TemplateError
from strata_pack.chat.repair.repair import RepairRefused, call_form
from strata_pack.chat.repair.rules import CallForm

Severity = Literal["error", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""Severities, the worst first."""

TOOLS_VARIANT = "tool_use"
"""The name of the variant for tools: of its file, or in a list of named templates."""

ENGINE_SEVERITY: Mapping[str, Severity] = {
    "jinja2": "error",
    "llama.cpp": "error",
    "minijinja": "warning",
    "hf.js": "info",
}
"""The severity if a construct fails on an engine: llama.cpp serves packs and jinja2 checks them."""


@dataclass(frozen=True)
class Found:
    """The result of a check: ``line`` is 1-based, None for the whole template; ``text`` is the part of the line to
    mark."""

    message: str
    line: int | None = None
    text: str = ""
    severity: Severity | None = None
    engines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """One rule: ``check`` yields findings in a template; ``severity`` is the default of its findings."""

    id: str
    name: str
    severity: Severity
    summary: str
    remedy: str
    check: Callable[[Subject], Iterable[Found]]

    def to_dict(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("id", "name", "severity", "summary", "remedy")}


RuleCheck = Callable[["Subject"], Iterable[Found]]


def rule(id: str, name: str, severity: Severity, summary: str, remedy: str) -> Callable[[RuleCheck], Rule]:
    """Return the decorator that makes a check a rule, so that all facts of a rule are in one place."""
    return lambda check: Rule(id, name, severity, summary, remedy, check)


class FindingDict(TypedDict):
    """A ``Finding`` as JSON; what is not known is left out."""

    rule: str
    name: str
    severity: Severity
    message: str
    remedy: str
    path: str
    line: NotRequired[int]
    column: NotRequired[int]
    engines: NotRequired[list[str]]
    excerpt: NotRequired[str]


@dataclass(frozen=True)
class Finding:
    """One finding of one rule. ``line`` and ``column`` are 1-based, None for the whole template."""

    rule: Rule
    severity: Severity
    message: str
    path: str
    line: int | None = None
    column: int | None = None
    engines: tuple[str, ...] = ()
    excerpt: str = ""

    def to_dict(self) -> FindingDict:
        found = FindingDict(
            rule=self.rule.id,
            name=self.rule.name,
            severity=self.severity,
            message=self.message,
            remedy=self.rule.remedy,
            path=self.path,
        )
        if self.line is not None:
            found["line"] = self.line
        if self.column is not None:
            found["column"] = self.column
        if self.engines:
            found["engines"] = list(self.engines)
        if self.excerpt:
            found["excerpt"] = self.excerpt
        return found


def severity_on(engines: Iterable[str]) -> Severity:
    """Return the severity of a construct that fails on ``engines``."""
    found = {ENGINE_SEVERITY[engine] for engine in engines}
    return next(severity for severity in SEVERITIES if severity in found)


@dataclass(frozen=True)
class Subject:
    """A template under lint. Everything derived from its text is computed once, at the first use."""

    source: str
    path: str = "chat_template.jinja"
    copies: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """The lines without line ends; only ``\\n`` ends a line."""
        return self.source.split("\n")

    @cached_property
    def parsed(self) -> nodes.Template | TemplateError:
        """The syntax tree, or the error that prevents it."""
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
        """The template, ready to render, or the error of its compilation."""
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
        """Whether it is the variant that transformers and llama.cpp use for requests with tools."""
        return TOOLS_VARIANT in self.path

    @cached_property
    def rendered(self) -> RenderedConversations:
        """The prompts of the standard conversations."""
        return render_all(self.source)

    @cached_property
    def form(self) -> CallForm | None:
        """The format of the template's calls, None if it has none or an unknown one."""
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
    """Return an environment that parses what transformers parses, but cannot render."""
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
