"""Reads a source's licence and base models.

The YAML head of the model card next to the weights takes precedence over the header of the GGUF.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes
from strata_pack.pack.manifest import LicenseEntry, SourceEntry
from strata_pack.weights.card_yaml import MALFORMED, refuse_aliases
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.source import is_repo_id

if TYPE_CHECKING:  # it imports the converter
    from strata_pack.pack.model_source import Model

CARD_LIMIT = 4 << 20
"""Maximum bytes of a model card that is read."""

MODELS_NAMED = 64
"""Maximum number of base models that are read; merges have a few."""

_HEAD = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


def card_head(text: str, where: str) -> dict[str, Any]:
    """Return the YAML head of a model card, empty if there is none.

    ``BadInput`` if it is not a mapping or has YAML aliases.
    """
    found = _HEAD.match(text)
    if found is None:
        return {}
    try:
        refuse_aliases(found[1], where)
        value = yaml.safe_load(found[1])
    except MALFORMED as error:
        raise BadInput(
            f"the head of the model card is malformed ({' '.join(str(error).split())})", where=where
        ) from None
    if value is not None and not isinstance(value, dict):
        raise BadInput("the head of the model card is not a mapping", where=where)
    return value or {}


def add_origin(entry: SourceEntry, model: Model, metadata: Mapping[str, MetaValue]) -> SourceEntry:
    """Return ``entry`` with licence and base models, if the source states them."""
    card = model.side_file("README.md")
    head: dict[str, Any] = {}
    if card is not None:
        try:
            head = card_head(read_bytes(card, CARD_LIMIT).decode("utf-8", "replace"), str(card))
        except BadInput:
            head = {}  # a malformed card is ignored: the build needs only the weights
    found = SourceEntry(**entry)
    if (licence := _license(head, metadata)) is not None:
        found["license"] = licence
    if bases := _base_models(head, metadata, model):
        found["base_models"] = bases
    return found


def _license(head: Mapping[str, Any], metadata: Mapping[str, MetaValue]) -> LicenseEntry | None:
    said = head.get("license")
    if isinstance(said, list) and said:
        said = said[0]
    if isinstance(said, str) and said:
        texts = {"id": said, "name": head.get("license_name"), "link": head.get("license_link")}
    else:
        keys = {"id": "general.license", "name": "general.license.name", "link": "general.license.link"}
        texts = {field: _text(metadata, key) for field, key in keys.items()}
    if not texts["id"]:
        return None
    entry = LicenseEntry(id=str(texts["id"]).lower())
    if isinstance(texts["name"], str) and texts["name"]:
        entry["name"] = texts["name"]
    if isinstance(texts["link"], str) and texts["link"]:
        entry["link"] = texts["link"]
    return entry


def _base_models(head: Mapping[str, Any], metadata: Mapping[str, MetaValue], model: Model) -> list[str]:
    """Return the hub ids of the models of which a pack of ``model`` is a quantization.

    For a checkpoint on the Hub, that is the repository itself; for a GGUF, the base models that it names.
    """
    if model.repo is not None and model.weights.format == "safetensors":
        return [model.repo]
    return named_bases(head, metadata) or ([model.repo] if model.repo is not None else [])


def named_bases(head: Mapping[str, Any], metadata: Mapping[str, MetaValue]) -> list[str]:
    """Return the base models that the head of a card names, or else a GGUF's header, as hub ids."""
    said = head.get("base_model")
    named = said if isinstance(said, list) else [said]
    if not any(isinstance(one, str) for one in named):
        count = metadata.get("general.base_model.count")
        number = min(int(count.value), MODELS_NAMED) if count is not None and isinstance(count.value, int) else 0
        urls = [_text(metadata, f"general.base_model.{index}.repo_url") or "" for index in range(number)]
        named = ["/".join(url.rstrip("/").split("/")[-2:]) for url in urls]
    return [one for one in named if isinstance(one, str) and is_repo_id(one)][:MODELS_NAMED]


def _text(metadata: Mapping[str, MetaValue], key: str) -> str | None:
    value = metadata.get(key)
    return value.value if value is not None and isinstance(value.value, str) else None
