"""Records every literal, number and date that a template's conditions test while it renders.

The syntax tree is instrumented before it is compiled: comparisons, slices and conditions call the environment, which
records the operands. The template's output does not change, and the sandbox with its limits applies.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import BuiltinMethodType, FrameType, MethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import Frame
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from strata_pack.chat.render.budget import RenderLimits
from strata_pack.chat.render.compiler import CountingCode
from strata_pack.chat.render.functions import check_strftime
from strata_pack.chat.render.sandbox import (
    TEMPLATE_FILE,
    SandboxEnvironment,
    build_environment,
    compile_template,
    render_compiled,
)

LONGEST_LITERAL = 400
LARGEST_NUMBER = 20_000
MOST_ITEMS = 200
LARGEST_STEP = 8

MARK = "zq"
"""A mark in every text of the search, so that these texts are not taken for literals of the template."""

INPUT_KEYS = frozenset(
    {
        *("role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "id", "tool_call_id"),
        *("reasoning_content", "description", "parameters", "properties", "required"),
    }
)
"""The keys of the conversations: that a template reads them is not evidence."""

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


class Cut(str):
    """A slice of a text, with its start in that text (negative: from the end)."""

    __slots__ = ("start",)
    start: int


def cut(text: str, start: int) -> Cut:
    """Return ``text`` with the position of the slice."""
    part = Cut(text)
    part.start = start
    return part


@dataclass
class Seen:
    """What one rendering tested, each with the line of the compiled code: ``texts``, ``numbers``, ``separators`` (of
    ``split``), ``cuts`` (position and literal). ``reached`` are the numbers of the branches that ran;
    ``turned_round`` says whether a text was reversed, ``steps`` are the steps above 1 of slices of texts."""

    texts: dict[str, int] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    separators: dict[str, int] = field(default_factory=dict)
    cuts: dict[tuple[int, str], int] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    asked_the_time: bool = False
    turned_round: bool = False
    steps: set[int] = field(default_factory=set)

    def note(self, value: Any) -> None:
        """Record the texts and numbers in ``value``, except those of the search itself (and single characters: a
        template that iterates over a text reads each of them)."""
        if isinstance(value, (bool, Cut)):
            return
        if isinstance(value, str):
            if 1 < len(value) <= LONGEST_LITERAL and MARK not in value.lower():
                self.texts.setdefault(str(value), _line())
        elif isinstance(value, int):
            if 0 <= value <= LARGEST_NUMBER:
                self.numbers.setdefault(value, _line())
        elif isinstance(value, (list, tuple)):
            self._note_all(value)
            if value and all(isinstance(one, str) for one in value):
                for joined in ("".join(value), " ".join(value)):
                    self.note(joined)
        elif isinstance(value, dict):
            self._note_all(key for key in value if key not in INPUT_KEYS)

    def _note_all(self, values: Iterable[Any]) -> None:
        for index, value in enumerate(values):
            if index >= MOST_ITEMS:
                return
            if isinstance(value, (str, int)):
                self.note(value)


def _line() -> int:
    """Return the line of the compiled template that is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == TEMPLATE_FILE:
            return frame.f_lineno
        frame = frame.f_back
    return 0


class RecordingEnvironment(SandboxEnvironment):
    """The environment whose methods the compiled code calls. ``seen`` collects the records, ``forced`` are the
    branches to take, ``now`` is the time: a date, or the string that ``strftime_now`` returns."""

    seen: Seen
    forced: Mapping[int, bool]
    now: datetime | str

    def compared(self, left: Any, *rest: Any) -> bool:
        """Evaluate and record a comparison; ``rest`` are alternating operators and operands."""
        for name, right in zip(rest[::2], rest[1::2], strict=True):
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Cut) and isinstance(other, str) and MARK not in other.lower():
                    self.seen.cuts.setdefault((one.start, str(other)), _line())
            self.seen.note(left)
            self.seen.note(right)
            if not COMPARISONS[name](self.walked(left), self.walked(right)):
                return False
            left = right
        return True

    def decided(self, branch: int, value: Any) -> Any:
        """Return the value of a condition, or the forced one."""
        return self.forced.get(branch, value)

    def reached(self, branch: int) -> str:
        """Record that a branch runs."""
        self.seen.reached.add(branch)
        return ""

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Return a slice of a text, list or tuple, and record its position."""
        for bound in (start, stop):
            self.seen.note(abs(bound) if isinstance(bound, int) else bound)
        self._note_own(value)
        result = self.made(value)[start:stop:step]
        if isinstance(value, str) and isinstance(step, int):
            self.seen.turned_round |= step < 0
            if 1 < step <= LARGEST_STEP:
                self.seen.steps.add(step)
        return cut(result, start or 0) if isinstance(result, str) and step in (None, 1) else result

    def getitem(self, obj: Any, argument: Any) -> Any:
        result = super().getitem(obj, argument)
        if isinstance(obj, str) and isinstance(argument, int) and isinstance(result, str):
            self._note_own(obj)
            return cut(result, argument)
        if isinstance(obj, (dict, list, tuple)) and not isinstance(argument, slice):
            self.seen.note(obj if isinstance(obj, dict) and argument not in obj else None)
            self.seen.note(argument if isinstance(obj, (list, tuple)) else None)
        return result

    def _note_own(self, value: Any) -> None:
        if isinstance(value, str):
            self.seen.note(value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, (BuiltinMethodType, MethodType)) and isinstance(owner, (str, dict)):
            __self.seen.note(owner)
            for value in args:
                __self.seen.note(value)
            if __obj.__name__ in ("split", "rsplit", "partition", "rpartition") and args and isinstance(args[0], str):
                __self.seen.separators.setdefault(args[0], _line())
        return super().call(__context, __obj, *args, **kwargs)

    def strftime_now(self, pattern: str) -> str:
        """Return the time of the check."""
        check_strftime(pattern)
        self.seen.asked_the_time = True
        return self.now if isinstance(self.now, str) else self.now.strftime(pattern)


def _recorded(
    environment: RecordingEnvironment, function: Callable[..., Any], *, all_of_it: bool
) -> Callable[..., Any]:
    """Return a filter or test that records its arguments and, with ``all_of_it``, the value it is applied to."""
    skipped = (1 if getattr(function, "jinja_pass_arg", None) is not None else 0) + (0 if all_of_it else 1)

    reverses = "reverse" in getattr(function, "__name__", "")

    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        for value in (*given[skipped:], *named.values()):
            environment.seen.note(value)
        if reverses and isinstance(given[-1], str):
            environment.seen.turned_round = True
        return function(*given, **named)

    return wrapper


class RecordingCode(CountingCode):
    """Compiles the nodes that ``_Instrumented`` inserts as plain calls of the environment's methods."""

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.ask(node.node.name, node.args, frame)
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)


