"""Collects the literals of a template's conditions, and the conditions that test a text.

``recording`` finds literals that are built only while the template runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from strata_pack.chat.triggers.probes import is_blank
from strata_pack.chat.triggers.recording import INPUT_KEYS, LONGEST_LITERAL

TEXT_KEYS = frozenset(
    {"content", "text", "reasoning_content", "reasoning", "thinking", "arguments", "name", "description"}
)
"""The keys of texts in a conversation."""

ROLES = frozenset({"user", "assistant", "system", "tool", "developer", "model", "ipython", "image", "video", "audio"})
"""Words that conditions ask of a message next to its text."""

STRUCTURE_TESTS = frozenset(
    {"string", "none", "defined", "undefined", "mapping", "iterable", "sequence", "number", "boolean", "true", "false"}
)
"""Jinja tests of a value's type, not of its content."""


def literals(tree: nodes.Template) -> dict[str, int]:
    """Return the literal arguments of comparisons, methods, filters, tests and lookups, with their lines."""
    found: dict[str, int] = {}
    for asked in _asked(tree):
        for one in (asked, *asked.find_all((nodes.Const, nodes.Concat, nodes.Add))):
            text = joined(one)
            if text and not is_blank(text) and len(text) <= LONGEST_LITERAL:
                found.setdefault(text, one.lineno)
    return found


def together(tree: nodes.Template) -> dict[tuple[str, ...], int]:
    """Return the literals that stand in one condition, two or more, as they follow each other, with its line."""
    found: dict[tuple[str, ...], int] = {}
    for condition in tree.find_all((nodes.If, nodes.CondExpr, nodes.For)):
        test: nodes.Expr | None = getattr(condition, "test", None)
        if test is not None:
            asked = [node.value for node in test.find_all(nodes.Const) if isinstance(node.value, str)]
            said = (text for text in asked if text not in INPUT_KEYS | ROLES and not is_blank(text))
            wanted = tuple(dict.fromkeys(text for text in said if len(text) <= LONGEST_LITERAL))
            if len(wanted) > 1:
                found.setdefault(wanted, test.lineno)
    return found


def numbers(tree: nodes.Template) -> set[int]:
    """Return the integers in the template."""
    values = (node.value for node in tree.find_all(nodes.Const))
    return {abs(value) for value in values if isinstance(value, int) and not isinstance(value, bool)}


def _asked(tree: nodes.Template) -> Iterator[nodes.Node]:
    """Yield the expressions that are compared with or searched for."""
    for compare in tree.find_all(nodes.Compare):
        yield from (compare.expr, *(part.expr for part in compare.ops))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr):
            yield call.node.node
            yield from (*call.args, *(option.value for option in call.kwargs))
    for applied in tree.find_all((nodes.Filter, nodes.Test)):
        yield from (*applied.args, *(option.value for option in applied.kwargs))
    for item in tree.find_all(nodes.Getitem):
        yield from (item.node, item.arg) if not isinstance(item.arg, nodes.Const) else (item.node,)
    for pair in tree.find_all(nodes.Pair):
        yield pair.key
    for assign in tree.find_all(nodes.Assign):
        if isinstance(assign.node, (nodes.List, nodes.Tuple, nodes.Const)):
            yield assign.node


def joined(node: nodes.Node) -> str | None:
    """Return the text of a literal, or of concatenated literals; ``None`` for anything else."""
    if isinstance(node, nodes.Const):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, nodes.Concat):
        parts = [joined(part) for part in node.nodes]
    elif isinstance(node, nodes.Add):
        parts = [joined(node.left), joined(node.right)]
    else:
        return None
    return "".join(part for part in parts if part is not None) if None not in parts else None


