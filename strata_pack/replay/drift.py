"""Counts the calls in a text that are not in canonical form."""

from __future__ import annotations

import re

_XML = re.compile(
    r"<tool_call>\n<function=[^<>\n]+>\n(?:<parameter=[^<>\n]+>\n.*?\n</parameter>\n)*</function>\n</tool_call>", re.S
)
_JSON = re.compile(r"<tool_call>\n\{.*?\}\n</tool_call>", re.S)


def drifted_calls(text: str, calls: int) -> int:
    """Return how many of the ``calls`` parsed from ``text`` are not in canonical form.

    The canonical forms are those of section 1 of the output grammar: the XML form with every tag on a separate line,
    and the JSON form.
    """
    return max(calls - len(_XML.findall(text)) - len(_JSON.findall(text)), 0) if calls else 0