class _Instrumented(NodeTransformer):
    """Makes comparisons, slices and conditions call the environment, and numbers every branch."""

    def __init__(self) -> None:
        self._count = 0

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        arguments: list[nodes.Expr] = [node.expr]
        for part in node.ops:
            arguments += [nodes.Const(part.op), part.expr]
        return _call("compared", arguments, node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = [bound or nodes.Const(None) for bound in (node.arg.start, node.arg.stop, node.arg.step)]
        return _call("sliced", [node.node, *bounds], node)

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        number = self._branch()
        node.test = _call("decided", [nodes.Const(number), node.test], node.test)
        node.body.insert(0, nodes.ExprStmt(_call("reached", [nodes.Const(number)], node), lineno=node.lineno))
        if node.else_:
            other = self._branch()
            node.else_.insert(0, nodes.ExprStmt(_call("reached", [nodes.Const(other)], node), lineno=node.lineno))
        return node

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:
        self.generic_visit(node)
        number = self._branch()
        reached = _call("reached", [nodes.Const(number)], node)
        node.test = _call("decided", [nodes.Const(number), node.test], node.test)
        # ``reached`` gives an empty text, so the value of the branch is that of the second operand.
        node.expr1 = nodes.Or(reached, node.expr1, lineno=node.lineno)
        return node

    def _branch(self) -> int:
        self._count += 1
        return self._count - 1


@dataclass(frozen=True)
class Branch:
    """A branch; its index in the list is its number in ``reached``. It runs if the condition ``test`` with the number
    ``decider`` is ``value``."""

    test: nodes.Node
    line: int
    decider: int
    value: bool


class _Numbered(NodeTransformer):
    """Lists the branches of the original tree in the order in which ``_Instrumented`` numbers them."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []

    def visit_If(self, node: nodes.If) -> nodes.Node:
        self.generic_visit(node)
        number = len(self.branches)
        self.branches.append(Branch(node.test, node.lineno, number, True))
        if node.else_:
            self.branches.append(Branch(node.test, getattr(node.else_[0], "lineno", node.lineno), number, False))
        return node

    def visit_CondExpr(self, node: nodes.CondExpr) -> nodes.Node:
        self.generic_visit(node)
        self.branches.append(Branch(node.test, node.lineno, len(self.branches), True))
        return node


def _call(name: str, arguments: list[Any], place: nodes.Node) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
    call.set_lineno(place.lineno)
    return call


class RecordedTemplate:
    """A template that records with each rendering what it tested. Raises ``TemplateError`` as ``ChatTemplate``."""

    def __init__(self, source: str, limits: RenderLimits) -> None:
        environment = build_environment(RecordingEnvironment, RecordingCode)
        filters: dict[str, Any] = environment.filters
        tests: dict[str, Any] = environment.tests
        for name, function in filters.items():
            filters[name] = _recorded(environment, function, all_of_it=name not in ("join", "tojson"))
        for name, function in tests.items():
            tests[name] = _recorded(environment, function, all_of_it=True)
        environment.globals["strftime_now"] = environment.strftime_now
        environment.seen, environment.forced, environment.now = Seen(), {}, datetime(2026, 6, 15, 12, 0, 0)
        self._environment = environment
        self._limits = limits
        instrumented = _Instrumented()

        def change(tree: nodes.Template) -> nodes.Template:
            changed: nodes.Template = instrumented.visit(tree)
            changed.set_environment(environment)
            return changed

        self._compiled: jinja2.Template = compile_template(source, limits, environment, change)
        self.tree: nodes.Template = environment.parse(source)
        numbered = _Numbered()
        numbered.visit(self.tree)
        self.branches = numbered.branches

    def render(
        self,
        inputs: Mapping[str, Any],
        *,
        forced: Mapping[int, bool] | None = None,
        now: datetime | str | None = None,
    ) -> tuple[str, Seen]:
        """Return the prompt for ``inputs`` and what was tested. Raises as ``ChatTemplate.render``."""
        environment = self._environment
        before = environment.now
        environment.seen, environment.forced, environment.now = Seen(), forced or {}, now or before
        values = {"documents": None, "add_generation_prompt": True, "bos_token": "", "eos_token": "", "tools": None}
        try:
            return render_compiled(self._compiled, {**values, **inputs}, self._limits), environment.seen
        finally:
            environment.now = before

    @property
    def last_seen(self) -> Seen:
        """What the last rendering tested, also if it failed."""
        return self._environment.seen

    def line(self, compiled: int | None) -> int | None:
        """Return the line of the template's text for a line of its compiled code."""
        return None if not compiled else self._compiled.get_corresponding_lineno(compiled)
