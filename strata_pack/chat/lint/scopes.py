"""Lint rules on scopes of variables, in which engines differ silently: loops, macros, namespaces."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import nodes

from strata_pack.chat.lint.model import Found, Subject, rule
from strata_pack.chat.lint.portable import HFJS, JINJA2, LLAMA, MINIJINJA, breaks


@rule(
    "ST310", "leaking-variable", "warning", "a loop's variable keeps its value from turn to turn on some engines",
    "set it unconditionally at the top of the loop body",
)  # fmt: skip
def leaking_variables(subject: Subject) -> Iterator[Found]:
    """Find variables that are set in some iterations of a loop and read in it: engines without loop scopes keep the
    value."""
    for loop in subject.all(nodes.For):
        own = _names(loop.target)
        reported: set[str] = set()
        for name, line in _maybe_set(loop.body):
            if name not in own | reported and _reads_unset(loop.body, name, False)[0]:
                reported.add(name)
                yield Found(
                    f"{name!r} is set on some turns of the loop only: llama.cpp and hf.js keep its value from an "
                    "earlier turn",
                    line,
                    name,
                    engines=(LLAMA, HFJS),
                )


def _names(target: nodes.Node) -> set[str]:
    return {target.name} if isinstance(target, nodes.Name) else {node.name for node in target.find_all(nodes.Name)}


def _branches(statement: nodes.If) -> list[list[nodes.Node]]:
    return [statement.body, *(part.body for part in statement.elif_), statement.else_]


def _maybe_set(statements: list[nodes.Node], *, inside: bool = False) -> Iterator[tuple[str, int]]:
    """Yield the variables that an ``if`` among ``statements`` sets in the scope of the loop, with their lines."""
    for statement in statements:
        if isinstance(statement, nodes.If):
            for branch in _branches(statement):
                yield from _maybe_set(branch, inside=True)
        elif inside and isinstance(statement, (nodes.Assign, nodes.AssignBlock)):
            yield from ((name, statement.lineno) for name in sorted(_names(statement.target)))


def _reads_unset(statements: list[nodes.Node], name: str, is_set: bool) -> tuple[bool, bool]:
    """Return whether ``statements`` read ``name`` where this iteration may not have set it, and whether they always
    set it."""
    for statement in statements:
        if is_set:
            break
        if _leaves(statement):
            return False, True
        if isinstance(statement, nodes.If):
            tests = [statement.test, *(part.test for part in statement.elif_)]
            results = [_reads_unset(branch, name, is_set) for branch in _branches(statement)]
            if any(_loads(test, name) for test in tests) or any(reads for reads, _ in results):
                return True, False
            is_set = all(sets for _, sets in results)
        elif isinstance(statement, (nodes.Assign, nodes.AssignBlock)) and name in _names(statement.target):
            value = [statement.node] if isinstance(statement, nodes.Assign) else statement.body
            if any(_loads(part, name) for part in value):
                return True, False
            is_set = True
        elif isinstance(statement, nodes.For):
            if _inner_loop_reads(statement, name):
                return True, False
        elif _loads(statement, name):
            return True, False
    return False, is_set


def _inner_loop_reads(loop: nodes.For, name: str) -> bool:
    """Return whether a nested loop reads ``name`` unset; a loop variable of that name is a different variable."""
    if _loads(loop.iter, name):
        return True
    if name in _names(loop.target):
        return _reads_unset(loop.else_, name, False)[0]
    tested = loop.test is not None and _loads(loop.test, name)
    return tested or any(_reads_unset(part, name, False)[0] for part in (loop.body, loop.else_))


def _leaves(statement: nodes.Node) -> bool:
    """Return whether nothing after ``statement`` runs in this iteration: it refuses the conversation, continues or
    breaks."""
    if isinstance(statement, nodes.Output):
        called = [node.node for node in statement.nodes if isinstance(node, nodes.Call)]
        return any(isinstance(target, nodes.Name) and target.name == "raise_exception" for target in called)
    return isinstance(statement, (nodes.Continue, nodes.Break))


def _loads(node: nodes.Node, name: str) -> bool:
    nodes_in = [node] if isinstance(node, nodes.Name) else node.find_all(nodes.Name)
    return any(one.name == name and one.ctx == "load" for one in nodes_in)


@rule(
    "ST311", "macro-writes", "warning", "a macro sets a namespace that it does not read",
    "pass the namespace to the macro as an argument",
)  # fmt: skip
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


@rule(
    "ST312", "namespace-underscore", "error", "a namespace attribute that starts with an underscore",
    "name it without the underscore",
)  # fmt: skip
def namespaces(subject: Subject) -> Iterator[Found]:
    for call in subject.all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "namespace":
            for option in call.kwargs:
                if option.key.startswith("_"):
                    yield breaks(f"the namespace attribute {option.key!r}", (JINJA2,), call.lineno, option.key)
    for reference in subject.all(nodes.NSRef):
        if reference.attr.startswith("_"):
            yield breaks(f"the namespace attribute {reference.attr!r}", (JINJA2,), reference.lineno, reference.attr)


RULES = (leaking_variables, macro_writes, namespaces)
