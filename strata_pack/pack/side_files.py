"""Writes the small files of a pack: tokenizer, template and golden cases."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from strata_pack.chat.golden.check import GoldenReport
from strata_pack.files import dump_json, parse_json_object, read_bytes, sha256_bytes, write_atomic
from strata_pack.pack.file_names import CONFIG, TOKENIZER_FILES
from strata_pack.pack.manifest import FileEntry
from strata_pack.pack.model_source import Model
from strata_pack.pack.paths import GOLDEN, MODEL_DIR, REPORTS_DIR, TEMPLATE, TOKENIZER_DIR
from strata_pack.pack.template.choice import ChosenTemplate
from strata_pack.pack.template.plan import golden_bytes
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.tokenizer.files import tokenizer_files

SIDE_FILE_LIMIT = 256 << 20
"""Maximum bytes of a tokenizer file that is copied into a pack."""


def make_side_files(model: Model, metadata: Mapping[str, MetaValue], chosen: ChosenTemplate) -> dict[str, bytes]:
    """Return the content of every file of the pack except model, manifest and reports, by its path in the pack."""
    tokenizer = tokenizer_copies(model, chosen.text) | tokenizer_files(metadata)
    data = {f"{TOKENIZER_DIR}/{name}": content for name, content in tokenizer.items()}
    data[TEMPLATE] = chosen.text.encode("utf-8")
    if chosen.suite is not None:
        data[GOLDEN] = golden_bytes(chosen.suite)
    return data


def write_side_files(root: Path, data: Mapping[str, bytes], report: GoldenReport | None) -> list[FileEntry]:
    """Write all files except model and manifest; return the manifest's entries of those that the pack's identity
    covers.

    They are always written again: an interrupted build may have left an incomplete one under a temporary name.
    """
    for entry in root.iterdir():
        if entry.name != MODEL_DIR:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name, content in data.items():
        write_atomic(root / name, content)
    if report is not None:
        write_atomic(root / REPORTS_DIR / "golden.json", dump_json(report.to_dict()))
    return [FileEntry(path=name, size=len(text), sha256=sha256_bytes(text)) for name, text in data.items()]


def tokenizer_copies(model: Model, template: str) -> dict[str, bytes]:
    """Return the source's tokenizer files by name, unchanged.

    Only a chat template inside ``tokenizer_config.json`` is replaced by the pack's.
    """
    copies = {}
    for name in TOKENIZER_FILES:
        path = model.side_file(name)
        if path is not None:
            copies[name] = read_bytes(path, SIDE_FILE_LIMIT)
    if CONFIG in copies:
        config = parse_json_object(copies[CONFIG], CONFIG)
        if "chat_template" in config:
            copies[CONFIG] = dump_json({**config, "chat_template": template})
    return copies
