"""The one place that decides what becomes of an image, a sound or a file in a conversation.

The readers of the three APIs keep such a part as ``media_part``, with its path and what the client wrote, whatever it
is; ``settle_media`` then says, for the whole conversation, what the model gets in its place. No pack has a projector
yet: in the result of a tool, and in what an assistant once wrote, a text stands for it, so that an agent's loop goes
on (nobody can take it out of the history again); in a user's own message it is a 400, which the user can mend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from strata_pack.gateway.failures import bad_request

MediaPart = dict[str, Any]
MEDIA = "strata.media"
"""The type of a part that is neither text nor known to any template."""

KINDS: Mapping[str, str] = {
    **dict.fromkeys(("image", "image_url", "input_image", "output_image", "computer_screenshot"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("audio", "audio_url", "input_audio", "output_audio"), "audio"),
    **dict.fromkeys(("file", "input_file"), "file"),
}
"""Types of parts of the OpenAI APIs that hold media -> what it is."""

PLACEHOLDERS: Mapping[str, str] = {
    "image": "[image: this model cannot see it]",
    "video": "[video: this model cannot see it]",
    "audio": "[audio: this model cannot hear it]",
}
OWN_ROLES = ("user", "system", "developer")


def placeholder(kind: str) -> str:
    """Return the text that stands for media of ``kind``."""
    return PLACEHOLDERS.get(kind, f"[{kind}: this model cannot read it]")


def media_part(kind: str, where: str, given: Mapping[str, Any], what: str) -> MediaPart:
    """Return the part for media of ``kind`` that a client wrote as ``given`` at ``where``; ``what`` names it there."""
    return {"type": MEDIA, "kind": kind, "where": where, "given": given, "what": what}


def is_media(part: Any) -> bool:
    """Whether ``part`` was made by ``media_part``."""
    return isinstance(part, dict) and part.get("type") == MEDIA


def joined(pieces: Sequence[str | MediaPart], separator: str) -> str | list[MediaPart]:
    """Return texts and media as one content: a string if there is no media, else a list of parts."""
    if not any(is_media(piece) for piece in pieces):
        return separator.join(piece for piece in pieces if isinstance(piece, str))
    parts: list[MediaPart] = []
    for number, piece in enumerate(pieces):
        if number and separator:
            parts.append({"type": "text", "text": separator})
        parts.append({"type": "text", "text": piece} if isinstance(piece, str) else piece)
    return parts


def settle_media(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return ``messages`` with every media part replaced, and the kinds of those that the model will not see.

    Raises ``ApiError`` 400 for media in a user's (or the system's) own message.
    """
    lost: list[str] = []
    return [_settled(message, lost) for message in messages], tuple(lost)


def _settled(message: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    parts = message.get("content")
    if not isinstance(parts, list) or not any(map(is_media, parts)):
        return message
    found = [part for part in parts if is_media(part)]
    if message.get("role") in OWN_ROLES:
        where, what = found[0]["where"], found[0]["what"]
        raise bad_request(
            f"{where}: the model has no projector, so {what} cannot be read; send text",
            where,
            code="unsupported_media",
        )
    lost += [part["kind"] for part in found]
    settled = [{"type": "text", "text": placeholder(part["kind"])} if is_media(part) else part for part in parts]
    if all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in settled):
        return {**message, "content": _lines(settled, [is_media(part) for part in parts])}
    return {**message, "content": settled}


def _lines(parts: list[MediaPart], stands_in: list[bool]) -> str:
    """Return the texts of ``parts`` as they follow each other; what stands in for media is a line of its own."""
    text = ""
    for number, part in enumerate(parts):
        alone = stands_in[number] or (number > 0 and stands_in[number - 1])
        text += "\n" + part["text"] if alone and text and not text.endswith("\n") else part["text"]
    return text
