"""Converts a provenance statement to a manifest, as far as the statement has the manifest's facts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.pack.attestations.files import read_statement
from strata_pack.pack.manifest import FORMAT, VERSION, Manifest, check_manifest
from strata_pack.pack.paths import MANIFEST

_DAMAGED = "is a provenance statement that lacks what a build needs"


def recorded_manifest(path: Path) -> Manifest:
    """Return the manifest that the statement in ``path`` describes.

    Sizes, tensors, parameters and the architecture are not in a statement: they are empty or 0. Raises ``BadInput``
    for a file that is not a statement of this tool.
    """
    said = read_statement(path)
    try:
        value = _manifest(said)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"{_DAMAGED} ({error})", where=path) from None
    return check_manifest(value, path)


def _manifest(said: dict[str, Any]) -> dict[str, Any]:
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    outside = definition["externalParameters"]
    subjects = [(one["name"], one["digest"]["sha256"]) for one in said["subject"]]
    sources = [
        (one["name"], one["digest"]["sha256"])
        for one in definition["resolvedDependencies"]
        if "name" in one and one["name"] not in ("imatrix", "chat template")
    ]
    value = {
        "format": FORMAT,
        "version": VERSION,
        "tool": details["builder"]["version"]["strata-pack"],
        "source": {**outside["source"], "files": [_entry(*one) for one in sources]},
        "model": {
            **outside["model"],
            "architecture": "unknown",
            "parameters": 0,
            "bits_per_weight": 1.0,
            "tensors": {},
        },
        "recipe": outside["recipe"],
        "quantizer": definition["internalParameters"]["quantizer"],
        "template": outside["template"],
        "golden": None,
        "files": [_entry(*one) for one in subjects if one[0] != MANIFEST],
    }
    return value if outside["request"] is None else {**value, "request": outside["request"]}


def _entry(path: str, sha256: str) -> dict[str, Any]:
    return {"path": path, "size": 0, "sha256": sha256}
