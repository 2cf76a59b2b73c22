"""A whole pack around the tiny model, made without the quantizer, so that a test has one in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strata_pack.files import dump_json, sha256_file, sha256_text
from strata_pack.pack.manifest import check_manifest
from strata_pack.pack.paths import ATTESTATIONS, GOLDEN, MANIFEST, REPORTS_DIR, TEMPLATE
from strata_pack.weights.gguf.edit import PAD_KEY, RESERVE, pad_value
from strata_pack.weights.gguf.file import open_shards
from tests.pack.tiny_gguf import STOCK, write_shards, write_tiny

HASH = "0" * 64
CASES = [{"name": "one", "messages": [{"role": "user", "content": "Hi"}], "expected": "user: Hi\n"}]


def write_pack(
    root: Path,
    template: str = STOCK,
    *,
    shards: Sequence[int] = (),
    reserve: int = RESERVE,
    golden: Sequence[dict[str, Any]] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a pack to ``root``; ``shards`` as in ``write_shards``, ``reserve`` bytes of pad for a single file."""
    for folder in ("model", "tokenizer", "golden", "reports"):
        (root / folder).mkdir(parents=True)
    extra = {PAD_KEY: pad_value(reserve)} if reserve else {}
    if shards:
        models = write_shards(root / "model", shards, template)
    else:
        models = [write_tiny(root / "model/tiny.gguf", template, extra)]
    (root / TEMPLATE).write_text(template, encoding="utf-8")
    if config is not None:
        (root / "tokenizer/tokenizer_config.json").write_bytes(dump_json(config))
    if golden is not None:
        (root / GOLDEN).write_bytes(dump_json({"cases": list(golden)}))
    listed = sorted(path for path in root.rglob("*") if path.is_file())
    tensors = {t.name: t.type.name for file in open_shards(models[0]) for t in file.tensors}
    manifest = {
        "format": "strata-pack",
        "version": 1,
        "tool": "strata-pack test",
        "source": {"kind": "file", "repo": None, "commit": None, "files": []},
        "model": {
            "name": "tiny",
            "architecture": "llama",
            "parameters": sum(t.elements for file in open_shards(models[0]) for t in file.tensors),
            "bits_per_weight": 32.0,
            "files": [path.relative_to(root).as_posix() for path in models],
            "tensors": tensors,
        },
        "recipe": {"preset": "F32", "text": None, "options": {}, "imatrix_sha256": None},
        "quantizer": {"library": "xllamacpp", "version": "0", "sha256": HASH, "probe_hash": HASH},
        "template": {"id": None, "sha256": sha256_text(template), "origin": "source", "replaced_sha256": None},
        "golden": None
        if golden is None
        else {"suite": "chat_golden", "sha256": HASH, "cases": len(golden), "engines": {}},
        "files": [
            {
                "path": path.relative_to(root).as_posix(),
                "size": path.stat().st_size,
                "sha256": sha256_file(path),
            }
            for path in listed
        ],
    }
    check_manifest(json.loads(json.dumps(manifest)), root / MANIFEST)
    (root / MANIFEST).write_bytes(dump_json(manifest))
    return root


def hashes(root: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below ``root`` but the state of installations."""
    return {
        path.relative_to(root).as_posix(): sha256_file(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part.endswith(".template-install") for part in path.relative_to(root).parts)
    }


def check_listed(root: Path) -> None:
    """Fail unless the manifest lists exactly the files there are, with their sizes and hashes."""
    manifest = check_manifest(json.loads((root / MANIFEST).read_bytes()), root / MANIFEST)
    unlisted = (MANIFEST, f"{REPORTS_DIR}/", *ATTESTATIONS)
    found = {name: digest for name, digest in hashes(root).items() if not name.startswith(unlisted)}
    assert {entry["path"]: entry["sha256"] for entry in manifest["files"]} == found
    assert all((root / entry["path"]).stat().st_size == entry["size"] for entry in manifest["files"])
    assert manifest["template"]["sha256"] == sha256_file(root / TEMPLATE)
