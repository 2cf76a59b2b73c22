"""Lint rules on malicious templates: constructs that only an escape from the sandbox needs.

Every common engine runs templates in a sandbox, but a template that relies on it must not be shipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import nodes

from strata_pack.chat.lint.model import Found, Subject, rule
from strata_pack.chat.triggers.check import NOT_FINISHED, search_triggers

DANGEROUS_NAMES = frozenset(
    {
        "breakpoint",
        "compile",
        "config",
        "cycler",
        "environ",
        "eval",
        "exec",
        "getattr",
        "globals",
        "importlib",
        "joiner",
        "lipsum",
        "open",
        "os",
        "request",
        "self",
        "setattr",
        "subprocess",
        "sys",
        "url_for",
    }
)
"""Names from which known template injections start, and which chat templates do not use."""

DANGEROUS_ATTRIBUTES = frozenset(
    {"func_globals", "gi_frame", "gi_code", "cr_frame", "f_globals", "mro", "os", "popen", "system", "subclasses"}
)


INTERNALS = frozenset(
    f"__{name}__"
    for name in [
        "base",
        "bases",
        "builtins",
        "call",
        "class",
        "class_getitem",
        "closure",
        "code",
        "defaults",
        "delattr",
        "dict",
        "dir",
        "func",
        "get",
        "getattr",
        "getattribute",
        "getitem",
        "globals",
        "import",
        "init",
        "init_subclass",
        "kwdefaults",
        "loader",
        "module",
        "mro",
        "name",
        "new",
        "objclass",
        "package",
        "qualname",
        "reduce",
        "reduce_ex",
        "self",
        "set",
        "setattr",
        "slots",
        "spec",
        "subclasses",
        "subclasshook",
        "weakref",
        "wrapped",
    ]
)
"""The names of Python's internals that a template would spell as strings; other strings with underscores are
harmless."""


HOSTILE = "do not use this template unless you wrote it; chat templates need none of this"


@rule("ST601", "internals", "error", "it reaches for internals", HOSTILE)
def dunder_access(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Getattr):
        if _is_dunder(node.attr) or node.attr in DANGEROUS_ATTRIBUTES:
            yield Found(f"reads the attribute {node.attr!r}", node.lineno, node.attr)
    for node in subject.all(nodes.Getitem):
        key = folded(node.arg)
        if isinstance(key, str) and _is_dunder(key) and key not in INTERNALS:
            yield Found(f"reads the attribute {key!r}", node.lineno, key)
    for node in subject.all(nodes.Const, nodes.Concat, nodes.Add):
        text = folded(node)
        if isinstance(text, str) and text in INTERNALS:
            yield Found(f"holds the text {text!r}, the name of an interpreter's internals", node.lineno, text)


def folded(node: nodes.Node) -> Any:
    """Return the value of a literal, or of literals joined by ``~`` or ``+``; ``None`` for anything else."""
    if isinstance(node, nodes.Const):
        return node.value
    parts = (
        node.nodes if isinstance(node, nodes.Concat) else [node.left, node.right] if isinstance(node, nodes.Add) else []
    )
    values = [folded(part) for part in parts]
    return "".join(values) if values and all(isinstance(value, str) for value in values) else None


def _is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__") and name.isascii()


@rule("ST602", "computed-attribute", "error", "it computes attribute names", HOSTILE)
def attr_filter(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Filter):
        if node.name == "attr":
            yield Found("looks up an attribute by a computed name (the filter attr)", node.lineno, "attr")


@rule("ST603", "dangerous-name", "error", "names that injections start from", HOSTILE)
def dangerous_names(subject: Subject) -> Iterator[Found]:
    defined = {node.name for node in subject.all(nodes.Name) if node.ctx in ("store", "param")}
    for node in subject.all(nodes.Name):
        if node.ctx == "load" and node.name in DANGEROUS_NAMES and node.name not in defined:
            yield Found(f"uses {node.name!r}, which a chat template has no business with", node.lineno, node.name)


@rule("ST604", "other-template", "error", "it loads other templates", HOSTILE)
def other_templates(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends):
        yield Found(f"loads another template ({type(node).__name__.lower()}), which every engine refuses", node.lineno)


@rule(
    "ST605", "trigger", "error", "text that appears, vanishes or changes on a trigger",
    "look at the line: a template prints a conversation, it does not answer to it",
)  # fmt: skip
def triggers(subject: Subject) -> Iterator[Found]:
    """Find text that the template adds or hides only if the conversation contains a trigger."""
    if subject.template is None:
        return
    search = search_triggers(subject.source)
    for trigger in search.triggers:
        yield Found(trigger.sentence(), trigger.line, severity=None if trigger.is_error else "warning")
    if not search.finished:
        yield Found(NOT_FINISHED, severity="info")


RULES = (dunder_access, attr_filter, dangerous_names, other_templates, triggers)
