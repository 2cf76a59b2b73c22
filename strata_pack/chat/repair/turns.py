"""Defines the kinds of assistant turns for a proof: normal ones, controls that no repair may change, stranded ones that
it must close. They are data; ``TurnWriter`` turns them into messages in which every text has a unique number.

In the texts, ``{prose}``, ``{call}``, ``{n}`` ... are placeholders that ``TurnWriter`` replaces by new text each time.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strata_pack.chat.repair.rules import CallForm

IMAGE = {"type": "image", "image": "a.png"}


@dataclass(frozen=True)
class TurnKind:
    """One kind of assistant turn. ``content``: a string, a list of text or other parts, or None; ``reasoning``: its
    ``reasoning_content``, None if absent; ``declared``: the number of entries in ``tool_calls``."""

    content: str | list[str | Mapping[str, Any]] | None = ""
    reasoning: str | None = None
    declared: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


HEALTHY: Mapping[str, TurnKind] = {
    "an answer": TurnKind("Done, result {n}."),
    "an answer with thinking": TurnKind("Done, result {n}.", "{prose}"),
    "an answer with thinking and blank lines around": TurnKind("\n\nDone {n}.\n", "\n{prose}\n\n"),
    "an answer that holds its closed thinking": TurnKind("<think>\n{prose}\n</think>\n\nDone {n}."),
    "an empty answer": TurnKind("", "{prose}"),
    "an answer in parts": TurnKind(["Done {n}, ", "all of it."], "{prose}"),
    "a declared call": TurnKind("", "{prose}", 1),
    "a declared call with text": TurnKind("Reading {n}.", None, 1),
    "two declared calls": TurnKind("", "{prose}", 2),
    "a declared call and null content": TurnKind(None, "{prose}", 1),
    "a call in the content": TurnKind("{call}", "{prose}"),
}

CONTROLS: Mapping[str, TurnKind] = {
    "a call in backticks": TurnKind("", "{prose}\n`{call}`"),
    "a call that starts in mid-sentence": TurnKind("", "I would write {call}"),
    "an indented call": TurnKind("", "{prose}\n{indented}"),
    "a call whose tag is indented": TurnKind("", "{prose}\n  {call}"),
    "a call whose body is indented": TurnKind("", "{prose}\n{loose}"),
    "a quoted call": TurnKind("", "{prose}\n{quoted}"),
    "a call in a list item": TurnKind("", "- {call}"),
    "a fenced call": TurnKind("", "{prose}\n```\n{call}\n```"),
    "a call in a tilde fence": TurnKind("", "{prose}\n~~~xml\n{call}\n~~~"),
    "a call in a fence that stays open": TurnKind("", "{prose}\n```\n{call}"),
    "a call in a fence that the other mark does not close": TurnKind("", "```\n~~~\n{call}"),
    "a tag with another body": TurnKind("", "{prose}\n<tool_call>\n<other>{n}</other>\n</tool_call>"),
    "a tag with prose": TurnKind("", "{prose}\n<tool_call>\nlike this {n}\n</tool_call>"),
    "a call followed by prose": TurnKind("", "{prose}\n{call}\nOr rather not."),
    "an unfinished call": TurnKind("", "{prose}\n{unfinished}"),
    "a stranded call beside a declared one": TurnKind("", "{prose}\n{call}", 1),
    "a stranded call beside an image": TurnKind([IMAGE], "{prose}\n{call}"),
    "thinking that closes itself": TurnKind("", "{prose}\n</think>\n\n{call}"),
    "closed thinking in the content": TurnKind("<think>\n{prose}\n</think>\n\n{call}"),
    "text before the thinking in the content": TurnKind("So: <think>\n{prose}\n\n{call}"),
    "open thinking in the content without a call": TurnKind("<think>\n{prose}"),
    "open thinking in the content with a fenced call": TurnKind("<think>\n```\n{call}\n```"),
    "thinking and open thinking with a fenced call": TurnKind("<think>\n```\n{call}\n```", "{prose}"),
    "thinking and open thinking without a call": TurnKind("<think>\n{prose}", "{prose}"),
    "a stranded call before open thinking": TurnKind("<think>\n{prose}", "{prose}\n{call}"),
}

FENCED = frozenset({"a fenced call", "a call in a tilde fence", "a call in a fence that stays open"})
"""The controls whose thinking quotes a call inside a code fence."""

STRANDED: Mapping[str, TurnKind] = {
    "B": TurnKind("", "{prose}\n\n{call}"),
    "B one newline": TurnKind("", "{prose}\n{call}"),
    "B nothing else": TurnKind("", "{call}"),
    "B white space after": TurnKind("", "{prose}\n\n{call}\n\n  \n"),
    "B null content": TurnKind(None, "{prose}\n\n{call}"),
    "B with content": TurnKind("Answer {n}.\n", "{prose}\n\n{call}"),
    "B with content in a part": TurnKind(["Answer {n}. "], "{prose}\n\n{call}"),
    "B no tool_calls": TurnKind("", "{prose}\n\n{call}", extra={"tool_calls": []}),
    "B null tool_calls": TurnKind("", "{prose}\n\n{call}", extra={"tool_calls": None}),
    "B with a name": TurnKind("", "{prose}\n\n{call}", extra={"name": "coder"}),
    "B two calls": TurnKind("", "{prose}\n\n{call}\n\n{call}"),
    "B after a mention": TurnKind("", "{call}\nis how.\n```\n{call}\n```\n{prose}\n{call}"),
    "B a fence in the argument": TurnKind("", "{prose}\n{fence}"),
    "A": TurnKind("<think>\n{prose}\n\n{call}"),
    "A on the line of the tag": TurnKind("<think>{prose}\n{call}"),
    "A nothing else": TurnKind("<think>\n{call}"),
    "A blank lines around": TurnKind("\n<think>\n\n{prose}\n\n{call}\n\n"),
    "A empty reasoning": TurnKind("<think>\n{prose}\n\n{call}", ""),
    "A after thinking of its own": TurnKind("<think>\n{prose}\n\n{call}", "{prose}"),
    "A after thinking without prose": TurnKind("<think>\n{call}", "{prose}"),
    "A sent in both places": TurnKind("<think>\nSee {same}.\n\n{call}", "See {same}."),
    "A in a part": TurnKind(["<think>\n{prose}\n\n{call}"]),
    "A two calls": TurnKind("<think>\n{prose}\n\n{call}\n{call}"),
}

KINDS: Mapping[str, TurnKind] = {**HEALTHY, **CONTROLS, **STRANDED}

OTHERS: Mapping[str, tuple[str, str]] = {
    "system": ("system", "You are tester {n}."),
    "user": ("user", "Please do task {n}, über alles."),
    "tool": ("tool", "int part_{n}; // <b>&amp;</b>"),
    "user like a model": ("user", "<think>\n{prose}\n\n{call}"),
    "tool like a model": ("tool", "<think>\n{prose}\n\n{call}"),
}
"""The messages that are not under test, by name: role and text. No repair may change them."""

_FIELD = re.compile(r"\{(\w+)\}")


class TurnWriter:
    """Writes the messages of one conversation whose calls have the format ``form``."""

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._numbers = itertools.count(1)

    def message(self, name: str) -> dict[str, Any]:
        """Return the message ``name`` of ``OTHERS``."""
        role, text = OTHERS[name]
        message = {"role": role, "content": self._fill(text)}
        return {**message, "tool_call_id": "call_1"} if role == "tool" else message

    def turn(self, kind: TurnKind) -> dict[str, Any]:
        """Return an assistant message of ``kind``."""
        turn: dict[str, Any] = {"role": "assistant", "content": self._content(kind.content)}
        if kind.reasoning is not None:
            turn["reasoning_content"] = self._fill(kind.reasoning)
        if kind.declared:
            turn["tool_calls"] = [self._declared() for _ in range(kind.declared)]
        return {**turn, **kind.extra}

    def _content(self, content: str | list[str | Mapping[str, Any]] | None) -> Any:
        if isinstance(content, list):
            return [{"type": "text", "text": self._fill(x)} if isinstance(x, str) else dict(x) for x in content]
        return None if content is None else self._fill(content)

    def _fill(self, text: str) -> str:
        return _FIELD.sub(lambda found: self._made(found[1]), text)

    def _made(self, name: str) -> str:
        number = f"{next(self._numbers):03d}"
        call = call_text(self._form, "read_file", {"path": f"src/file-{number}.c"})
        if name == "fence":
            arguments = {"path": f"/srv/ü {number}.md", "text": "```sh\nls <dir> && cd .."}
            return call_text(self._form, "write_file", arguments)
        return {
            "n": number,
            "same": "what is there",
            "prose": f"I need step {number} first.\nLet me — “look” – at it.",
            "call": call,
            "indented": _each_line(call, "    "),
            "loose": call.replace("\n", "\n  ", 1),
            "quoted": _each_line(call, "> "),
            "unfinished": call.removesuffix("</tool_call>"),
        }[name]

    def _declared(self) -> dict[str, Any]:
        function = {"name": "read_file", "arguments": {"path": f"lib/part-{self._fill('{n}')}.h"}}
        return {"type": "function", "id": f"call_{self._fill('{n}')}", "function": function}


def call_text(form: CallForm, name: str, arguments: Mapping[str, str]) -> str:
    """Return a tool call as generated text in the format ``form``."""
    if form == "json":
        body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    else:
        pairs = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        body = f"<function={name}>\n{pairs}</function>"
    return f"<tool_call>\n{body}\n</tool_call>"


def _each_line(text: str, mark: str) -> str:
    return "\n".join(mark + line for line in text.split("\n"))
