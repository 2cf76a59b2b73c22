"""Lint rules on the text itself: invisible characters, and whether it compiles."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import jinja2
from jinja2 import nodes

from strata_pack.chat.lint.model import Found, Subject, environment, rule
from strata_pack.chat.render.template import TemplateError

BOM = "\ufeff"

BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that reorder a line on the screen (Unicode UAX 9; "Trojan Source", CVE-2021-42574)."""

KNOWN_CONTROLS = frozenset("\n\r\t")


NAME = "correct its name, or define it"
HUMAN = "retype the line; nothing in a template needs the character"


@rule(
    "ST101", "byte-order-mark", "error", "the file starts with a byte order mark",
    "save it as UTF-8 without a byte order mark",
)  # fmt: skip
def byte_order_mark(subject: Subject) -> Iterator[Found]:
    if subject.source.startswith(BOM):
        yield Found("starts with a byte order mark, which becomes the first character of every prompt", 1)


@rule(
    "ST102", "carriage-return", "warning", "lines end in carriage return and line feed",
    "save it with LF line ends, so that its hash is the same everywhere",
)  # fmt: skip
def carriage_returns(subject: Subject) -> Iterator[Found]:
    lines = [number for number, line in enumerate(subject.lines, 1) if "\r" in line]
    if lines:
        some = f"{len(lines)} lines have" if len(lines) > 1 else "a line has"
        yield Found(f"{some} a carriage return", lines[0])


@rule("ST103", "tab", "info", "the text holds tabs", "indent with spaces")
def tabs(subject: Subject) -> Iterator[Found]:
    lines = [number for number, line in enumerate(subject.lines, 1) if "\t" in line]
    if lines:
        some = f"{len(lines)} lines hold" if len(lines) > 1 else "a line holds"
        yield Found(f"{some} a tab", lines[0], "\t")


@rule("ST104", "bidirectional", "error", "characters that reorder a line", HUMAN)
def bidirectional(subject: Subject) -> Iterator[Found]:
    for number, line in enumerate(subject.lines, 1):
        for char in sorted(BIDI & set(line)):
            yield Found(f"holds {_called(char)}: the line is not what it looks like", number, char)


@rule("ST105", "hidden-character", "warning", "characters that no editor shows", HUMAN)
def hidden(subject: Subject) -> Iterator[Found]:
    for number, line in enumerate(subject.lines, 1):
        shown = line.removeprefix(BOM) if number == 1 else line
        for char in sorted(set(shown) - BIDI):
            if _is_hidden(char):
                yield Found(f"holds {_called(char)}", number, char)


def _is_hidden(char: str) -> bool:
    if char.isascii():
        return not char.isprintable() and char not in KNOWN_CONTROLS
    return unicodedata.category(char) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")


def _called(char: str) -> str:
    return f"U+{ord(char):04X} ({unicodedata.name(char, 'unnamed')})"


@rule("ST201", "syntax", "error", "the template does not compile", "correct the line")
def does_not_compile(subject: Subject) -> Iterator[Found]:
    failed: object = subject.parsed
    if not isinstance(failed, TemplateError) and not (
        any(unknown_filters.check(subject)) or any(unknown_tests.check(subject))
    ):
        failed = (
            subject.compiled
        )  # a template that parses may still be nested too deeply, or have a break outside a loop
    if isinstance(failed, TemplateError):
        yield Found(failed.cause, failed.line)


@rule("ST202", "unknown-filter", "error", "a filter that does not exist", NAME)
def unknown_filters(subject: Subject) -> Iterator[Found]:
    known = environment().filters
    for node in subject.all(nodes.Filter):
        if node.name not in known:
            yield Found(f"no engine has a filter {node.name!r}", node.lineno, node.name)


@rule("ST203", "unknown-test", "error", "a test that does not exist", NAME)
def unknown_tests(subject: Subject) -> Iterator[Found]:
    known = environment().tests
    for node in subject.all(nodes.Test):
        if node.name not in known:
            yield Found(f"no engine has a test {node.name!r}", node.lineno, node.name)


FUNCTIONS = frozenset(
    {"raise_exception", "strftime_now", "namespace", "range", "caller", "loop", *jinja2.Environment().globals}
)
"""The functions that transformers and llama.cpp define for templates."""


@rule("ST204", "unknown-function", "error", "a function that does not exist", NAME)
def unknown_functions(subject: Subject) -> Iterator[Found]:
    defined = {node.name for node in subject.all(nodes.Macro)}
    defined |= {node.name for node in subject.all(nodes.Name) if node.ctx in ("store", "param")}
    for call in subject.all(nodes.Call):
        name = call.node.name if isinstance(call.node, nodes.Name) else None
        if name is not None and name not in defined and name not in FUNCTIONS:
            yield Found(f"calls {name}(), which no engine offers", call.lineno, name)


@rule(
    "ST701", "copies-disagree", "error", "the copies of the template are not the same",
    "install one of them everywhere with `strata-pack template install`",
)  # fmt: skip
def copies_disagree(subject: Subject) -> Iterator[Found]:
    wanted = subject.source.rstrip("\n")
    for place, text in subject.copies.items():
        if text.rstrip("\n") != wanted:
            yield Found(f"another text than {place}, so what is served depends on which one the engine reads")


RULES = (
    byte_order_mark,
    carriage_returns,
    tabs,
    bidirectional,
    hidden,
    does_not_compile,
    unknown_filters,
    unknown_tests,
    unknown_functions,
    copies_disagree,
)
