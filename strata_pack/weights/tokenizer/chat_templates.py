"""Reads the value of ``chat_template`` in a tokenizer's JSON files, in each of the forms that transformers reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput

DEFAULT_NAME = "default"

MAX_TEMPLATES = 100
"""Maximum number of named templates of one model. Published models have three at most, and each is examined."""


def refuse_too_many(count: int, where: str | Path) -> None:
    """Raise ``BadInput`` if ``count`` is more chat templates than a model has."""
    if count > MAX_TEMPLATES:
        raise BadInput(
            f"has {count} chat templates; at most {MAX_TEMPLATES} are read", where=where, remedy="remove the others"
        )


def chat_templates(value: Any, where: str | Path) -> dict[str, str]:
    """Return the templates by name: of one text, of a list of objects with ``name`` and ``template``, or of an object
    of texts by name. Of several entries with one name, the last counts; anything else is left out. ``BadInput``, which
    names ``where``, for more than ``MAX_TEMPLATES``."""
    if isinstance(value, str):
        return {DEFAULT_NAME: value}
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list):
        entries = [one for one in value if isinstance(one, Mapping)]
        pairs = [(one.get("name", DEFAULT_NAME), one.get("template")) for one in entries]
    found = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
    refuse_too_many(len(found), where)
    return found
