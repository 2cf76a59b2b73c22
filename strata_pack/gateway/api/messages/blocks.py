"""Convert content blocks of Anthropic's Messages API to text and media parts.

A block has a path (``messages.0.content.1``), which every error names. Documents and search results are text
in a wrapper; the model gets them inside a tag of that name, with their metadata as attributes.
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
    """A content block; its further fields depend on ``type``."""

    type: str


Located = tuple[str, Block]
"""A block and its path."""

Pieces = list[str | MediaPart]
"""Texts and media parts in order."""

TEXT_ONLY = ("text",)
SILENT = ("container_upload", "redacted_thinking", "compaction_delta")
"""Block types without content for a model."""

SECRET = frozenset(("encrypted_content", "encrypted_index", "encrypted_stdout", "data", "signature"))
"""Keys in results of hosted tools whose values are encrypted or bytes."""


def located(where: str, content: Any) -> list[Located]:
    """Return the blocks of a content with their paths; a string is one text block. Raises ``ApiError`` for other
    types."""
    if isinstance(content, str):
        return [(where, Block.model_validate({"type": "text", "text": content}))]
    if not isinstance(content, list):
        raise bad_request(f"{where}: is neither a string nor a list of blocks", where)
    return [(f"{where}.{index}", _block(f"{where}.{index}", part)) for index, part in enumerate(content)]


def content_pieces(where: str, content: Any, allowed: Iterable[str] = TEXT_ONLY) -> Pieces:
    """Return the texts and media of a content whose blocks are of the ``allowed`` types."""
    return [piece for place, block in located(where, content) for piece in block_pieces(place, block, allowed)]


def block_pieces(where: str, block: Block, allowed: Iterable[str] = TEXT_ONLY) -> Pieces:
    """Return the texts and media of one block. Raises ``ApiError`` for a type that is not ``allowed``.

    A document that is not text is a media part, like an image; an empty block gives nothing.
    """
    if block.type in SILENT:
        return []
    if block.type == "image":
        return [media_part("image", where, block.given(), "blocks of type 'image'")]
    if block.type in allowed:
        return READERS[block.type](where, block.given())
    raise bad_request(f"{where}: blocks of type {block.type!r} are not supported here", where)


def readable(value: Any) -> str:
    """Return a hosted tool's result as text for the model, without encrypted values and bytes."""
    return value if isinstance(value, str) else json.dumps(_open(value), ensure_ascii=False)


def _open(value: Any) -> Any:
    if isinstance(value, dict):
        # The data of a source of type "text" is the text of a page that was fetched.
        hidden = SECRET - {"data"} if value.get("type") == "text" else SECRET
        return {key: _open(one) for key, one in value.items() if key not in hidden}
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
"""Reader of each block type."""
