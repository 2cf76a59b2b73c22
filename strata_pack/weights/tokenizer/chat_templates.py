"""Reads the value of ``chat_template`` in a tokenizer's JSON files, in each of the forms that transformers reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_NAME = "default"


def chat_templates(value: Any) -> dict[str, str]:
    """Return the templates by name: of one text, of a list of objects with ``name`` and ``template``, or of an object
    of texts by name. Of several entries with one name, the last counts; anything else is left out."""
    if isinstance(value, str):
        return {DEFAULT_NAME: value}
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list):
        entries = [one for one in value if isinstance(one, Mapping)]
        pairs = [(one.get("name", DEFAULT_NAME), one.get("template")) for one in entries]
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
