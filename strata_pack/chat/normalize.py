"""Normalizes the messages of a client's request to the form that templates expect.

Pure functions: nothing is changed in place and there is no I/O. Texts that a template prints verbatim (of users and
tools) are unchanged; content in a form that templates do not accept, or at a place where they do not look for it, is
converted or moved. A conversation that cannot be normalized is left unchanged, so that the template refuses it with its
own message. Results of parallel calls are sorted in the order of their calls: a prompt has no ids, so only the order
tells the model which result belongs to which call.

A server that ends a history with the assistant's unfinished turn and lets the model continue it must say so
(``continues``): that turn is not repaired. llama-server's own chat endpoint does not render such a turn at all; it
appends it to the prompt, and the template never sees it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_pack.chat.repair.rules import QWEN, CallForm, one_thinking, split_stranded
from strata_pack.parsing import Dialect

ROLES: Mapping[str, str] = {"developer": "system", "function": "tool"}
"""Roles that templates know by an older or newer name."""

TEXT_PARTS: Mapping[str, str] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Maps the types of text parts to the key of their text."""

THINKING_PARTS = ("thinking", "reasoning_text", "summary_text")
"""Types of content parts that are thinking; clients may send them in an assistant's content."""

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys in which clients send the thinking back; the first one with a text is used."""

UNREADABLE_ARGUMENTS = "arguments"
"""Name of the parameter that carries arguments which are not a JSON object, so that the model sees what it wrote."""

MAX_ARGUMENT_DEPTH = 200
"""Maximum nesting depth of arguments; equal to the limit for request bodies."""


def normalize_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    continues: bool = False,
    form: CallForm = "xml",
    dialect: Dialect = QWEN,
) -> list[dict[str, Any]]:
    """Return ``messages`` in the form that templates expect.

    ``continues``: the last message is an assistant's turn that the model will continue. ``form``: the format of this
    model's calls, ``dialect``: its tags.
    """
    last = len(messages) - 1
    normal = [
        _message(message, continued=continues and number == last, form=form, dialect=dialect)
        for number, message in enumerate(messages)
    ]
    return _results_in_order(normal)


def _message(message: Mapping[str, Any], *, continued: bool, form: CallForm, dialect: Dialect) -> dict[str, Any]:
    role = message.get("role")
    fixed = {key: value for key, value in message.items() if key not in REASONING_KEYS}
    if isinstance(role, str):
        fixed["role"] = ROLES.get(role, role)
    if role != "assistant":
        fixed["content"] = _content(message.get("content"))
        return fixed
    thoughts, content = _without_thinking_parts(message.get("content"))
    fixed["content"] = _content(content)
    calls = _tool_calls(message)
    fixed.pop("function_call", None)
    fixed.pop("tool_calls", None)
    if calls:
        fixed["tool_calls"] = calls
    reasoning = next(filter(None, (*(_text(message.get(key)) for key in REASONING_KEYS), thoughts)), "")
    content = fixed["content"]
    if _is_all_text(content):
        movable = not calls and not continued
        split = _Split(movable=movable, form=form, dialect=dialect)
        reasoning, fixed["content"] = split.parted(reasoning, _text(content), content)
    if reasoning:
        fixed["reasoning_content"] = reasoning
    return fixed


# Content


def _content(content: Any) -> Any:
    """Return content as a string or a list of parts with their texts under ``text``; any other value is unchanged."""
    if content is None:
        return ""
    return [_part(part) for part in content] if isinstance(content, list) else content


def _part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    text = _text_of_part(part)
    return part if text is None else {"type": "text", "text": text}


def _text_of_part(part: Any) -> str | None:
    key = TEXT_PARTS.get(part.get("type", "text")) if isinstance(part, dict) else None
    text = part.get(key) if key is not None else None
    return text if isinstance(text, str) else None


def _is_all_text(content: Any) -> bool:
    return isinstance(content, str) or (
        isinstance(content, list) and all(_text_of_part(part) is not None for part in content)
    )


def _text(value: Any) -> str:
    """Return a string, or the concatenated texts of a list of text parts; "" for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(part if isinstance(part, str) else _text_of_part(part) or "" for part in value)
    return ""


# Thinking


def _without_thinking_parts(content: Any) -> tuple[str, Any]:
    """Return the text of the parts of ``content`` that are thinking, and the other parts."""
    if not isinstance(content, list):
        return "", content
    thoughts = [part for part in content if _is_thinking(part)]
    if not thoughts:
        return "", content
    texts = [_text(part.get(TEXT_PARTS[part["type"]])) for part in thoughts]
    return "".join(texts), [part for part in content if not _is_thinking(part)] or ""


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in THINKING_PARTS


