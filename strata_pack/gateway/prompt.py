"""Make a turn's prompt: normalize the messages, render the template, keep control tokens in users' texts plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import NoneType
from typing import Any, Literal

from strata_pack.chat.normalize import normalize_messages
from strata_pack.chat.render.template import ChatTemplate, TemplateError, TemplateRefused
from strata_pack.gateway.control_tokens import ControlTokens, choose_mark, private_characters, texts_in
from strata_pack.gateway.failures import ApiError, bad_request
from strata_pack.gateway.media import OWN_ROLES, MediaPart, settle_media
from strata_pack.gateway.offload import offload, weight
from strata_pack.gateway.pictures import Picture
from strata_pack.gateway.turn import Turn
from strata_pack.gateway.upstream import Upstream
from strata_pack.gateway.vision import Vision
from strata_pack.gateway.vision_marks import image_order, image_texts, printed_for_an_image, with_markers
from strata_pack.parsing import DIALECTS, CallFormat, Dialect, dialect_of, thinking_open

MAX_COUNTED_PIECES = 64
NEAREST_EFFORT = {"minimal": "low", "max": "xhigh", "xhigh": "high"}
"""Efforts that a template may refuse -> the efforts to try instead."""

KNOWN_BOOLEANS = (
    "enable_thinking",
    "thinking",
    "preserve_thinking",
    "clear_thinking",
    "add_vision_id",
    "keep_past_thinking",
)
"""Boolean variables of known templates."""

FALSE_WORDS = (False, "false", "no", "off", "0", "", "none", "null", None)
TRUE_WORDS = (True, "true", "yes", "on", "1")
_COMPARED = re.compile(r"\b([a-z_]\w*)\s*(?:\bis\s+(?:not\s+)?|==\s*|!=\s*)(?:[Tt]rue|[Ff]alse)\b")

NO_MARK = ""
"""The mark of a conversation without control tokens."""

SYSTEM_ROLES = ("system", "developer")
QWEN = DIALECTS["qwen"]


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt. ``pieces`` is ``text`` cut where users wrote control tokens.

    ``left_out``: parts of the conversation that the model does not get ("media image"). ``images`` are the parts of
    the prompt's image markers, ``pictures`` the decoded images. ``dialect``: the model's
    tags.
    """

    text: str
    pieces: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    images: tuple[MediaPart, ...] = ()
    pictures: tuple[Picture, ...] = ()
    dialect: Dialect = QWEN

    @property
    def thinking(self) -> bool:
        """Whether the generated text starts with thinking."""
        return thinking_open(self.text, self.dialect)

    @property
    def think_close(self) -> str:
        """The text that closes an unfinished thinking."""
        return f"\n{self.dialect.think_close}\n\n"

    def then(self, *pieces: str) -> Prompt:
        """Return the prompt with more text appended; each piece after the first starts a new tokenization."""
        joined = (*self.pieces[:-1], self.pieces[-1] + pieces[0], *pieces[1:])
        return replace(self, text=self.text + "".join(pieces), pieces=joined)


def without_late_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ``messages`` with every later system message (after the leading ones) as a user message."""
    roles = [message.get("role") in SYSTEM_ROLES for message in messages]
    leading = roles.index(False) if False in roles else len(roles)
    return [
        {**message, "role": "user"} if late and number >= leading else message
        for number, (message, late) in enumerate(zip(messages, roles, strict=True))
    ]


def efforts(variables: dict[str, Any]) -> list[dict[str, Any]]:
    """Return ``variables``, then copies with other efforts to try if the template refuses."""
    tried = [variables]
    while isinstance(effort := tried[-1].get("reasoning_effort"), str) and effort in NEAREST_EFFORT:
        tried.append({**variables, "reasoning_effort": NEAREST_EFFORT[effort]})
    return tried


def template_booleans(source: str) -> frozenset[str]:
    """Return the template's boolean variables: the known ones, and those compared with true or false."""
    return frozenset((*KNOWN_BOOLEANS, *_COMPARED.findall(source)))


