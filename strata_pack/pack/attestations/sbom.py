"""Makes a pack's bill of materials: a CycloneDX 1.6 ML-BOM, derived from the manifest only.

It contains no time, and its serial number is derived from the manifest's hash: the same pack gives the same bytes.
Sources: CycloneDX 1.6 (ECMA-424), SPDX licence identifiers, RFC 9562 (name-based UUIDs).
"""

from __future__ import annotations

import uuid
from typing import Any

from strata_pack.pack.attestations.provenance import hub_url, repo_url
from strata_pack.pack.manifest import LicenseEntry, Manifest
from strata_pack.pack.paths import MANIFEST

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:strata-pack:sbom")

SPDX = {
    name.lower(): name
    for name in (
        *(
            "AFL-3.0",
            "AGPL-3.0-only",
            "Apache-2.0",
            "Artistic-2.0",
            "BSD-2-Clause",
            "BSD-3-Clause",
            "BSD-3-Clause-Clear",
        ),
        *("BSL-1.0", "CC-BY-2.0", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-NC-2.0", "CC-BY-NC-3.0"),
        *(
            "CC-BY-NC-4.0",
            "CC-BY-NC-ND-3.0",
            "CC-BY-NC-ND-4.0",
            "CC-BY-NC-SA-2.0",
            "CC-BY-NC-SA-3.0",
            "CC-BY-NC-SA-4.0",
        ),
        *("CC-BY-ND-4.0", "CC-BY-SA-3.0", "CC-BY-SA-4.0", "CC0-1.0", "ECL-2.0", "EPL-1.0", "EPL-2.0", "EUPL-1.1"),
        *("EUPL-1.2", "GPL-2.0-only", "GPL-3.0-only", "ISC", "LGPL-2.1-only", "LGPL-3.0-only", "LPPL-1.3c", "MIT"),
        *("MPL-2.0", "MS-PL", "NCSA", "ODbL-1.0", "OFL-1.1", "OSL-3.0", "PDDL-1.0", "PostgreSQL", "Unlicense"),
        *("WTFPL", "Zlib"),
    )
}
"""SPDX identifiers by their lower-case spelling on the Hub."""
SPDX |= {
    name: SPDX[f"{name}-only"] for name in ("agpl-3.0", "gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0")
}  # the Hub does not distinguish "only" and "or later"


def sbom(manifest: Manifest, manifest_sha256: str) -> dict[str, Any]:
    """Return the bill of materials of the pack with ``manifest``, whose file has the SHA-256 ``manifest_sha256``."""
    source, model = manifest["source"], manifest["model"]
    licenses = _licenses(source.get("license"))
    bases = [
        _model(name, licenses if name == source["repo"] else {}, hub_url(source) if name == source["repo"] else None)
        for name in source.get("base_models", [])
    ]
    files = [_file(f"file:{entry['path']}", entry["path"], entry["sha256"]) for entry in manifest["files"]]
    files.append(_file(f"file:{MANIFEST}", MANIFEST, manifest_sha256))
    origin = [_file(f"source:{entry['path']}", entry["path"], entry["sha256"]) for entry in source["files"]]
    quantizer = _quantizer(manifest)
    made_of = [one["bom-ref"] for one in (*origin, quantizer)]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(NAMESPACE, manifest_sha256).urn,
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "strata-pack", "version": manifest["tool"]}]},
            "component": {
                "type": "machine-learning-model",
                "bom-ref": "pack",
                "name": model["name"],
                "hashes": _hashes(manifest_sha256),
                **licenses,
                **({"pedigree": {"ancestors": bases}} if bases else {}),
                "modelCard": {
                    "modelParameters": {
                        "task": "text-generation",
                        "architectureFamily": "transformer",
                        "modelArchitecture": model["architecture"],
                    }
                },
                "properties": _properties(manifest),
            },
        },
        "components": [*files, *origin, quantizer],
        "dependencies": [
            {"ref": "pack", "dependsOn": [one["bom-ref"] for one in files]},
            *({"ref": one["bom-ref"], "dependsOn": made_of} for one in files if one["name"] in model["files"]),
        ],
    }


def _properties(manifest: Manifest) -> list[dict[str, str]]:
    template, recipe = manifest["template"], manifest["recipe"]
    texts = {
        "template:sha256": template["sha256"],
        "template:id": template["id"],
        "template:origin": template["origin"],
        "quantization": recipe["preset"],
        "imatrix:sha256": recipe["imatrix_sha256"],
        "parameters": str(manifest["model"]["parameters"]),
        "bits-per-weight": str(manifest["model"]["bits_per_weight"]),
    }
    return [{"name": f"strata-pack:{name}", "value": text} for name, text in texts.items() if text is not None]


def _licenses(entry: LicenseEntry | None) -> dict[str, Any]:
    if entry is None:
        return {}
    known = SPDX.get(entry["id"])
    one: dict[str, str] = {"id": known} if known is not None else {"name": entry.get("name", entry["id"])}
    if "link" in entry and "://" in entry["link"]:
        one["url"] = entry["link"]
    return {"licenses": [{"license": one}]}


def _model(name: str, licenses: dict[str, Any], purl: str | None) -> dict[str, Any]:
    group, _, short = name.rpartition("/")
    return {
        "type": "machine-learning-model",
        "bom-ref": f"base:{name}",
        "group": group,
        "name": short,
        "purl": purl or repo_url(name),
        **licenses,
    }


def _file(reference: str, name: str, sha256: str) -> dict[str, Any]:
    return {"type": "file", "bom-ref": reference, "name": name, "hashes": _hashes(sha256)}


def _quantizer(manifest: Manifest) -> dict[str, Any]:
    library = manifest["quantizer"]
    return {
        "type": "library",
        "bom-ref": "quantizer",
        "name": library["library"],
        "version": library["version"],
        "hashes": _hashes(library["sha256"]),
    }


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
