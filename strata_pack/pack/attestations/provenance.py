"""Makes a pack's provenance: an in-toto statement with SLSA provenance, derived from the manifest only.

It contains no time and no machine name: the same inputs give the same statement. Sources: in-toto Attestation
Framework, Statement v1; SLSA Provenance v1; package URLs of the type ``huggingface``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from strata_pack.pack.manifest import Manifest, SourceEntry
from strata_pack.pack.paths import MANIFEST

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:strata-pack:build:v1"
"""Identifies the meaning of the parameters below; it changes when their meaning changes."""
BUILDER = "urn:strata-pack:builder"


def provenance(manifest: Manifest, manifest_sha256: str) -> dict[str, Any]:
    """Return the statement of the pack with ``manifest``, whose file has the SHA-256 ``manifest_sha256``."""
    listed = [(entry["path"], entry["sha256"]) for entry in manifest["files"]]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": name, "digest": {"sha256": sha256}} for name, sha256 in [*listed, (MANIFEST, manifest_sha256)]
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": _external(manifest),
                "internalParameters": {"quantizer": manifest["quantizer"]},
                "resolvedDependencies": _dependencies(manifest),
            },
            "runDetails": {"builder": {"id": BUILDER, "version": {"strata-pack": manifest["tool"]}}},
        },
    }


def _external(manifest: Manifest) -> dict[str, Any]:
    source, asked = manifest["source"], manifest.get("request")
    imatrix = manifest["recipe"]["imatrix_sha256"]
    return {
        "source": {key: source[key] for key in ("kind", "repo", "commit")},
        "model": {"name": manifest["model"]["name"], "files": manifest["model"]["files"]},
        "recipe": manifest["recipe"],
        "imatrix": None if imatrix is None else {"sha256": imatrix},
        "template": manifest["template"],
        "golden": None if manifest["golden"] is None else {"sha256": manifest["golden"]["sha256"]},
        "request": asked,
    }


def _dependencies(manifest: Manifest) -> list[dict[str, Any]]:
    source, recipe = manifest["source"], manifest["recipe"]
    found: list[dict[str, Any]] = []
    if source["repo"] is not None and source["commit"] is not None:
        found.append({"uri": hub_url(source), "digest": {"gitCommit": source["commit"]}})
    for entry in source["files"]:
        one: dict[str, Any] = {"name": entry["path"], "digest": {"sha256": entry["sha256"]}}
        if source["commit"] is not None:
            one = {"uri": hub_url(source, entry["path"]), **one, "annotations": {"commit": source["commit"]}}
        found.append(one)
    if recipe["imatrix_sha256"] is not None:
        found.append({"name": "imatrix", "digest": {"sha256": recipe["imatrix_sha256"]}})
    found.append({"name": "chat template", "digest": {"sha256": manifest["template"]["sha256"]}})
    return found


def hub_url(source: SourceEntry, path: str | None = None) -> str | None:
    """Return the package URL of a Hub source, or of a file of it; ``None`` for a local source."""
    if source["repo"] is None:
        return None
    return repo_url(source["repo"], source["commit"]) + ("" if path is None else f"#{quote(path)}")


def repo_url(repo: str, commit: str | None = None) -> str:
    """Return the package URL of a repository on the Hub."""
    return f"pkg:huggingface/{quote(repo)}" + ("" if commit is None else f"@{commit}")
