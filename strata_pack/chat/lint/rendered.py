"""Renders the standard conversations (``shapes.py``) and locates texts in the prompts."""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

from strata_pack.chat.lint.shapes import SHAPES, StandardShape
from strata_pack.chat.render.template import ChatTemplate, RenderLimits, TemplateError

LIMITS = RenderLimits(steps=300_000, seconds=2.0)
"""Limits of one rendering; the shapes are small."""

SECONDS = 20.0
"""Seconds of processor time after which no further shape is rendered."""

TakenForm = Literal["parts", "text"]

TAKEN_FORMS: tuple[tuple[TakenForm, tuple[str, ...], Callable[[StandardShape], StandardShape]], ...] = (
    ("parts", ("a question",), StandardShape.with_parts),
    ("text", ("a call", "a call and null"), StandardShape.with_text),
)
"""Input formats that some templates need, the shapes that reveal the need, and the function that converts a shape."""

TOKENS = {"bos_token": "<|zqbos|>", "eos_token": "<|zqeos|>"}

KEY = re.compile(r"(?:Zq|zq)\w+(?: \w+)?")
"""Matches the unique words at the beginning of each text of the shapes."""

JSON_TEXT = re.compile(r"[{\[]")
"""A text that a template may parse and print in another format."""


@dataclass(frozen=True)
class RenderedConversation:
    """A rendered shape: ``prompt``, and ``opened``, the prompt with the generation prompt.

    Both are empty if there is an ``error``.
    """

    shape: StandardShape
    prompt: str = ""
    opened: str = ""
    error: TemplateError | None = None


@dataclass(frozen=True)
class RenderedConversations:
    """Every rendered shape by name, in the input format that the template accepts.

    ``needs`` maps a format that the template needs, unlike usual servers, to the error with the usual format (``None``
    if the text was only lost): "text" for arguments as JSON text instead of objects, "parts" for contents as lists.
    """

    by_name: Mapping[str, RenderedConversation]
    needs: Mapping[TakenForm, TemplateError | None]

    @property
    def fine(self) -> list[RenderedConversation]:
        """The shapes that were rendered without an error."""
        return [one for one in self.by_name.values() if one.error is None]


def render_all(source: str) -> RenderedConversations:
    """Render every shape with ``source`` until the time is up; nothing if it does not compile."""
    try:
        template = ChatTemplate(source, limits=LIMITS)
    except TemplateError:
        return RenderedConversations({}, {})
    needs: dict[TakenForm, TemplateError | None] = {}
    changes: list[Callable[[StandardShape], StandardShape]] = []
    for form, names, change in TAKEN_FORMS:
        for shape in (shape for shape in SHAPES if shape.name in names):
            usual = render_shape(template, shape)
            if not _holds_all(usual) and _holds_all(render_shape(template, change(shape))):
                needs[form] = usual.error
                changes.append(change)
                break
    end = time.thread_time() + SECONDS
    conversations: dict[str, RenderedConversation] = {}
    for shape in SHAPES:
        if time.thread_time() > end:
            break
        given = shape
        for change in changes:
            given = change(given)
        conversations[shape.name] = render_shape(template, given)
    return RenderedConversations(conversations, needs)


def _holds_all(conversation: RenderedConversation) -> bool:
    return conversation.error is None and not any(
        piece.is_left_out(conversation.prompt) for piece in pieces(conversation.shape)
    )


def render_shape(template: ChatTemplate, shape: StandardShape, now: datetime | None = None) -> RenderedConversation:
    """Render one shape, at the time ``now`` if it is given."""
    clock: dict[str, Callable[[str], str]] = {} if now is None else {"strftime_now": now.strftime}
    try:
        prompt, opened = (_render(template, shape, opens, clock) for opens in (False, True))
    except TemplateError as error:
        return RenderedConversation(shape, error=error)
    return RenderedConversation(shape, prompt, opened)


def _render(template: ChatTemplate, shape: StandardShape, opens: bool, clock: Mapping[str, Any]) -> str:
    tools = None if shape.tools is None else list(shape.tools)
    return template.render(list(shape.messages), tools, add_generation_prompt=opens, **TOKENS, **clock)


@dataclass(frozen=True)
class PromptPiece:
    """A part of a conversation that the prompt must contain: a text of a message, or a value of a call's argument.

    ``role`` is that of the message, or "call"; ``message`` is its index.
    """

    role: str
    message: int
    text: str

    def place(self, prompt: str, start: int = 0) -> int:
        """Return its position in ``prompt`` from ``start`` on, -1 if it is missing."""
        places = [prompt.find(form, start) for form in spellings(self.text)]
        return min((place for place in places if place >= 0), default=-1)

    def is_cut(self, prompt: str) -> bool:
        """Return whether its first words are in the prompt, but one of its lines is not."""
        if self.is_left_out(prompt) or self.place(prompt) >= 0 or JSON_TEXT.match(self.text):
            return False
        lines = filter(None, map(str.strip, self.text.split("\n")))
        return any(all(form not in prompt for form in spellings(line)) for line in lines)

    def is_left_out(self, prompt: str) -> bool:
        """Return whether even its first words are missing."""
        key = KEY.search(self.text)
        return key is not None and key[0] not in prompt and self.place(prompt) < 0


def pieces(shape: StandardShape) -> Iterator[PromptPiece]:
    """Yield the parts of ``shape`` that its prompt must contain, in order."""
    for number, message in enumerate(shape.messages):
        content = message.get("content")
        texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content or ()]
        yield from (PromptPiece(message["role"], number, text.strip()) for text in texts if KEY.search(text))
        for call in message.get("tool_calls") or ():
            yield from (PromptPiece("call", number, text) for text in leaves(call["function"]["arguments"]))


def leaves(value: Any) -> Iterator[str]:
    """Yield the texts in a call's arguments."""
    if isinstance(value, str):
        try:
            inner = json.loads(value)
        except ValueError:
            inner = value
        yield from leaves(inner) if isinstance(inner, (dict, list)) else [value]
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)


@lru_cache(maxsize=4096)
def spellings(text: str) -> frozenset[str]:
    """Return the forms in which a template may print ``text``: unchanged, as JSON, as JSON in JSON, as HTML."""
    forms = {text}
    for ascii_only in (True, False):
        once = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        forms |= {once, json.dumps(once, ensure_ascii=ascii_only)[1:-1]}
    return frozenset({*forms, *(html.escape(form) for form in forms), *(html.escape(form, False) for form in forms)})