@dataclass(frozen=True)
class _Split:
    """Separates thinking and answer of one message. ``movable``: a stranded call may be closed."""

    movable: bool
    form: CallForm
    dialect: Dialect

    def parted(self, reasoning: str, text: str, content: Any) -> tuple[str, Any]:
        """Return reasoning and content, with thinking moved out of the content and stranded calls closed.

        ``text`` is the text of ``content``, which is returned unchanged if nothing moves.
        """
        think_open, think_close = self.dialect.think_open, self.dialect.think_close
        reasoning, text_lf = self._line_ends(reasoning), self._line_ends(text)
        thought, opened = reasoning.strip(), text_lf.strip().removeprefix(think_open)
        if text_lf.strip().startswith(think_open):
            if not thought:
                return self._open_thinking(opened)
            if think_close not in opened and (parts := self._closed(one_thinking(thought, opened))) is not None:
                return parts
            inner, end, answer = opened.partition(think_close)
            if end and inner.strip() == thought:
                return reasoning, answer.strip()
        if (parts := self._closed(thought)) is not None:
            before, run = parts
            return before, "\n\n".join(part for part in (text_lf.strip(), run) if part)
        return reasoning, content if text_lf == text else text_lf

    def _open_thinking(self, hay: str) -> tuple[str, str]:
        """Return thinking and answer of a content that started with ``<think>`` (already removed).

        The border is a stranded run, else the end of the thinking; without either, all of it is thinking.
        """
        if (parts := self._closed(hay)) is not None:
            return parts
        reasoning, _, answer = hay.partition(self.dialect.think_close)
        return reasoning.removeprefix("\n"), answer.strip()

    def _closed(self, hay: str) -> tuple[str, str] | None:
        """Return the text before the stranded run, and the run, if the run starts inside the thinking.

        An end of the thinking inside the run is part of an argument.
        """
        parts = split_stranded(hay, self.form, self.dialect) if self.movable else None
        return None if parts is None or self.dialect.think_close in parts[0] else parts

    def _line_ends(self, text: str) -> str:
        """Return text with LF line ends if its calls are written with CRLF; a CRLF elsewhere is user data."""
        return text.replace("\r\n", "\n") if f"{self.dialect.call_open}\r\n" in text else text


# Tool calls


def _results_in_order(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``messages`` with the results after each assistant's turn sorted in the order of its calls."""
    ordered = list(messages)
    for number, message in enumerate(messages):
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not isinstance(calls, list) or len(calls) < 2:
            continue
        end = number + 1
        while end < len(messages) and messages[end].get("role") == "tool":
            end += 1
        ordered[number + 1 : end] = _in_order_of(calls, messages[number + 1 : end])
    return ordered


def _in_order_of(calls: list[Any], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``results`` sorted by the position of their call; the result of an unknown call keeps its position.

    If calls share an id or lack one, the order is unchanged.
    """
    ids = [call.get("id") if isinstance(call, dict) else None for call in calls]
    place = {one: number for number, one in enumerate(ids) if isinstance(one, str) and one}
    if len(place) < len(ids):
        return results
    known = [result for result in results if _call_of(result) in place]
    ordered = iter(sorted(known, key=lambda result: place[_call_of(result)]))
    return [next(ordered) if _call_of(result) in place else result for result in results]


def _call_of(result: Mapping[str, Any]) -> str:
    """Return the id of the call that ``result`` answers, "" if it names none."""
    identity = result.get("tool_call_id")
    return identity if isinstance(identity, str) else ""


def _tool_calls(message: Mapping[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    legacy = message.get("function_call")
    if not calls and isinstance(legacy, dict):
        calls = [legacy]
    return [_tool_call(one) for one in calls] if isinstance(calls, list) else []


def _tool_call(call: Any) -> Any:
    """Return a call in the function wrapper, with its arguments as an object; a call without a name is unchanged."""
    if not isinstance(call, dict):
        return call
    wrapped = call.get("function")
    fields = wrapped if isinstance(wrapped, dict) else call
    kept = {key: value for key, value in call.items() if key not in ("function", "name", "arguments")}
    function = {"arguments": _arguments(fields.get("arguments"))}
    if isinstance(fields.get("name"), str):
        function = {"name": fields["name"], **function}
    return {"type": "function", **kept, "function": function}


def _arguments(arguments: Any) -> dict[str, Any]:
    """Return arguments, which the API sends as JSON text, as an object.

    Text that is not JSON (truncated, for example) or too deeply nested for a template becomes one parameter's value.
    """
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            return {UNREADABLE_ARGUMENTS: arguments}
        if arguments.count("[") + arguments.count("{") > MAX_ARGUMENT_DEPTH and _is_deep(read):
            return {UNREADABLE_ARGUMENTS: arguments}
        arguments = read
    if arguments is None:
        return {}
    return arguments if isinstance(arguments, dict) else {UNREADABLE_ARGUMENTS: arguments}


def _is_deep(value: Any) -> bool:
    """Return whether a JSON value is nested deeper than ``MAX_ARGUMENT_DEPTH``."""
    level = [value]
    for _ in range(MAX_ARGUMENT_DEPTH):
        level = [inner for one in level for inner in _inside(one)]
    return any(isinstance(one, (dict, list)) for one in level)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
