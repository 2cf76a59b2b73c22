"""Chooses a type for each tensor with the least total cost within a number of bytes.

Every tensor has options, each with its bytes and its cost. Only options on the lower convex hull of a tensor's bytes
and costs can be part of an optimal choice for some price of a byte (Everett, "Generalized Lagrange Multiplier Method",
1963). Steps along the hulls are taken in the order of saved cost per byte; the rest of the budget goes to the best step
that still fits, then to the next. One step of the largest tensor can be a tenth of the budget, and would be passed over
if the steps before it leave a little less: so each of its options is tried, with the best choice for the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Option(Generic[T]):
    """One way to store a tensor."""

    type: T
    nbytes: int
    cost: float


def hull(options: Sequence[Option[T]]) -> list[Option[T]]:
    """Return the options on the lower convex hull, smallest first: each is larger and costs less than the previous
    one."""
    best: list[Option[T]] = []
    for option in sorted(options, key=lambda one: (one.nbytes, one.cost)):
        if best and option.cost >= best[-1].cost:
            continue
        while len(best) > 1 and _gain(best[-2], best[-1]) <= _gain(best[-2], option):
            best.pop()
        best.append(option)
    return best


def _gain(small: Option[T], large: Option[T]) -> float:
    """Return the saved cost per byte from ``small`` to ``large``."""
    return (small.cost - large.cost) / max(large.nbytes - small.nbytes, 1)


def smallest(options: Mapping[str, Sequence[Option[T]]]) -> int:
    """Return the bytes of the smallest possible choice."""
    return sum(min(option.nbytes for option in some) for some in options.values())


def choose(options: Mapping[str, Sequence[Option[T]]], budget: int) -> dict[str, Option[T]]:
    """Return an option for every name, at most ``budget`` bytes in total; ``ValueError`` if even the smallest do not
    fit.

    The cost is within one step of the optimum; for options on their hulls it is the optimum for the bytes used.
    """
    if (least := smallest(options)) > budget:
        raise ValueError(f"the smallest choice takes {least} bytes")
    if not options:
        return {}
    largest = max(options, key=lambda name: max(option.nbytes for option in options[name]))
    others = {name: some for name, some in options.items() if name != largest}
    room = budget - smallest(others)
    tried = [_steps({**others, largest: [one]}, budget) for one in options[largest] if one.nbytes <= room]
    return min(tried, key=lambda chosen: sum(option.cost for option in chosen.values()))


def _steps(options: Mapping[str, Sequence[Option[T]]], budget: int) -> dict[str, Option[T]]:
    """Return the choice by steps along the hulls; the smallest options fit."""
    hulls = {name: hull(some) for name, some in options.items()}
    at = dict.fromkeys(hulls, 0)
    left = budget - sum(steps[0].nbytes for steps in hulls.values())
    waiting = [(-_gain(steps[0], steps[1]), name) for name, steps in hulls.items() if len(steps) > 1]
    heapq.heapify(waiting)
    while waiting:
        _, name = heapq.heappop(waiting)
        steps, place = hulls[name], at[name]
        more = steps[place + 1].nbytes - steps[place].nbytes
        if more > left:
            continue
        left -= more
        at[name] += 1
        if at[name] + 1 < len(steps):
            heapq.heappush(waiting, (-_gain(steps[at[name]], steps[at[name] + 1]), name))
    chosen = {name: hulls[name][place] for name, place in at.items()}
    return filled(chosen, options, left)


def next_step(
    chosen: Mapping[str, Option[T]], options: Mapping[str, Sequence[Option[T]]]
) -> tuple[str, Option[T], int] | None:
    """Return the change that lowers the cost for the fewest more bytes: the name, its option and the bytes."""
    steps = [
        (option.nbytes - chosen[name].nbytes, name, option)
        for name, some in options.items()
        for option in some
        if option.cost < chosen[name].cost
    ]
    if not steps:
        return None
    more, name, option = min(steps, key=lambda one: one[0])
    return name, option, more


def filled(chosen: dict[str, Option[T]], options: Mapping[str, Sequence[Option[T]]], left: int) -> dict[str, Option[T]]:
    """Spend ``left`` bytes on options that cost less, those that save most cost first, and return ``chosen``."""
    while True:
        better = [
            (chosen[name].cost - option.cost, name, option)
            for name, some in options.items()
            for option in some
            if option.cost < chosen[name].cost and option.nbytes - chosen[name].nbytes <= left
        ]
        if not better:
            return chosen
        _, name, option = max(better, key=lambda one: one[0])
        left -= option.nbytes - chosen[name].nbytes
        chosen[name] = option
