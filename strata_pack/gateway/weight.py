"""How large a JSON value is, told before the work on it begins and at a cost that does not grow with it."""

from __future__ import annotations

from typing import Any

from strata_pack.gateway.aside import LARGE

PER_VALUE = 32
"""What a value weighs beside its characters."""


def weight(*values: Any) -> int:
    """Return about how many characters JSON has; what is large (``aside.LARGE``) is not looked at to its end."""
    found = 0
    waiting: list[Any] = [values]
    while waiting and found <= LARGE:
        one = waiting.pop()
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, (dict, list, tuple)):
            found += PER_VALUE * len(one)
            if found <= LARGE:
                waiting += (*one, *one.values()) if isinstance(one, dict) else one
    return found
