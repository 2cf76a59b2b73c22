"""Reads config.json like llama.cpp's converter: the file's values override the defaults of the model class.

The converter gets the configuration from transformers, which fills in missing values and collects all rotary parameters
under ``rope_parameters``. This module does the same from a table, for the supported classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput

_ROPE_KEYS = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class Config:
    """The text model's configuration: ``values`` by key; ``where`` is the file, for messages."""

    values: Mapping[str, Any]
    rope: Mapping[str, Any]
    where: Path

    def get(self, *keys: str) -> Any:
        """Return the value of the first present key, None if there is none or the value is null."""
        return next((self.values[key] for key in keys if key in self.values), None)

    def integer(self, *keys: str) -> int:
        """Return a positive integer; ``BadInput`` if it is missing or another value."""
        value = self.get(*keys)
        if type(value) is not int or not 0 < value < 1 << 32:
            raise BadInput(f"{keys[0]} is {value!r}, not a positive integer", where=self.where)
        return value

    @property
    def layers(self) -> int:
        return self.integer("num_hidden_layers")

    @property
    def head_dim(self) -> int:
        """Elements of one attention head."""
        if self.get("head_dim") is not None:
            return self.integer("head_dim")
        return self.integer("hidden_size") // self.integer("num_attention_heads")


def architecture_name(raw: Mapping[str, Any], where: Path) -> str:
    """Return the class name that ``architectures`` gives for the text model."""
    text = raw.get("text_config")
    names = (text.get("architectures") if isinstance(text, dict) else None) or raw.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise BadInput("names no architecture", where=where, remedy="give the folder of a Hugging Face checkpoint")
    return names[0]


def effective(raw: Mapping[str, Any], defaults: Mapping[str, Any], where: Path) -> Config:
    """Return the text model's configuration, completed as transformers would."""
    text = raw.get("text_config")
    merged = {**defaults, **_without_null(raw)}
    if isinstance(text, dict):
        merged |= _without_null(text)
    rope = merged.get("rope_parameters") or merged.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise BadInput(f"rope_parameters is {rope!r}, not an object", where=where)
    rope = dict(rope)
    for key in _ROPE_KEYS:
        if key in merged:
            rope.setdefault(key, merged[key])
    rope.setdefault("rope_type", rope.get("type", "default"))
    merged.setdefault("num_key_value_heads", merged.get("num_attention_heads"))
    return Config(merged, rope, where)


def linear_layers(config: Config) -> list[bool]:
    """Return for each layer whether its attention is linear; call it only after the number of layers was checked."""
    interval = config.get("full_attention_interval") or 4
    kinds = config.get("layer_types")
    if kinds is None:
        return [(number + 1) % interval != 0 for number in range(config.layers)]
    if not isinstance(kinds, list) or len(kinds) != config.layers:
        raise BadInput(f"layer_types is not a list of {config.layers} layers", where=config.where)
    return [kind == "linear_attention" for kind in kinds]


def _without_null(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def require(config: Config, keys: Iterable[str]) -> None:
    """Raise ``BadInput`` if one of ``keys`` is missing or not a positive integer."""
    for key in keys:
        config.integer(key)