def booleans_read(variables: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Return ``variables`` with "false", 0 and the like converted to booleans.

    A template that compares with ``false`` would treat "false", 0, null and "" as true. Raises ``ApiError`` 400 for
    other values.
    """
    read = dict(variables)
    for name in names & variables.keys():
        value = variables[name]
        if isinstance(value, bool):
            continue
        word = value.strip().lower() if isinstance(value, str) else value
        if isinstance(word, (str, int, float, NoneType)) and word in FALSE_WORDS:
            read[name] = False
        elif isinstance(word, (str, int, float)) and word in TRUE_WORDS:
            read[name] = True
        else:
            path = f"chat_template_kwargs.{name}"
            raise bad_request(f"{path}: must be true or false", path)
    return read


def _texts_of(turn: Turn, messages: list[dict[str, Any]]) -> str:
    """Return all texts that the template gets, one per line."""
    return "\n".join(texts_in((messages, turn.callable_tools, turn.variables)))


def is_sound(text: str) -> bool:
    """Return whether a text can be encoded: not with an unpaired surrogate, which the JSON of an argument
    may contain."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def sound(text: str) -> str:
    """Return ``text`` with U+FFFD for every unpaired surrogate."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Prompts:
    """Makes prompts from one template for one server.

    ``call_format``: how the model writes calls, as in the parser. ``adds_bos``: the server's tokenizer adds the BOS
    token itself, so it is removed from the rendered prompt. ``vision``: image support, if any.
    """

    def __init__(
        self,
        template: ChatTemplate,
        control: ControlTokens,
        upstream: Upstream,
        *,
        call_format: CallFormat = "auto",
        bos: str = "",
        adds_bos: bool = False,
        vision: Vision | None = None,
    ) -> None:
        self.template = template
        self.dialect = dialect_of(template.source)
        # A marker in a user's text would get the image of another marker.
        self.control = ControlTokens((*control.known, vision.marker), guess=control.guess) if vision else control
        # In text of the model, its tags stay tags, even if they are control tokens of the vocabulary.
        others = [text for text in self.control.known if text not in self.dialect.all_tags]
        self._models_own = ControlTokens(others, guess=control.guess, tags=self.dialect.all_tags)
        self._vision = vision
        self._image_mark = printed_for_an_image(template, control) if vision else ""
        self._upstream = upstream
        # Computed once, because the template is long and the same for all requests.
        self._template_marks = private_characters(template.source)
        self._booleans = template_booleans(template.source)
        self._form: Literal["xml", "json"] = "json" if call_format == "json" else "xml"
        self._bos = bos if adds_bos else ""

    async def build(self, turn: Turn) -> Prompt:
        """Return the prompt of ``turn``. Raises ``ApiError`` 400 with the template's message if it refuses."""
        # The size of everything: arguments and reasoning can be as large as contents, and many short messages cost as
        # much.
        prompt = await offload(weight(turn.messages, turn.tools, turn.variables), lambda: self.render(turn))
        if not prompt.images or self._vision is None:
            return prompt
        return replace(prompt, pictures=await self._vision.read(prompt.images))

    def render(self, turn: Turn) -> Prompt:
        """Return the prompt of ``turn``, computed in this thread; its images are not decoded yet."""
        if turn.variables:
            turn = replace(turn, variables=booleans_read(turn.variables, self._booleans))
        settled = settle_media(turn.messages, self._vision.sees if self._vision else None)
        messages = normalize_messages(settled.messages, continues=turn.continues, form=self._form, dialect=self.dialect)
        seen = settled.images
        prompt = self._marked_images(turn, messages, seen) if seen else self._prompt(turn, messages)
        return replace(prompt, left_out=tuple(f"media {kind}" for kind in settled.lost)) if settled.lost else prompt

    def _marked_images(self, turn: Turn, messages: list[dict[str, Any]], images: tuple[MediaPart, ...]) -> Prompt:
        """Return the prompt of a conversation with images, with the server's marker for each image.

        The marker replaces the template's text for an image. If a template prints nothing, or skips
        some images, each image is inserted into the messages as a text instead.
        """
        sign = self._mark_for(_texts_of(turn, messages))
        if not self._image_mark:
            return self._with_markers(self._prompt(turn, image_texts(messages, sign)), images, sign, [])
        try:
            given = messages
            prompt = self._prompt(turn, given)
        except ApiError:
            # Few templates support images in a tool's result; an image in a system message is an error that the user
            # can fix.
            given = image_texts(messages, sign, but=OWN_ROLES)
            prompt = self._prompt(turn, given)
        order = image_order(given)
        if sum(piece.count(self._image_mark) for piece in prompt.pieces) != len(order):
            prompt, order = self._prompt(turn, image_texts(messages, sign, parts=True)), []
        return self._with_markers(prompt, images, sign, order)

    def _with_markers(self, prompt: Prompt, images: Sequence[MediaPart], sign: str, order: Sequence[int]) -> Prompt:
        """Return ``prompt`` with markers instead of the text for images: ``order`` are the images that the template
        printed."""
        assert self._vision is not None
        shown: list[int] = []
        left = iter(order)
        pieces = tuple(
            with_markers(piece, self._vision.marker, sign, self._image_mark if order else "", left, shown)
            for piece in prompt.pieces
        )
        return Prompt("".join(pieces), pieces, images=tuple(images[number] for number in shown), dialect=self.dialect)

    def _mark_for(self, texts: str) -> str:
        """Return a character that occurs in none of ``texts``, the rendered values."""
        try:
            return choose_mark(texts, used=self._template_marks)
        except ValueError as error:
            raise bad_request(f"messages: {error}", "messages") from None

    def _prompt(self, turn: Turn, messages: list[dict[str, Any]]) -> Prompt:
        """Return the prompt of ``messages``, cut where users wrote control tokens."""
        texts = _texts_of(turn, messages)
        mark = self._mark_for(texts) if self.control.may_mark(texts) else NO_MARK
        try:
            text = self._rendered(turn, messages, mark)
        except TemplateRefused as error:
            field = self._refused_field(turn, messages, mark, error)
            message = error.message.replace(mark, "")
            raise bad_request(f"{field}: the chat template refuses the conversation: {message}", field) from None
        except TemplateError as error:
            message = str(error).replace(mark, "")
            raise bad_request(f"the conversation cannot be rendered: {message}", "messages") from None
        if not is_sound(text):
            text = sound(text)
        if mark:
            # A template that prints JSON in ASCII escapes the mark.
            text = text.replace(f"\\u{ord(mark):04x}", mark)
        if self._bos and text.startswith(self._bos):
            text = text[len(self._bos) :]
        pieces = tuple(text.split(mark)) if mark else (text,)
        text = text.replace(mark, "") if len(pieces) > 1 else text
        return Prompt(text, pieces, dialect=self.dialect)

    def _rendered(self, turn: Turn, messages: list[dict[str, Any]], mark: str) -> str:
        """Return the prompt, marked unless ``mark`` is ``NO_MARK``.

        If the template refuses, variants are tried: the nearest known effort, system
        messages as user messages. Raises the last refusal.
        """
        variables = dict(turn.variables)
        if turn.continues:
            variables["continue_final_message"] = True
        marked, tools = messages, turn.callable_tools or None
        if mark:
            marked = [
                (self._models_own if message.get("role") == "assistant" else self.control).mark_all(message, mark)
                for message in messages
            ]
            tools = self.control.mark_all(tools, mark)
            variables = self.control.mark_all(variables, mark)

        def render(conversation: list[dict[str, Any]], given: dict[str, Any]) -> str:
            return self.template.render(conversation, tools, add_generation_prompt=not turn.continues, **given)

        try:
            return render(marked, variables)
        except TemplateRefused as error:
            refusal = error
        folded = without_late_system(marked)
        conversations = [marked] if folded == marked else [marked, folded]
        _, *others = product(conversations, efforts(variables))
        for attempt in others:
            try:
                return render(*attempt)
            except TemplateRefused as error:
                refusal = error
        raise refusal

    def _refused_field(self, turn: Turn, messages: list[dict[str, Any]], mark: str, error: TemplateRefused) -> str:
        """Return the field that the template refuses: the effort if the error differs without it."""
        if "reasoning_effort" not in turn.variables:
            return "messages"
        others = {name: value for name, value in turn.variables.items() if name != "reasoning_effort"}
        try:
            self._rendered(replace(turn, variables=others), messages, mark)
        except TemplateRefused as other:
            return "messages" if other.message == error.message else turn.effort_field
        except TemplateError:
            return "messages"
        return turn.effort_field

    def extend(self, prompt: Prompt, generated: str, close: str) -> Prompt:
        """Return ``prompt`` with the generated text and ``close`` appended."""
        mark = choose_mark(generated)
        first, *others = self.control.mark(generated, mark).split(mark)
        extended = prompt.then(first, *others)
        return extended.then(close)

    async def wire(self, prompt: Prompt) -> str | list[int | str] | dict[str, Any]:
        """Return the prompt in the form of llama-server's ``/completion``.

        A prompt in pieces is a list; the server reads a list of strings as several prompts unless it holds a number,
        hence the first piece is sent as tokens. A prompt with pictures is an object.
        """
        if prompt.pictures and self._vision is not None:
            return self._vision.wire(prompt.pieces, prompt.pictures)
        if len(prompt.pieces) == 1:
            return prompt.text
        first, *others = prompt.pieces
        return [*await self.tokens(first, add_special=True), *(piece for piece in others if piece)]

    async def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of ``prompt``; an upper bound for a prompt with very many control tokens."""
        if prompt.pictures and self._vision is not None:
            texts = self._vision.text(prompt.pieces).split(self._vision.marker)
            counted = [len(await self.tokens(text, add_special=not number)) for number, text in enumerate(texts)]
            return sum(counted) + sum([await self._vision.count(picture) for picture in prompt.pictures])
        if len(prompt.pieces) > MAX_COUNTED_PIECES:
            return len(await self.tokens(prompt.text, add_special=True, parse_special=False))
        counts = [len(await self.tokens(piece, add_special=not i)) for i, piece in enumerate(prompt.pieces)]
        return sum(counts)

    async def tokens(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> Sequence[int]:
        """Return the token ids of ``text``."""
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        tokens = (await self._upstream.json("POST", "/tokenize", body)).get("tokens")
        return [token for token in tokens if isinstance(token, int)] if isinstance(tokens, list) else []
