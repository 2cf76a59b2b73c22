"""Defines the manifest's types, and reads, validates and writes it: a pack's files, source, tools and checks.

``manifest.schema.json`` next to this file defines the format. A manifest contains no times and no paths of the machine:
the same inputs give the same bytes.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from strata_pack.errors import BadInput
from strata_pack.files import dump_json, read_json, write_atomic
from strata_pack.pack.schema_check import problems

if TYPE_CHECKING:
    from strata_pack.llama.quantizer import KernelEntry

FORMAT = "strata-pack"
VERSION = 1
LIMIT = 64 << 20
"""Maximum bytes of a manifest. It lists every tensor, so that of a big mixture of experts reaches a few MB."""


class FileEntry(TypedDict):
    """One file: ``path`` with ``/`` inside the pack (or the source), ``size`` in bytes, ``sha256`` in hex.

    ``role`` is "projector" for a projector's GGUF.
    """

    path: str
    size: int
    sha256: str
    role: NotRequired[str]


class LicenseEntry(TypedDict):
    """``id`` as the Hub spells it ("apache-2.0", "other"); ``name`` and ``link`` of a licence without a standard id."""

    id: str
    name: NotRequired[str]
    link: NotRequired[str]


class SourceEntry(TypedDict):
    """``license`` and ``base_models`` (hub ids) are present if the source states them."""

    kind: Literal["file", "folder", "hub"]
    repo: str | None
    commit: str | None
    files: list[FileEntry]
    license: NotRequired[LicenseEntry]
    base_models: NotRequired[list[str]]


class ModelEntry(TypedDict):
    """``tensors`` maps each tensor's name to its ggml type; ``parameters`` counts elements."""

    name: str
    architecture: str
    parameters: int
    bits_per_weight: float
    files: list[str]
    tensors: dict[str, str]


class RecipeEntry(TypedDict):
    preset: str
    text: str | None
    options: dict[str, Any]
    imatrix_sha256: str | None


class RequestEntry(TypedDict):
    """The build's request, by which an existing pack is recognised.

    ``template`` is "auto", "keep", a shipped template's id and SHA-256, or the SHA-256 of a file; ``golden`` the
    SHA-256 of the given cases; ``name`` the given name; ``template_sha256`` that of the template the build installed;
    ``parts`` the options for projector, draft head and converter, if not the defaults.
    """

    template: str
    golden: str | None
    name: str | None
    template_sha256: str
    parts: NotRequired[str]


class LibraryEntry(TypedDict):
    library: str
    version: str
    sha256: str
    probe_hash: str


class QuantizerEntry(LibraryEntry, total=False):
    """``kernels`` maps each type to the kernel that quantized it; packs of older versions lack it."""

    kernels: KernelEntry


class TemplateEntry(TypedDict):
    """``origin`` is "shipped", "file", "source" or "repaired"; ``replaced_sha256`` is that of the
    source GGUF's template.

    ``allowed_triggers`` are sentences on text that the template adds or hides on a trigger and that the user accepted.
    """

    id: str | None
    sha256: str
    origin: Literal["shipped", "file", "source", "repaired"]
    replaced_sha256: str | None
    allowed_triggers: NotRequired[list[str]]


class GoldenEntry(TypedDict):
    """``engines`` maps an engine's name to its version and counts."""

    suite: str
    sha256: str
    cases: int
    engines: dict[str, dict[str, Any]]


class ProjectorEntry(TypedDict):
    """The vision projector: its ``file`` in the pack, its ``type``, and its number of weights."""

    file: str
    type: str
    parameters: int


class _Later(TypedDict, total=False):
    """Keys that manifests of earlier releases lack; ``projector`` is absent in packs without one."""

    request: RequestEntry
    projector: ProjectorEntry


class Manifest(_Later):
    format: str
    version: int
    tool: str
    source: SourceEntry
    model: ModelEntry
    recipe: RecipeEntry
    quantizer: QuantizerEntry
    template: TemplateEntry
    golden: GoldenEntry | None
    files: list[FileEntry]


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the manifest."""
    value: dict[str, Any] = json.loads((Path(__file__).parent / "manifest.schema.json").read_bytes())
    return value


def check_manifest(value: Any, where: Path) -> Manifest:
    """Return ``value`` as a manifest; raises ``BadInput``, which names the invalid field."""
    if isinstance(value, dict) and value.get("format") == FORMAT and value.get("version") not in (VERSION, None):
        remedy = "use a newer strata-pack"
        raise BadInput(f"manifest version {value['version']!r} is not supported", where=where, remedy=remedy)
    for place, problem in problems(value, schema()):
        named = "/".join(str(part) for part in place) or "top level"
        raise BadInput(f"is not a valid manifest ({named}: {problem})", where=where)
    manifest: Manifest = value
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest."""
    return check_manifest(read_json(path, LIMIT), path)


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write ``manifest`` to ``path``, whole or not at all."""
    write_atomic(path, dump_json(manifest))
