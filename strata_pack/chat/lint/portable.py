"""Lint rules on constructs that template engines run differently, from tables of measurements on each engine.

Measured on jinja2 3.1.6, minijinja 3.1.0 (with its Python methods), llama.cpp b11549 and @huggingface/jinja 0.5.11
(hf.js). "fails" includes a silently different output.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from jinja2 import nodes

from strata_pack.chat.lint.model import Found, Subject, rule, severity_on

JINJA2, MINIJINJA, LLAMA, HFJS = "jinja2", "minijinja", "llama.cpp", "hf.js"
EngineNames = tuple[str, ...]

PORTABLE_METHODS = frozenset(
    {
        *("split", "strip", "lstrip", "rstrip", "startswith", "endswith", "replace"),
        *("upper", "lower", "title", "capitalize"),
        *("items", "keys", "values", "get"),
    }
)

METHODS: Mapping[str, EngineNames] = {
    "append": (JINJA2, MINIJINJA, HFJS),
    "clear": (JINJA2, MINIJINJA, LLAMA, HFJS),
    "count": (LLAMA, HFJS),
    "extend": (JINJA2, MINIJINJA, LLAMA, HFJS),
    "find": (LLAMA, HFJS),
    "format": (HFJS,),
    "index": (MINIJINJA, LLAMA, HFJS),
    "insert": (JINJA2, MINIJINJA, LLAMA, HFJS),
    "isalnum": (LLAMA, HFJS),
    "isalpha": (LLAMA, HFJS),
    "isdigit": (LLAMA, HFJS),
    "islower": (LLAMA, HFJS),
    "isspace": (LLAMA, HFJS),
    "isupper": (LLAMA, HFJS),
    "join": (LLAMA, HFJS),
    "partition": (MINIJINJA, LLAMA, HFJS),
    "pop": (JINJA2, MINIJINJA, HFJS),
    "remove": (JINJA2, MINIJINJA, LLAMA, HFJS),
    "rfind": (LLAMA, HFJS),
    "rsplit": (MINIJINJA, HFJS),
    "setdefault": (JINJA2, MINIJINJA, LLAMA, HFJS),
    "splitlines": (LLAMA, HFJS),
    "update": (JINJA2, MINIJINJA, LLAMA, HFJS),
}
OTHER_METHODS: EngineNames = (MINIJINJA, LLAMA, HFJS)
"""The engines that lack Python methods of strings, lists and dicts that are in neither table."""

LOOP_METHODS: Mapping[str, EngineNames] = {"cycle": (LLAMA, HFJS), "changed": (LLAMA, HFJS)}
LOOP_ATTRIBUTES: Mapping[str, EngineNames] = {"depth": (LLAMA, HFJS), "depth0": (LLAMA, HFJS)}

FILTERS: Mapping[str, EngineNames] = {
    "batch": (LLAMA, HFJS),
    "count": (HFJS,),
    "d": (HFJS,),
    "center": (MINIJINJA, LLAMA, HFJS),
    "e": (LLAMA, HFJS),
    "escape": (LLAMA, HFJS),
    "filesizeformat": (MINIJINJA, LLAMA, HFJS),
    "forceescape": (MINIJINJA, LLAMA, HFJS),
    "format": (LLAMA, HFJS),
    "groupby": (LLAMA, HFJS),
    "max": (HFJS,),
    "min": (HFJS,),
    "pprint": (LLAMA, HFJS),
    "random": (MINIJINJA, LLAMA, HFJS),
    "reject": (LLAMA, HFJS),
    "round": (LLAMA, HFJS),
    "select": (LLAMA, HFJS),
    "slice": (LLAMA, HFJS),
    "striptags": (LLAMA, HFJS),
    "sum": (LLAMA, HFJS),
    "truncate": (MINIJINJA, LLAMA, HFJS),
    "unique": (LLAMA,),
    "urlencode": (LLAMA, HFJS),
    "urlize": (MINIJINJA, LLAMA, HFJS),
    "wordcount": (MINIJINJA, LLAMA, HFJS),
    "wordwrap": (LLAMA, HFJS),
    "xmlattr": (MINIJINJA, LLAMA, HFJS),
}

TOJSON_OPTIONS: Mapping[str, EngineNames] = {
    "ensure_ascii": (MINIJINJA,),
    "separators": (MINIJINJA,),
    "sort_keys": (MINIJINJA, LLAMA, HFJS),
}

TESTS: Mapping[str, EngineNames] = {
    "callable": (MINIJINJA,),
    "filter": (LLAMA, HFJS),
    "sameas": (HFJS,),
    "test": (LLAMA, HFJS),
    **dict.fromkeys(("float", "divisibleby", "eq", "equalto", "ne", "gt", "ge", "lt", "le", "in"), (HFJS,)),
}

CALLS: Mapping[str, EngineNames] = {
    "cycler": (MINIJINJA, LLAMA, HFJS),
    "dict": (HFJS,),
    "joiner": (LLAMA, HFJS),
    "lipsum": (MINIJINJA, LLAMA, HFJS),
}

STATEMENTS: Mapping[type[nodes.Node], tuple[str, EngineNames]] = {
    nodes.With: ("a with block", (LLAMA, HFJS)),
    nodes.Block: ("a named block", (LLAMA, HFJS)),
    nodes.ScopedEvalContextModifier: ("an autoescape block", (LLAMA, HFJS)),
    nodes.FloorDiv: ("the operator //", (LLAMA,)),
    nodes.Pow: ("the operator **", (LLAMA,)),
}

_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\[xuUN]")


def breaks(what: str, engines: EngineNames, line: int, text: str = "") -> Found:
    """Return the finding that ``what`` fails on ``engines``, with the highest of their severities."""
    return Found(f"{what} fails on {', '.join(engines)}", line, text, severity_on(engines), engines)


PORTABLE = "use a construct of the portable subset, which every engine runs alike"


@rule("ST301", "method", "error", "a method that not every engine has", PORTABLE)
def methods(subject: Subject) -> Iterator[Found]:
    for call in subject.all(nodes.Call):
        target = call.node
        if not isinstance(target, nodes.Getattr):
            continue
        name = target.attr
        if isinstance(target.node, nodes.Name) and target.node.name == "loop":
            if name in LOOP_METHODS:
                yield breaks(f"loop.{name}()", LOOP_METHODS[name], call.lineno, name)
        elif name not in PORTABLE_METHODS:
            yield breaks(f"the method {name}()", METHODS.get(name, OTHER_METHODS), call.lineno, f".{name}")


_ARGUMENTS: tuple[tuple[str, Callable[[nodes.Call], bool], str, EngineNames], ...] = (
    ("split", lambda call: not call.args, "split() without a separator", (LLAMA,)),
    ("replace", lambda call: len(call.args) > 2, "replace() with a count", (LLAMA,)),
    ("startswith", lambda call: len(call.args) > 1, "startswith() with a position", (MINIJINJA, LLAMA, HFJS)),
    ("endswith", lambda call: len(call.args) > 1, "endswith() with a position", (MINIJINJA, LLAMA, HFJS)),
    ("startswith", lambda call: isinstance(call.args[0], nodes.Tuple), "startswith() with a tuple", (LLAMA,)),
    ("endswith", lambda call: isinstance(call.args[0], nodes.Tuple), "endswith() with a tuple", (LLAMA,)),
)


@rule("ST302", "argument", "error", "arguments that not every engine takes", PORTABLE)
def arguments(subject: Subject) -> Iterator[Found]:
    for call in subject.all(nodes.Call):
        if call.dyn_args is not None or call.dyn_kwargs is not None:
            yield breaks("a call with * or **", (LLAMA,), call.lineno)
        for name, matches, what, engines in _ARGUMENTS:
            if isinstance(call.node, nodes.Getattr) and call.node.attr == name and matches(call):
                yield breaks(what, engines, call.lineno, f".{name}")


@rule("ST303", "filter", "error", "a filter that not every engine has", PORTABLE)
def filters(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Filter):
        if node.name in FILTERS:
            yield breaks(f"the filter {node.name}", FILTERS[node.name], node.lineno, node.name)
        elif node.name == "tojson":
            for option in node.kwargs:
                if option.key in TOJSON_OPTIONS:
                    yield breaks(f"tojson({option.key}=...)", TOJSON_OPTIONS[option.key], node.lineno, option.key)
            if node.args:
                # The first one is ensure_ascii in transformers and the indent in minijinja.
                yield breaks("tojson() with an option that has no name", (MINIJINJA, HFJS), node.lineno, "tojson")
        elif node.name == "string" and not _prints_alike(node.node):
            yield breaks("the filter string on null, an object or nothing", (HFJS,), node.lineno, "string")
        elif node.name == "map" and node.args:
            yield breaks("map() with the name of a filter", (LLAMA, HFJS), node.lineno, "map")
        elif node.name in ("list", "first", "last") and _is_text(node.node):
            yield breaks(f"the filter {node.name} on a text", (LLAMA, HFJS), node.lineno, node.name)


def _is_text(node: nodes.Node | None) -> bool:
    """Return whether ``node`` is certainly a string: a literal, a concatenation, or the result of a string filter."""
    if isinstance(node, nodes.Filter):
        return node.name in ("trim", "string", "tojson", "join", "lower", "upper", "replace")
    return isinstance(node, nodes.Concat) or (isinstance(node, nodes.Const) and isinstance(node.value, str))


def _prints_alike(node: nodes.Node | None) -> bool:
    """Return whether ``node`` is certainly a string or a number, which hf.js converts to a string as well."""
    arithmetic = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.Neg)
    counted = isinstance(node, nodes.Filter) and node.name in ("length", "count", "int", "float", "abs")
    number = isinstance(node, nodes.Const) and isinstance(node.value, (int, float))
    return _is_text(node) or isinstance(node, arithmetic) or counted or number


@rule("ST304", "test", "info", "a test that not every engine has", PORTABLE)
def tests(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Test):
        if node.name in TESTS:
            yield breaks(f"the test {node.name!r}", TESTS[node.name], node.lineno, node.name)


@rule("ST305", "function", "error", "a function that not every engine has", PORTABLE)
def functions(subject: Subject) -> Iterator[Found]:
    for call in subject.all(nodes.Call):
        name = call.node.name if isinstance(call.node, nodes.Name) else ""
        if name in CALLS:
            yield breaks(f"{name}()", CALLS[name], call.lineno, name)


@rule("ST306", "statement", "error", "a statement that not every engine has", PORTABLE)
def statements(subject: Subject) -> Iterator[Found]:
    for kind, (what, engines) in STATEMENTS.items():
        for node in subject.all(kind):
            yield breaks(what, engines, node.lineno)
    for node in subject.all(nodes.For):
        if node.recursive:
            yield breaks("a recursive loop", (LLAMA, HFJS), node.lineno, "recursive")
    for node in subject.all(nodes.Compare):
        if len(node.ops) > 1:
            yield breaks("a chained comparison", (LLAMA, HFJS), node.lineno)
    for node in subject.all(nodes.Mod):
        if _is_text(node.left):
            yield breaks("formatting with %", (MINIJINJA, LLAMA, HFJS), node.lineno, "%")
    for node in subject.all(nodes.Getattr):
        if node.attr in LOOP_ATTRIBUTES and isinstance(node.node, nodes.Name) and node.node.name == "loop":
            yield breaks(f"loop.{node.attr}", LOOP_ATTRIBUTES[node.attr], node.lineno, node.attr)


@rule(
    "ST313", "lost-output", "error", "continue or break after output, which some engines lose",
    "print after the decision, or use if and else",
)  # fmt: skip
def lost_output(subject: Subject) -> Iterator[Found]:
    """Find ``continue`` and ``break`` after output: llama.cpp drops the output of the enclosing blocks since the loop's
    body began, hf.js the output of the whole iteration."""
    for loop in subject.all(nodes.For):
        yield from _leaving(loop.body, printed=False, printed_inside=False, nested=False)


def _leaving(statements: Sequence[nodes.Node], *, printed: bool, printed_inside: bool, nested: bool) -> Iterator[Found]:
    """``printed``: whether this iteration may have printed before; ``printed_inside``: in an inner block."""
    for statement in statements:
        if isinstance(statement, (nodes.Continue, nodes.Break)):
            word = type(statement).__name__.lower()
            if printed:
                engines = (LLAMA, HFJS) if printed_inside else (HFJS,)
                yield breaks(
                    f"{word} after output in the same {'block' if printed_inside else 'loop'}",
                    engines,
                    statement.lineno,
                    word,
                )
        elif isinstance(statement, nodes.If):
            for branch in (statement.body, *(part.body for part in statement.elif_), statement.else_):
                yield from _leaving(branch, printed=printed, printed_inside=printed_inside, nested=True)
        if _may_print(statement):
            printed = True
            printed_inside = printed_inside or nested


def _may_print(statement: nodes.Node) -> bool:
    outputs = [statement] if isinstance(statement, nodes.Output) else statement.find_all(nodes.Output)
    return any(not _prints_nothing(node) for output in outputs for node in output.nodes)


def _prints_nothing(node: nodes.Node) -> bool:
    """Return whether an output statement prints nothing: empty, or the call that refuses the conversation."""
    raises = isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "raise_exception"
    return raises or (isinstance(node, nodes.TemplateData) and not node.data)


@rule("ST307", "written-form", "error", "a form that not every engine reads", PORTABLE)
def written(subject: Subject) -> Iterator[Found]:
    """Find constructs that are visible only in the source: raw blocks, escapes in literals, the generation block."""
    for line, kind, text in subject.tokens:
        if kind == "raw_begin":
            yield breaks("a raw block", (LLAMA, HFJS), line, "raw")
        elif kind == "string" and _ESCAPE.search(text):
            yield breaks("an escape like \\x41 or \\u00e9", (LLAMA,), line, text)
        elif kind == "name" and text == "generation":
            yield breaks("the generation block", (MINIJINJA,), line, text)


@rule("ST308", "printed-constant", "error", "printing true or none", PORTABLE)
def printed_constants(subject: Subject) -> Iterator[Found]:
    for output in subject.all(nodes.Output):
        for node in output.nodes:
            if isinstance(node, nodes.Const) and node.value is None:
                yield breaks("printing none", (LLAMA, HFJS), node.lineno)
            elif isinstance(node, nodes.Const) and isinstance(node.value, bool):
                yield breaks(f"printing {str(node.value).lower()}", (HFJS,), node.lineno)


@rule(
    "ST309", "null-default", "info", "default() means something else for null on one engine",
    "test with `is defined` and `is none`",
)  # fmt: skip
def null_defaults(subject: Subject) -> Iterator[Found]:
    for node in subject.all(nodes.Filter):
        if (
            node.name in ("default", "d")
            and len(node.args) < 2
            and not node.kwargs
            and isinstance(node.node, nodes.Name)
        ):
            yield Found(
                f"default() replaces a null {node.node.name!r} on llama.cpp, and only a missing one elsewhere",
                node.lineno,
                node.name,
                engines=(LLAMA,),
            )


RULES = (
    methods,
    arguments,
    filters,
    tests,
    functions,
    statements,
    written,
    printed_constants,
    null_defaults,
    lost_output,
)
