"""Changes that make a tiny checkpoint one that cannot be converted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.tiny_models import MODELS, encode, weights, write_json, write_model, write_safetensors, write_weights

Change = Callable[[Path], None]
INDEX = "model.safetensors.index.json"


def edit(file: str, change: Callable[[Any], Any]) -> Change:
    """Return a change of a JSON file: ``change`` edits it in place, or returns another value."""

    def apply(folder: Path) -> None:
        value = json.loads((folder / file).read_text(encoding="utf-8"))
        other = change(value)
        write_json(folder / file, value if other is None else other)

    return apply


def config(**values: Any) -> Change:
    return edit("config.json", lambda found: found.update(values))


def tokenizer(change: Callable[[Any], Any]) -> Change:
    return edit("tokenizer.json", change)


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8") and None


def retype(name: str, dtype: str, width: int) -> Change:
    """Return a change that gives one tensor of a one-file checkpoint another type."""

    def apply(folder: Path) -> None:
        tensors = {n: ("F32", v.shape, encode(v, "F32")) for n, v in weights(MODELS["qwen3-f32"])}
        shape = tensors[name][1]
        tensors[name] = (dtype, shape, bytes(int(np.prod(shape)) * width))
        write_safetensors(folder / "model.safetensors", tensors)

    return apply


def drop(name: str) -> Change:
    """Return a change that leaves one tensor out of a one-file checkpoint."""

    def apply(folder: Path) -> None:
        kept = {n: v for n, v in weights(MODELS["qwen3-f32"]) if n != name}
        write_weights(folder, kept, "F32", 1)

    return apply


def add(name: str, shape: tuple[int, ...] = (4, 4)) -> Change:
    def apply(folder: Path) -> None:
        found = {**dict(weights(MODELS["qwen3-f32"])), name: np.zeros(shape, dtype=np.float32)}
        write_weights(folder, found, "F32", 1)

    return apply


def rename_merge(found: Any) -> None:
    found["model"]["merges"][0] = ["a"]


def clash(found: Any) -> None:
    found["added_tokens"][0]["id"] = 7


def split_regex(found: Any) -> None:
    found["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x+"


def shrink(keep: Callable[[str], bool]) -> dict[str, Any]:
    return {name: values for name, values in weights(MODELS["qwen3moe"]) if keep(name)}


def change_model(name: str, folder: Path, change: Callable[[dict[str, Any]], None], **values: Any) -> Path:
    """Write a variant whose weights and configuration are changed."""
    tiny = MODELS[name]
    write_model(name, folder)
    found = dict(weights(tiny))
    change(found)
    write_weights(folder, found, tiny.dtype, tiny.shards)
    config(**values)(folder)
    return folder
