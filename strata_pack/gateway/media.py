"""Decide what the model gets for images, sounds and files in a conversation.

The readers of the three APIs keep such a part as ``media_part``, with its path and the client's
object; ``settle_media`` then replaces them in the whole conversation. An image that the model
can see becomes the image part of templates. Everything else: in a tool's result and in an assistant's
message a placeholder text replaces it, so that an agent can continue (nobody can remove it from the history); in a
user's own message it is a 400, which the user can fix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_pack.gateway.failures import ApiError, bad_request

MediaPart = dict[str, Any]
MEDIA = "strata.media"
"""The type of ``media_part``, unknown to all templates."""

KINDS: Mapping[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image", "output_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), "audio"),
    **dict.fromkeys(("file", "input_file"), "file"),
}
"""Media part types of the OpenAI APIs -> kind of media."""

PLACEHOLDERS: Mapping[str, str] = {
    "image": "[image: this model cannot see it]",
    "video": "[video: this model cannot see it]",
    "audio": "[audio: this model cannot hear it]",
}
OWN_ROLES = ("user", "system", "developer")
RESULT_ROLES = ("tool", "function")


@dataclass(frozen=True)
class Settled:
    """A conversation without ``media_part``: ``images`` are the images of the ``image_part`` numbers.

    ``lost`` are the kinds of media that the model does not get.
    """

    messages: list[dict[str, Any]]
    images: tuple[MediaPart, ...] = ()
    lost: tuple[str, ...] = ()


def placeholder(kind: str) -> str:
    """Return the placeholder text for media of ``kind``."""
    return PLACEHOLDERS.get(kind, f"[{kind}: this model cannot read it]")


def media_part(kind: str, where: str, given: Mapping[str, Any], what: str) -> MediaPart:
    """Return the part for media of ``kind`` with the client's object ``given`` at path ``where``; ``what`` names it
    in errors."""
    return {"type": MEDIA, "kind": kind, "where": where, "given": given, "what": what}


def image_part(number: int) -> MediaPart:
    """Return the template's image part of image ``number``."""
    return {"type": "image", "number": number}


def image_number(part: Any) -> int | None:
    """Return the number of an ``image_part``, ``None`` for any other part."""
    number = part.get("number") if isinstance(part, dict) and part.get("type") == "image" else None
    return number if isinstance(number, int) else None


def is_media(part: Any) -> bool:
    """Return whether ``part`` was made by ``media_part``."""
    return isinstance(part, dict) and part.get("type") == MEDIA


def joined(pieces: Sequence[str | MediaPart], separator: str) -> str | list[MediaPart]:
    """Return texts and media as one content: a string without media, otherwise a list of parts."""
    if not any(is_media(piece) for piece in pieces):
        return separator.join(piece for piece in pieces if isinstance(piece, str))
    parts: list[MediaPart] = []
    for number, piece in enumerate(pieces):
        if number and separator:
            parts.append({"type": "text", "text": separator})
        parts.append({"type": "text", "text": piece} if isinstance(piece, str) else piece)
    return parts


def settle_media(messages: list[dict[str, Any]], sees: Callable[[MediaPart], bool] | None = None) -> Settled:
    """Return ``messages`` with every media part replaced.

    ``sees`` decides whether the model gets an image; ``None`` for a model without a projector. With a projector, the
    user's own images are always kept. Raises ``ApiError`` 400 for other media in
    user's (or system) messages.
    """
    if not any(isinstance(message.get("content"), list) for message in messages):
        return Settled(messages)
    images: list[MediaPart] = []
    lost: list[str] = []
    owned = zip(messages, users_own(messages), strict=True)
    settled = [_settled(message, sees, images, lost, own=own) for message, own in owned]
    return Settled(settled, tuple(images), tuple(lost))


def users_own(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return for each message whether it is the user's current message, which the user can change.

    A user message that an assistant has answered is history. One directly after a tool's result is an
    agent's: chat completions have no images in results, so agents send a tool's images in a message after it.
    """
    owned: list[bool] = []
    answered = max((number for number, one in enumerate(messages) if one.get("role") == "assistant"), default=-1)
    of_a_tool = False
    for number, message in enumerate(messages):
        role = message.get("role")
        of_a_tool = role in RESULT_ROLES or (of_a_tool and role in OWN_ROLES)
        owned.append(role in OWN_ROLES and number > answered and not of_a_tool)
    return owned


def _settled(
    message: dict[str, Any],
    sees: Callable[[MediaPart], bool] | None,
    images: list[MediaPart],
    lost: list[str],
    *,
    own: bool,
) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list) or not any(map(is_media, parts)):
        return message
    settled: list[Any] = []
    stands_in: list[bool] = []
    for part in parts:
        shown = is_media(part) and part["kind"] == "image" and sees is not None and (own or sees(part))
        hidden = is_media(part) and not shown
        if hidden and own:
            raise _unsupported(part, blind=sees is None)
        if shown:
            settled.append(image_part(len(images)))
            images.append(part)
        elif hidden:
            settled.append({"type": "text", "text": placeholder(part["kind"])})
            lost.append(part["kind"])
        else:
            settled.append(part)
        stands_in.append(hidden)
    if any(stands_in) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in settled):
        return {**message, "content": _lines(settled, stands_in)}
    return {**message, "content": settled}


def _unsupported(part: MediaPart, *, blind: bool) -> ApiError:
    where, what = part["where"], part["what"]
    reason = "the model sees images only, so"
    if blind:
        reason = "the model has no projector, so" if part["kind"] == "image" else "the model reads text only, so"
    return bad_request(f"{where}: {reason} {what} cannot be read; send text", where, code="unsupported_media")


def _lines(parts: list[MediaPart], stands_in: list[bool]) -> str:
    """Return the texts of ``parts`` in order; placeholders of media are separate lines."""
    text = ""
    for number, part in enumerate(parts):
        alone = stands_in[number] or (number > 0 and stands_in[number - 1])
        text += "\n" + part["text"] if alone and text and not text.endswith("\n") else part["text"]
    return text
