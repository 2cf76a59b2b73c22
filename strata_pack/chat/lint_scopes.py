"""Lint of the scopes of variables, where engines differ silently: what a loop, a macro or a namespace keeps."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from strata_pack.chat.lint_model import Found, Subject
from strata_pack.chat.lint_portable import HFJS, JINJA2, LLAMA, MINIJINJA, breaks


def leaking_variables(subject: Subject) -> Iterator[Found]:
    """A variable set only on some turns of a loop and read in it keeps its value on engines without loop scopes."""
    for loop in subject.all(nodes.For):
        own = {node.name for node in loop.target.find_all(nodes.Name)} | _names(loop.target)
        reported: set[str] = set()
        sure: set[str] = set()
        for statement in loop.body:
            for name, line in _maybe_set(statement):
                if name not in sure | own | reported and _is_read(loop, name):
                    reported.add(name)
                    yield Found(
                        f"{name!r} is set on some turns of the loop only: llama.cpp and hf.js keep its value from an "
                        "earlier turn",
                        line,
                        name,
                        engines=(LLAMA, HFJS),
                    )
            if isinstance(statement, (nodes.Assign, nodes.AssignBlock)):
                sure |= _names(statement.target)


def _names(target: nodes.Node) -> set[str]:
    return {target.name} if isinstance(target, nodes.Name) else {node.name for node in target.find_all(nodes.Name)}


def _maybe_set(statement: nodes.Node) -> Iterator[tuple[str, int]]:
    """Yield the variables that ``statement``, an if of a loop's body, may set in the scope of that loop."""
    if not isinstance(statement, nodes.If):
        return
    for branch in (statement.body, [part for elif_ in statement.elif_ for part in elif_.body], statement.else_):
        for node in branch:
            if isinstance(node, (nodes.Assign, nodes.AssignBlock)):
                yield from ((name, node.lineno) for name in sorted(_names(node.target)))
            else:
                yield from _maybe_set(node)


def _is_read(loop: nodes.For, name: str) -> bool:
    """Say whether the loop reads ``name`` in a place that a turn reaches which has not set it."""
    return any(_reads_unset(statement, name) for statement in loop.body)


def _reads_unset(node: nodes.Node, name: str) -> bool:
    if isinstance(node, nodes.If):
        if _loads(node.test, name):
            return True
        branches = [node.body, *(elif_.body for elif_ in node.elif_), node.else_]
        return any(_branch_reads_unset(branch, name) for branch in branches)
    return _loads(node, name)


def _branch_reads_unset(branch: list[nodes.Node], name: str) -> bool:
    for node in branch:
        if isinstance(node, (nodes.Assign, nodes.AssignBlock)) and name in _names(node.target):
            return isinstance(node, nodes.Assign) and _loads(node.node, name)
        if _reads_unset(node, name):
            return True
    return False


def _loads(node: nodes.Node, name: str) -> bool:
    nodes_in = [node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)
    return any(one.name == name and one.ctx == "load" for one in nodes_in)


def macro_writes(subject: Subject) -> Iterator[Found]:
    for macro in subject.all(nodes.Macro):
        parameters = {argument.name for argument in macro.args}
        local = {name for node in macro.find_all(nodes.Assign) for name in _names(node.target)}
        read = {node.name for node in macro.find_all(nodes.Name) if node.ctx == "load"}
        for reference in macro.find_all(nodes.NSRef):
            if reference.name not in parameters | local | read:
                yield breaks(
                    f"setting {reference.name}.{reference.attr} in a macro that does not read {reference.name!r}",
                    (MINIJINJA,),
                    reference.lineno,
                    reference.name,
                )


def namespaces(subject: Subject) -> Iterator[Found]:
    for call in subject.all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "namespace":
            for option in call.kwargs:
                if option.key.startswith("_"):
                    yield breaks(f"the namespace attribute {option.key!r}", (JINJA2,), call.lineno, option.key)
    for reference in subject.all(nodes.NSRef):
        if reference.attr.startswith("_"):
            yield breaks(f"the namespace attribute {reference.attr!r}", (JINJA2,), reference.lineno, reference.attr)
