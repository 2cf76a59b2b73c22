"""Limits the resources of one rendering: steps, characters of text, time.

Every operation with which a template can repeat or multiply data first charges the budget of the running rendering, so
a malicious template stops with ``LimitExceeded`` before the work is done, not after. Python cannot interrupt a single
call into C, so no single call may be large: ``weigh`` bounds the sizes of inputs and outputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from typing import Any

CLOCK_EVERY = 64
"""Steps between two checks of the clock."""

TEXT_PER_UNIT = 16
"""Characters with the weight of one element of a list."""

BITS_PER_UNIT = 8 * TEXT_PER_UNIT
"""Bits of a number with the weight of one element of a list."""

MAX_WEIGHT = 2 << 20
"""Maximum weight of a value that a template may build (elements, and units of text), in addition to the given
inputs."""

ELEMENT = 32
"""Characters charged for an element of a list or dict, because it may keep alive an object that is not counted
elsewhere."""

CONTAINER = 4
"""Elements charged for a list or dict itself."""

MAX_DEPTH = 2000
"""Maximum nesting depth; a list that contains itself is infinitely deep."""

LARGE = 1 << 16
"""Length of a text from which creating or reading it checks the clock."""

CONTAINERS: tuple[type, ...] = (list, tuple, dict, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))
"""The container types that printing, comparing and hashing traverse."""

SCALARS = (str, int, float, bool, bytes, type(None))


@dataclass(frozen=True)
class RenderLimits:
    """The limits of one template.

    ``source_bytes``: its size; ``nodes``: its statements and expressions (the largest published templates have 18 KB
    and 2,000). ``text_chars``: the length of a string, and so of the prompt. ``made_chars``: the total length of all
    strings that it creates. ``steps``: statements, loop iterations, calls. ``seconds``: processor time of the
    rendering thread, so that a busy machine refuses nothing.
    """

    source_bytes: int = 128 << 10
    nodes: int = 12_000
    text_chars: int = 16 << 20
    made_chars: int = 512 << 20
    steps: int = 10_000_000
    seconds: float = 10.0


class LimitExceeded(Exception):
    """A rendering would exceed a limit; the message says which."""


class _Weighed:
    """A container, its weight, and its depth."""

    __slots__ = ("depth", "total", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.total = 1
        self.depth = 1

    def add(self, child: _Weighed) -> None:
        self.total += child.total
        self.depth = max(self.depth, child.depth + 1)


class Budget:
    """The state of one rendering."""

    def __init__(self, limits: RenderLimits, given: Mapping[str, Any] | None = None) -> None:
        """``given`` are the caller's inputs; their weight is allowed in addition to ``MAX_WEIGHT``."""
        self.limits = limits
        self._given = given or {}
        self._deadline = time.thread_time() + limits.seconds
        self._steps = limits.steps
        self._made = limits.made_chars
        self._next_look = self._steps - CLOCK_EVERY
        self._weights: dict[int, _Weighed] = {}

    def step(self, count: int = 1) -> None:
        """Count ``count`` steps."""
        self._steps -= count
        if self._steps < 0:
            raise LimitExceeded(f"takes more than {self.limits.steps} steps")
        if self._steps < self._next_look:
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        self._next_look = self._steps - CLOCK_EVERY
        if time.thread_time() > self._deadline:
            raise LimitExceeded(f"takes more than {self.limits.seconds:g} seconds of processor time")

    def text(self, chars: int) -> None:
        """Charge for a string of ``chars`` characters, before it is created."""
        if chars > self.limits.text_chars:
            raise LimitExceeded(f"makes a text of more than {self.limits.text_chars} characters")
        self._make(chars)

    def _make(self, chars: int) -> None:
        self._made -= chars
        if self._made < 0:
            raise LimitExceeded(f"makes more than {self.limits.made_chars} characters of text")
        if chars > LARGE:
            self._look_at_the_clock()

    def read(self, chars: int) -> None:
        """Charge for reading or creating ``chars`` characters."""
        if chars > LARGE:
            self._look_at_the_clock()

    def elements(self, count: int) -> None:
        """Charge for a list of ``count`` elements, before it is created."""
        if count > MAX_WEIGHT:
            raise LimitExceeded(f"makes a list of more than {MAX_WEIGHT} elements")
        self._make((count + CONTAINER) * ELEMENT)

    def copies(self, value: Any) -> None:
        """Charge for ``value``, which is created, or of which a copy or a part is created."""
        if isinstance(value, (str, bytes)):
            self._make(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.elements(len(value))

    def weigh(self, value: Any) -> int:
        """Return the weight of ``value`` as a tree; a shared part counts at each place.

        Printing, comparing, hashing and ``tojson`` traverse this tree, so a value that is small in memory but huge as a
        tree (lists of the same list, ten levels deep) must be refused. Values are immutable in the sandbox, so weights
        are cached per rendering.
        """
        if isinstance(value, str):
            return 1 + len(value) // TEXT_PER_UNIT
        if not isinstance(value, CONTAINERS):
            return _leaf(value)
        known = self._weights.get(id(value))
        return (known or self._weigh_tree(value)).total

    def _weigh_tree(self, root: Any) -> _Weighed:
        """Compute the weight of a tree of containers without recursion, children before parents."""
        weights = self._weights
        stack: list[tuple[_Weighed, Iterator[Any]]] = [(_Weighed(root), _children(root))]
        while True:
            node, rest = stack[-1]
            for child in rest:
                if isinstance(child, str):
                    node.total += 1 + len(child) // TEXT_PER_UNIT
                elif not isinstance(child, CONTAINERS):
                    node.total += _leaf(child)
                elif (known := weights.get(id(child))) is not None:
                    node.add(known)
                else:
                    stack.append((_Weighed(child), _children(child)))
                    break
            else:
                self.step(1 + len(node.value) // TEXT_PER_UNIT)
                weights[id(node.value)] = node
                stack.pop()
                if not stack:
                    return node
                stack[-1][0].add(node)
            if len(stack) > MAX_DEPTH or node.depth > MAX_DEPTH:
                raise LimitExceeded(f"meets a value nested deeper than {MAX_DEPTH} levels")

    def walk(self, *values: Any) -> None:
        """Charge for one traversal of ``values``."""
        for value in values:
            if not isinstance(value, SCALARS):
                weight = self.weigh(value)
                if weight > MAX_WEIGHT and weight > MAX_WEIGHT + sum(map(self.weigh, self._given.values())):
                    raise LimitExceeded("builds a value that is too large to print or compare")
                self.step(1 + weight // TEXT_PER_UNIT)


def _leaf(value: Any) -> int:
    """Return the weight of a value that is neither a string nor a container: a number may have millions of bits."""
    return 1 + value.bit_length() // BITS_PER_UNIT if isinstance(value, int) else 1


def _children(value: Any) -> Iterator[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else iter(value)


_current: ContextVar[Budget] = ContextVar("budget of the running rendering")


class Spending:
    """Make ``budget`` the current budget inside the block."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def __enter__(self) -> None:
        self._token = _current.set(self._budget)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


current = _current.get
"""Return the budget of the running rendering."""


def total_chars(values: Iterable[Any]) -> int:
    """Return the number of characters of ``values`` when printed (for containers, an upper estimate)."""
    budget = current()
    chars = 0
    for value in values:
        budget.step()
        chars += printed_chars(value)
    return chars


def printed_chars(value: Any) -> int:
    """Return the approximate length of ``str(value)`` without creating it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 2
    if isinstance(value, SCALARS):
        return 24
    budget = current()
    budget.walk(value)
    return budget.weigh(value) * TEXT_PER_UNIT


def counted(values: Iterable[Any]) -> list[Any]:
    """Return the elements of an iterator, charging one step for each."""
    items: list[Any] = []
    budget = current()
    for item in values:
        budget.step()
        items.append(item)
    return items
