"""Lint against templates as attacks: what only somebody who wants out of the sandbox writes.

Every engine that matters runs templates in a sandbox; a template that needs one to hold is not one to ship.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from strata_pack.chat.lint.model import Found, Subject

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
"""Names that chat templates do not have and that known template injections start from."""

DANGEROUS_ATTRIBUTES = frozenset(
    {"func_globals", "gi_frame", "gi_code", "cr_frame", "f_globals", "mro", "os", "popen", "system", "subclasses"}
)


def dunder_access(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Getattr):
        if _is_internal(node.attr):
            yield Found(f"reads the attribute {node.attr!r}", node.lineno, node.attr)
    for node in subject.all(nodes.Const):
        if isinstance(node.value, str) and _is_dunder(node.value):
            yield Found(
                f"holds the text {node.value!r}, the name of an interpreter's internals", node.lineno, node.value
            )


def _is_internal(name: str) -> bool:
    return _is_dunder(name) or name in DANGEROUS_ATTRIBUTES


def _is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__") and name.isascii()


def attr_filter(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Filter):
        if node.name == "attr":
            yield Found("looks up an attribute by a computed name (the filter attr)", node.lineno, "attr")


def dangerous_names(subject: Subject) -> Iterator[Found]:
    defined = {node.name for node in subject.all(nodes.Name) if node.ctx in ("store", "param")}
    for node in subject.all(nodes.Name):
        if node.ctx == "load" and node.name in DANGEROUS_NAMES and node.name not in defined:
            yield Found(f"uses {node.name!r}, which a chat template has no business with", node.lineno, node.name)


def other_templates(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends):
        yield Found(f"loads another template ({type(node).__name__.lower()}), which every engine refuses", node.lineno)
