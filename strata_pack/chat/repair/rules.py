"""Implements the history repair in Python, as the reference for the prompts of a repaired template.

A *stranded run* is one or more complete tool calls at the end of an assistant's open thinking, outside any code fence,
with only blank lines between and after them. ``heal`` moves it out of the thinking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from strata_pack.parsing import DIALECTS, Dialect
from strata_pack.parsing.dialect import THINK_CLOSE, THINK_OPEN

CallForm = Literal["xml", "json"]

BODY_START: Mapping[CallForm, str] = {"xml": "<function=", "json": "{"}
"""The required start of the line after ``<tool_call>``."""

FENCES = ("```", "~~~")
QWEN = DIALECTS["qwen"]

Message = Mapping[str, Any]


def split_stranded(hay: str, form: CallForm, dialect: Dialect = QWEN) -> tuple[str, str] | None:
    """Return the text before the stranded run at the end of ``hay``, trimmed, and the run; ``None`` if there is none.

    ``dialect``: the tags of the model's calls.
    """
    lines = hay.split("\n")
    start: int | None = None
    depth = 0
    fence = ""
    for index, line in enumerate(lines):
        opens = index + 1 < len(lines) and _opens_call(line, lines[index + 1], form, dialect)
        bare = line.lstrip(" \t")
        if depth:
            depth += 1 if opens else -1 if line == dialect.call_close else 0
        elif fence:
            fence = "" if bare.startswith(fence) else fence
        elif opens:
            start = index if start is None else start
            depth = 1
        elif line.strip():
            start = None
            fence = next((mark for mark in FENCES if bare.startswith(mark)), "")
    if start is None or depth:
        return None
    return "\n".join(lines[:start]).strip(), "\n".join(lines[start:])


def _opens_call(line: str, following: str, form: CallForm, dialect: Dialect) -> bool:
    """Return whether a line, together with the following one, opens a call."""
    if form == "json":
        return line == dialect.call_open and following.startswith(BODY_START[form])
    if dialect.function_open:
        return line == dialect.call_open and following.startswith(dialect.function_open)
    # The function's name directly follows the opener; the next line has its first parameter or its end.
    return line.startswith(dialect.call_open) and following.startswith((dialect.parameter_open, dialect.call_close))


def heal(message: Message, form: CallForm) -> Message:
    """Return ``message`` with a stranded run moved out of its thinking, or ``message`` itself if there is none.

    A message whose content is not only text is unchanged, because a template may drop the text next to media. Do not
    call this for a message that is being continued, which is never repaired.
    """
    if message.get("role") != "assistant" or message.get("tool_calls"):
        return message
    reasoning = message.get("reasoning_content")
    thinking = reasoning.strip() if isinstance(reasoning, str) else ""
    text = plain_text(message.get("content"))
    if text is None:
        return message
    hay = thinking
    if text.startswith(THINK_OPEN) and (not thinking or THINK_CLOSE not in text):
        hay, text = one_thinking(thinking, text[len(THINK_OPEN) :]), ""
    found = None if THINK_CLOSE in hay else split_stranded(hay, form)
    if found is None:
        return message
    before, call = found
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "reasoning_content": before, "content": f"{text}\n\n{call}" if text else call}


def one_thinking(reasoning: str, opened: str) -> str:
    """Return the thinking of a turn that has it in ``reasoning_content`` (trimmed) and in its content after an open tag
    (``opened``): both concatenated, or only one if they are equal."""
    if not reasoning:
        return opened
    inner = opened.strip()
    return inner if inner.startswith(reasoning) else f"{reasoning}\n\n{inner}"


def plain_text(content: Any) -> str | None:
    """Return the trimmed text of a content value, or ``None`` if it contains anything but text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list) and all(_is_text(part) for part in content):
        return "".join(part["text"] for part in content).strip()
    return None


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and isinstance(part.get("text"), str)
        and part.get("type", "text") == "text"
        and not {"image", "image_url", "video"} & part.keys()
    )


def is_continued(messages: list[Any], variables: Mapping[str, Any], index: int) -> bool:
    """Return whether the generation continues message ``index``."""
    return index == len(messages) - 1 and bool(variables.get("continue_final_message"))


def heal_conversation(messages: list[Any], form: CallForm, variables: Mapping[str, Any]) -> list[Any]:
    """Return ``messages`` with every stranded run moved out of its thinking; ``variables`` are the template's."""
    return [
        message if not isinstance(message, Mapping) or is_continued(messages, variables, index) else heal(message, form)
        for index, message in enumerate(messages)
    ]
