"""Loads the scenarios' data: JSON files in this folder, with placeholders for calls.

A text may contain ``{{call N}}`` (the case's N-th call in the family's format), ``{{call N|PREFIX}}`` (each of its
lines after PREFIX), ``{{other N}}`` (in the other format) and ``{{opening N}}`` (its truncated beginning).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

Form = Literal["xml", "json"]

Call = Mapping[str, Any]
"""``name`` and ``arguments`` (an object)."""

_PLACE = re.compile(r"\{\{(call|other|opening) (\d+)(?:\|([^}]*))?\}\}")
_OTHER: Mapping[Form, Form] = {"xml": "json", "json": "xml"}


def form_of(template: str) -> Form:
    """Return the format in which the template writes calls."""
    return "xml" if "<function=" in template or '"arguments"' not in template else "json"


def read_text(name: str) -> str:
    """Return the text of a data file of this package."""
    return resources.files("strata_pack.smoke").joinpath("data").joinpath(name).read_text(encoding="utf-8")


@cache
def read(name: str) -> Any:
    """Return the value of a JSON data file of this package. Do not change it: it is cached."""
    return json.loads(read_text(f"{name}.json"))


def call_text(call: Call, form: Form) -> str:
    """Return ``call`` as generated text in this format, from its opening to its closing tag."""
    if form == "json":
        body = json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
        return f"<tool_call>\n{body}\n</tool_call>"
    lines = [
        f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for name, value in call["arguments"].items()
    ]
    return f"<tool_call>\n<function={call['name']}>\n{''.join(lines)}</function>\n</tool_call>"


def _opening(call: Call, form: Form) -> str:
    """Return the call, truncated in the middle of its first value."""
    whole = call_text(call, form)
    value = str(next(iter(call["arguments"].values())))
    return whole[: whole.index(value) + len(value)]


def fill(text: str, calls: Sequence[Call], form: Form) -> str:
    """Return ``text`` with its placeholders replaced by ``calls`` in the format ``form``."""

    def piece(match: re.Match[str]) -> str:
        kind, number, prefix = match.group(1), int(match.group(2)), match.group(3)
        if kind == "opening":
            return _opening(calls[number], form)
        whole = call_text(calls[number], form if kind == "call" else _OTHER[form])
        return whole if prefix is None else "\n".join(prefix + line for line in whole.split("\n"))

    return _PLACE.sub(piece, text)


def fill_messages(messages: Sequence[Mapping[str, Any]], calls: Sequence[Call], form: Form) -> list[dict[str, Any]]:
    """Return ``messages`` with the placeholders of every text replaced."""
    return [
        {key: fill(value, calls, form) if isinstance(value, str) else value for key, value in message.items()}
        for message in messages
    ]


@dataclass(frozen=True)
class ReplayCase:
    """One reply to replay: the text that the model is forced to write after ``user``, and what the client must get."""

    id: str
    what: str
    user: str
    text: str
    reasoning: str
    content: str
    calls: tuple[Call, ...]

    def expected(self) -> dict[str, Any]:
        """Return what the client must get, as JSON."""
        return {"reasoning": self.reasoning, "content": self.content, "calls": list(self.calls)}


def _replay(case: Mapping[str, Any], user: str, calls: Sequence[Call], form: Form) -> ReplayCase:
    expect = case["expect"]
    return ReplayCase(
        id=case["id"],
        what=case["what"],
        user=user,
        text=fill(case["text"], calls, form),
        reasoning=fill(expect["reasoning"], calls, form),
        content=fill(expect["content"], calls, form),
        calls=tuple(calls[number] for number in expect.get("calls", ())),
    )


def failures(form: Form) -> list[ReplayCase]:
    """Return the four known forms in which calls were lost."""
    return [_replay(case, case["user"], case["calls"], form) for case in read("failures")]


def mentions(form: Form) -> list[ReplayCase]:
    """Return the ten controls: text about calls that contains no call."""
    data = read("mentions")
    return [_replay(case, data["user"], data["calls"], form) for case in data["cases"]]
