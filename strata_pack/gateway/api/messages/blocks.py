"""Content blocks of Anthropic's Messages API as the text that the model reads, or as media.

A block stands at a path (``messages.0.content.1``), and every complaint names it. Documents and search results are text
in a wrapping; the model gets them as a tag of that name, with the facts about them as its attributes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from xml.sax.saxutils import quoteattr

from strata_pack.gateway.api.fields import Kept, text_field
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.media import MediaPart, media_part


class Block(Kept):
    """A content block; which further fields it needs depends on ``type``."""

    type: str


Located = tuple[str, Block]
"""A block and its path."""

Pieces = list[str | MediaPart]
"""Texts and media, one below the other."""

TEXT_ONLY = ("text",)
SILENT = ("container_upload", "redacted_thinking", "compaction_delta")
"""Types that hold nothing that a model could read."""

SECRET = frozenset(("encrypted_content", "encrypted_index", "encrypted_stdout", "data", "signature"))
"""Keys of other servers' results whose values are for them alone, or bytes."""


def located(where: str, content: Any) -> list[Located]:
    """Return the blocks of a content with their paths; a string is one text block. Raises ``ApiError`` for others."""
    if isinstance(content, str):
        return [(where, Block.model_validate({"type": "text", "text": content}))]
    if not isinstance(content, list):
        raise bad_request(f"{where}: is neither a string nor a list of blocks", where)
    return [(f"{where}.{index}", _block(f"{where}.{index}", part)) for index, part in enumerate(content)]


def content_pieces(where: str, content: Any, allowed: Iterable[str] = TEXT_ONLY) -> Pieces:
    """Return the texts and media of a content whose blocks are of the ``allowed`` types."""
    return [piece for place, block in located(where, content) for piece in block_pieces(place, block, allowed)]


def block_pieces(where: str, block: Block, allowed: Iterable[str] = TEXT_ONLY) -> Pieces:
    """Return what one block holds; raises ``ApiError`` for a type that is not ``allowed`` here.

    A document that is no text is media, as an image is; a block that says nothing is nothing.
    """
    if block.type in SILENT:
        return []
    if block.type == "image":
        return [media_part("image", where, block.given(), "blocks of type 'image'")]
    if block.type in allowed:
        return READERS[block.type](where, block.given())
    raise bad_request(f"{where}: a block of type {block.type!r} cannot stand here", where)


def readable(value: Any) -> str:
    """Return another server's value as text that a model can read: without what is encrypted, and without bytes."""
    return value if isinstance(value, str) else json.dumps(_open(value), ensure_ascii=False)


def _open(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _open(one) for key, one in value.items() if key not in SECRET}
    return [_open(one) for one in value] if isinstance(value, list) else value


def _block(where: str, part: Any) -> Block:
    if isinstance(part, Block):
        return part
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise bad_request(f"{where}: is no content block", where)
    return Block.model_validate(part)


# Types of blocks


def _text(where: str, given: Mapping[str, Any]) -> Pieces:
    return [text_field(where, given, "text")]


def _document(where: str, given: Mapping[str, Any]) -> Pieces:
    source, place = given.get("source"), f"{where}.source"
    if not isinstance(source, dict):
        raise bad_request(f"{place}: must be an object", place)
    kind = source.get("type")
    if kind == "text":
        pieces: Pieces = [text_field(place, source, "data")]
    elif kind == "content":
        pieces = content_pieces(f"{place}.content", source.get("content"))
    else:
        return [media_part("document", place, given, f"a document from a source of type {kind!r}")]
    return _tagged("document", _attributes(where, given, "title", "context"), pieces)


def _search_result(where: str, given: Mapping[str, Any]) -> Pieces:
    pieces = content_pieces(f"{where}.content", given.get("content"))
    return _tagged("search_result", _attributes(where, given, "title", "source"), pieces)


def _tool_reference(where: str, given: Mapping[str, Any]) -> Pieces:
    return [f"<tool_reference name={quoteattr(text_field(where, given, 'tool_name'))}/>"]


def _attributes(where: str, given: Mapping[str, Any], *names: str) -> str:
    there = [name for name in names if given.get(name) is not None]
    return "".join(f" {name}={quoteattr(text_field(where, given, name))}" for name in there)


def _tagged(tag: str, attributes: str, pieces: Pieces) -> Pieces:
    wrapped: Pieces = [f"<{tag}{attributes}>", *pieces, f"</{tag}>"]
    texts = [piece for piece in wrapped if isinstance(piece, str)]
    return ["\n".join(texts)] if len(texts) == len(wrapped) else wrapped


READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Pieces]] = {
    "text": _text,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
}
"""How each type is read."""
