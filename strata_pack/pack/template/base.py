"""Reads which model a folder, a GGUF, a pack or a repository says that it was made from."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from strata_pack.files import read_bytes
from strata_pack.pack.layout import Pack
from strata_pack.pack.model_card import CARD_LIMIT, card_head, named_bases
from strata_pack.pack.paths import is_pack
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from strata_pack.weights.source import HubSource, hub_source

CARD = "README.md"


def base_models(target: str) -> list[str]:
    """Return the base models of ``target`` as hub ids, the first named first; empty if it names none.

    A pack's stand in its manifest, a folder's and a repository's in the card, a GGUF's in its header.
    """
    path = Path(target)
    if is_pack(path):
        return list(Pack.open(path).manifest["source"].get("base_models", []))
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return named_bases({}, _metadata(path)) if path.suffix.lower() == ".gguf" else []
    source = hub_source(target)
    return [] if source is None else _on_hub(source)


def _in_folder(folder: Path) -> list[str]:
    card, files = folder / CARD, sorted(folder.glob("*.gguf"))
    text = read_bytes(card, CARD_LIMIT).decode("utf-8", "replace") if card.is_file() else ""
    return named_bases(card_head(text, str(card)), _metadata(files[0]) if files else {})


def _metadata(path: Path) -> Mapping[str, MetaValue]:
    with GgufFile.open(path) as file:
        return dict(file.metadata)


def _on_hub(source: HubSource) -> list[str]:
    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.repo import read_tree
    from strata_pack.weights.hub.small import SmallFiles

    hub = connect()
    tree = read_tree(hub, source.repo_id, source.revision)
    if all(file.path != CARD for file in tree.files):
        return []
    with tempfile.TemporaryDirectory(prefix="strata-card-") as folder:
        text = SmallFiles(hub, tree, Path(folder), offline=False).read(CARD).decode("utf-8", "replace")
    return named_bases(card_head(text, f"{source}: {CARD}"), {})
