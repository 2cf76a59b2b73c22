"""Find where a chat template prints images, or insert texts for them if it prints nothing.

Templates print their model's own tokens for an image (``<|vision_start|><|image_pad|><|vision_end|>``). llama-server
adds those tokens itself around every picture, so its marker replaces all of the template's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from strata_pack.chat.render.template import ChatTemplate, TemplateError
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.media import image_number, image_part

BEFORE, AFTER = "Before", "After"


def printed_for_an_image(template: ChatTemplate, control: ControlTokens) -> str:
    """Return the text of ``template`` for an image in a user's message; "" if it is not distinctive.

    It must contain a control token: users' texts are cut there, so nobody can forge it.
    """
    texts = [{"type": "text", "text": word} for word in (BEFORE, AFTER)]
    message = {"role": "user", "content": [texts[0], image_part(0), texts[1]]}
    try:
        prompt = template.render([message], None, add_generation_prompt=True)
    except TemplateError:
        return ""
    found = re.search(f"{BEFORE}(.*?){AFTER}", prompt, re.DOTALL)
    printed = found[1].strip() if found else ""
    return printed if control.mark(printed, "\ue000") != printed else ""


def image_order(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Return the numbers of the images in ``messages`` in order."""
    contents = [message.get("content") for message in messages]
    numbers = [image_number(part) for parts in contents if isinstance(parts, list) for part in parts]
    return [number for number in numbers if number is not None]


def image_texts(
    messages: Sequence[dict[str, Any]], sign: str, *, but: Sequence[str] = (), parts: bool = False
) -> list[dict[str, Any]]:
    """Return ``messages`` with a text for every image: its number between two of the private character ``sign``.

    A content that is then all text becomes a string, which every template accepts, or a list of ``parts``. Messages of
    the roles ``but`` are unchanged.
    """

    def written(message: dict[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if message.get("role") in but or not image_order([message]) or not isinstance(content, list):
            return message
        texts = [
            part if (number := image_number(part)) is None else {"type": "text", "text": f"{sign}{number}{sign}"}
            for part in content
        ]
        if not parts and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in texts):
            return {**message, "content": "".join(part["text"] for part in texts)}
        return {**message, "content": texts}

    return [written(message) for message in messages]


def with_markers(
    text: str, marker: str, sign: str, printed: str, order: Iterator[int], shown: list[int]
) -> str:  # fmt: skip
    """Return a rendered text with ``marker`` for the texts of ``image_texts`` and the template's text ``printed``.

    The images' numbers are added to ``shown`` in order; printed images take their numbers from
    ``order``.
    """
    around = rf"(?:{sign}|\\u{ord(sign):04x})"
    pattern = rf"{around}(\d+){around}" + (f"|{re.escape(printed)}" if printed else "")

    def marked(found: re.Match[str]) -> str:
        shown.append(int(found[1]) if found[1] else next(order))
        return marker

    return re.sub(pattern, marked, text)
