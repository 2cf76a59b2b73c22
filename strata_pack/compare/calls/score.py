"""Compares a reply with the expected calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_pack.compare.calls.tasks import CallTask, ExpectedCall
from strata_pack.parsing import OutputParser
from strata_pack.replay.drift import drifted_calls

VERDICTS = ("right", "wrong arguments", "wrong name", "invalid", "missing", "needless")
"""The possible verdicts. ``invalid``: a call that its tool's schema rejects; ``missing``: too few calls;
``needless``: more calls than expected."""

Z = 1.96
"""Standard deviations of a 95 % confidence interval."""


@dataclass(frozen=True)
class CallScore:
    """One task's verdict. ``stranded``: a call was in the thinking; ``drifted``: a call was not in canonical form."""

    task: str
    kind: str
    verdict: str
    reply: str
    stranded: bool = False
    drifted: bool = False

    @property
    def right(self) -> bool:
        return self.verdict == "right"


@dataclass(frozen=True)
class Share:
    """A share of right results with Wilson's 95 % confidence interval. Source: E. B. Wilson, JASA 22 (1927),
    209-212."""

    right: int
    tasks: int

    @property
    def value(self) -> float:
        return self.right / self.tasks if self.tasks else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The bounds, from 0 to 1."""
        if not self.tasks:
            return 0.0, 1.0
        n, p = self.tasks, self.value
        middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
        half = Z / (1 + Z * Z / n) * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def to_dict(self) -> dict[str, Any]:
        low, high = self.interval
        return {"right": self.right, "tasks": self.tasks, "share": self.value, "low": low, "high": high}


def score_reply(
    task: CallTask, reply: str, tools: Sequence[Mapping[str, Any]], parser: OutputParser, finish_reason: str
) -> CallScore:
    """Score a model's ``reply`` (raw text including special tokens) with ``parser``, created for its prompt."""
    events = [*parser.feed(reply), *parser.finish(finish_reason)]
    calls = [event.call for event in events if event.kind == "tool_call" and event.call is not None]
    counters = parser.counters
    stranded = bool(counters.implicit_calls or counters.stranded_calls)
    found = [ExpectedCall(call.name, call.arguments) for call in calls]
    verdict = _verdict(task.calls, found, tools)
    return CallScore(task.id, task.kind, verdict, reply, stranded, drifted=drifted_calls(reply, len(calls)) > 0)


def _verdict(
    expected: Sequence[ExpectedCall], found: Sequence[ExpectedCall], tools: Sequence[Mapping[str, Any]]
) -> str:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    if len(found) > len(expected):
        return "needless"
    if len(found) < len(expected):
        return "missing"
    if sorted(call.name for call in found) != sorted(call.name for call in expected):
        return "wrong name"
    if any(problems(schemas[call.name], call.arguments) for call in found):
        return "invalid"
    left = list(found)
    for call in expected:
        match = next((one for one in left if one.name == call.name and _same(call.arguments, one.arguments)), None)
        if match is None:
            return "wrong arguments"
        left.remove(match)
    return "right"


def _same(expected: Any, found: Any) -> bool:
    """Return whether ``found`` equals ``expected``: numbers by value, texts without the white space around them."""
    if isinstance(expected, str):
        return isinstance(found, str) and expected.strip() == found.strip()
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and expected.keys() == found.keys()
            and all(_same(value, found[key]) for key, value in expected.items())
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(expected) == len(found) and all(map(_same, expected, found))
    return isinstance(expected, bool) is isinstance(found, bool) and bool(expected == found)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def problems(schema: Mapping[str, Any], value: Any) -> list[str]:
    """Return the problems of ``value``, for the part of JSON Schema that the tasks' tools use."""
    kind = str(schema.get("type"))
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return []
    if kind in _TYPES and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        return [f"{value!r} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{value!r} is none of {schema['enum']}"]
    found: list[str] = []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{name} is missing" for name in schema.get("required", ()) if name not in value]
        if schema.get("additionalProperties") is False:
            found += [f"{name} is unknown" for name in value if name not in known]
        for name in known.keys() & value.keys():
            found += problems(known[name], value[name])
    if isinstance(value, list) and "items" in schema:
        for inner in value:
            found += problems(schema["items"], inner)
    return found
