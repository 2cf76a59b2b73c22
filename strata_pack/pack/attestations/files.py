"""Writes provenance and bill of materials as files of a pack, and checks existing ones against the manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import dump_json, read_json_object, sha256_bytes, sha256_file
from strata_pack.pack.attestations.provenance import BUILD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE, provenance
from strata_pack.pack.attestations.sbom import sbom
from strata_pack.pack.manifest import Manifest
from strata_pack.pack.paths import MANIFEST, PROVENANCE, SBOM, member

LIMIT = 64 << 20
"""Maximum bytes of such a file; it has about 200 bytes for each file of the pack."""

SHOWN = 120
"""Maximum characters of a value that a difference shows."""

_MISSING = object()

ATTESTATIONS: Mapping[str, Callable[[Manifest, str], dict[str, Any]]] = {PROVENANCE: provenance, SBOM: sbom}
"""The function that makes each file from the manifest and its SHA-256."""


def attestation_files(manifest: Manifest) -> dict[str, bytes]:
    """Return the content of both files by their names in the pack."""
    digest = sha256_bytes(dump_json(manifest))
    return {name: dump_json(make(manifest, digest)) for name, make in ATTESTATIONS.items()}


def provenance_problems(root: Path, manifest: Manifest) -> list[str]:
    """Return the differences between the statement in the pack ``root`` and the manifest; none if there is no
    statement."""
    path = member(root, PROVENANCE)
    if not path.is_file():
        return []
    said = read_statement(path)
    wanted = provenance(manifest, sha256_file(root / MANIFEST))
    return [f"{PROVENANCE} {problem}" for problem in differences(said, wanted)]


def sbom_problems(root: Path, manifest: Manifest) -> list[str]:
    """Return the differences between the bill of materials in the pack ``root`` and the manifest.

    Additions by others are allowed: keys that the manifest does not determine are ignored.
    """
    path = member(root, SBOM)
    if not path.is_file():
        return []
    said = read_json_object(path, LIMIT)
    wanted = sbom(manifest, sha256_file(root / MANIFEST))
    return [f"{SBOM} {problem}" for problem in differences(said, wanted, more=True)]


def read_statement(path: Path) -> dict[str, Any]:
    """Return the provenance statement in ``path``; ``BadInput`` for a file that is not one of this tool."""
    said = read_json_object(path, LIMIT)
    if said.get("_type") != STATEMENT_TYPE:
        raise BadInput(f"is not an in-toto statement ({str(said.get('_type'))[:SHOWN]!r})", where=path)
    if said.get("predicateType") != PREDICATE_TYPE:
        raise BadInput(f"is not SLSA provenance ({str(said.get('predicateType'))[:SHOWN]!r})", where=path)
    predicate = said.get("predicate")
    definition = predicate.get("buildDefinition") if isinstance(predicate, dict) else None
    kind = definition.get("buildType") if isinstance(definition, dict) else None
    if kind != BUILD_TYPE:
        problem = f"describes a build of another kind ({str(kind)[:SHOWN]!r})"
        raise BadInput(problem, where=path, remedy="use the tool that wrote it")
    return said


def differences(said: Any, wanted: Any, at: str = "", *, more: bool = False) -> Iterator[str]:
    """Yield the differences of ``said`` from ``wanted`` (decoded JSON), by path; ``more`` allows additional keys.

    Items of lists are matched by their ``bom-ref`` or ``name``, else by position.
    """
    if isinstance(said, dict) and isinstance(wanted, dict):
        for key in wanted if more else dict.fromkeys([*wanted, *said]):
            inner = f"{at}/{key}".lstrip("/")
            if key not in said:
                yield f"lacks {inner}"
            elif key not in wanted:
                yield f"has {inner}, which is not in the manifest"
            else:
                yield from differences(said[key], wanted[key], inner, more=more)
    elif isinstance(said, list) and isinstance(wanted, list):
        named = _by_name(said), _by_name(wanted)
        if named[0] is not None and named[1] is not None:
            yield from differences(named[0], named[1], at, more=more)
        else:
            for index, (one, other) in enumerate(zip_longest(said, wanted, fillvalue=_MISSING)):
                if one is _MISSING or other is _MISSING:
                    yield f"has {len(said)} items in {at} and not {len(wanted)}"
                    return
                yield from differences(one, other, f"{at}/{index}", more=more)
    elif said != wanted or type(said) is not type(wanted):
        yield f"says {str(said)[:SHOWN]!r} for {at} and the manifest {str(wanted)[:SHOWN]!r}"


def _by_name(items: list[Any]) -> dict[str, Any] | None:
    for key in ("bom-ref", "name"):
        if items and all(isinstance(one, dict) and isinstance(one.get(key), str) for one in items):
            found = {one[key]: one for one in items}
            return found if len(found) == len(items) else None
    return None