class TextTests:
    """Finds the conditions of a template that depend on the texts of a conversation. Names are followed through
    assignments, loops, macros and namespaces up to a fixed point."""

    def __init__(self, tree: nodes.Template) -> None:
        self._names: set[str] = set()
        size = -1
        while size != len(self._names):
            size = len(self._names)
            self._follow(tree.body, controlled=False)
            self._follow_macros(tree)

    def depends(self, test: nodes.Node) -> bool:
        """Return whether the condition ``test`` depends on the content of a text."""
        if isinstance(test, nodes.Compare):
            return self._compares_text(test)
        if isinstance(test, nodes.Test):
            return test.name not in STRUCTURE_TESTS and self._parts_depend(test)
        if isinstance(test, nodes.Call):
            return self._parts_depend(test) or (isinstance(test.node, nodes.Getattr) and self._says(test.node.node))
        if isinstance(test, (nodes.And, nodes.Or)):
            return self.depends(test.left) or self.depends(test.right)
        if isinstance(test, nodes.Not):
            return self.depends(test.node)
        if isinstance(test, (nodes.Name, nodes.Getattr)):
            return _flag(test) in self._names
        return any(self.depends(child) for child in test.iter_child_nodes())

    def _parts_depend(self, node: nodes.Node) -> bool:
        return any(self._says(child) for child in node.iter_child_nodes())

    def _compares_text(self, node: nodes.Compare) -> bool:
        sides = [node.expr, *(part.expr for part in node.ops)]
        plain = [side.value for side in sides if isinstance(side, nodes.Const)]
        if any(value is None or value == "" or value in (0, 1, True, False) for value in plain):
            return False
        return any(self._says(side) for side in sides)

    def _says(self, node: nodes.Node | None) -> bool:
        """Return whether the value of ``node`` is derived from a text of the conversation."""
        if node is None:
            return False
        if isinstance(node, nodes.Name):
            return node.name in self._names
        if isinstance(node, nodes.Getattr):
            return node.attr in TEXT_KEYS or _flag(node) in self._names
        if isinstance(node, nodes.Getitem):
            key = node.arg.value if isinstance(node.arg, nodes.Const) else None
            return key in TEXT_KEYS or (not isinstance(key, str) and self._says(node.node)) or self._says(node.arg)
        if isinstance(node, nodes.Const):
            return False
        if isinstance(node, nodes.Filter) and node.name in ("map", "selectattr", "rejectattr", "groupby"):
            values = [child.value for child in node.find_all(nodes.Const)]
            return any(value in TEXT_KEYS for value in values if isinstance(value, str)) or self._says(node.node)
        return any(self._says(child) for child in node.iter_child_nodes())

    def _follow(self, statements: list[nodes.Node], *, controlled: bool) -> None:
        """Add the names that are assigned a text's value, or are set under a condition on a text (``controlled``)."""
        for statement in statements:
            if isinstance(statement, nodes.Assign):
                if controlled or self._says(statement.node) or self.depends(statement.node):
                    self._names |= _targets(statement.target)
            elif isinstance(statement, nodes.AssignBlock):
                if controlled or any(map(self._says, statement.body)):
                    self._names |= _targets(statement.target)
            elif isinstance(statement, nodes.If):
                branches = [statement, *statement.elif_]
                inside = controlled or any(self.depends(branch.test) for branch in branches)
                for branch in branches:
                    self._follow(branch.body, controlled=inside)
                self._follow(statement.else_, controlled=inside)
            elif isinstance(statement, nodes.For):
                if self._says(statement.iter) and not _has_parts(statement):
                    self._names |= _targets(statement.target)
                self._follow(statement.body, controlled=controlled)
                self._follow(statement.else_, controlled=controlled)
            else:
                self._follow(list(getattr(statement, "body", [])), controlled=controlled)

    def _follow_macros(self, tree: nodes.Template) -> None:
        macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        for call in tree.find_all(nodes.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
            if macro is not None:
                for parameter, value in zip(macro.args, call.args, strict=False):
                    if self._says(value):
                        self._names.add(parameter.name)
                self._names |= {option.key for option in call.kwargs if self._says(option.value)}


def _has_parts(loop: nodes.For) -> bool:
    """Return whether a loop iterates over objects (the parts of a content), not over characters or words."""
    names = _targets(loop.target)
    looked_up: list[tuple[nodes.Expr, object]] = [(node.node, node.attr) for node in loop.find_all(nodes.Getattr)]
    looked_up += [(node.node, getattr(node.arg, "value", None)) for node in loop.find_all(nodes.Getitem)]
    for owner, key in looked_up:
        if isinstance(owner, nodes.Name) and owner.name in names and isinstance(key, str) and not hasattr(str, key):
            return True
    return False


def _flag(node: nodes.Node) -> str:
    """Return the name by which a variable or an attribute of a namespace is followed."""
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return node.name if isinstance(node, nodes.Name) else ""


def _targets(target: nodes.Node) -> set[str]:
    return set(_target_names(target))


def _target_names(target: nodes.Node) -> Iterator[str]:
    if isinstance(target, nodes.NSRef):
        yield f"{target.name}.{target.attr}"
    elif isinstance(target, nodes.Name):
        yield target.name
    else:
        for child in target.iter_child_nodes():
            yield from _target_names(child)
