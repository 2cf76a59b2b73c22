"""Plans an installation: the changes that put a template into a target, without writing them.

The GGUF's key is changed in place if the header has room. If not, a pack gets a header-only first shard, and a plain
file, which must keep its name, is copied with a longer header.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

from strata_pack.chat.golden.check import GoldenSuite
from strata_pack.errors import BadInput, CheckFailed, EnvironmentFailure
from strata_pack.files import CHUNK, dump_json, free_bytes, parse_json_object, read_bytes, sha256_file
from strata_pack.pack.attestations.files import attestation_files
from strata_pack.pack.journal import LIMIT, JournalStep, Move, Patch, Put, Rewrite
from strata_pack.pack.manifest import FileEntry, GoldenEntry, Manifest, TemplateEntry
from strata_pack.pack.paths import GOLDEN, MANIFEST, NAMED_KEY, TEMPLATE
from strata_pack.pack.template.target import (
    NAMES_KEY,
    TOKENIZER_CONFIG,
    TemplateTarget,
    read_tokenizer_config,
)
from strata_pack.progress import Progress
from strata_pack.weights.gguf.copy import allocated_bytes, can_share
from strata_pack.weights.gguf.edit import (
    TEMPLATE_KEY,
    Header,
    changes_between,
    edited,
    fit,
    outgrow,
    read_header,
    split_headers,
)
from strata_pack.weights.gguf.file import MetaValue, shard_name

Method = Literal["in place", "first shard", "copy", "none"]

_SHARD_SUFFIX = re.compile(r"-\d{5}-of-\d{5}$")
MARGIN = 16 << 20
"""Bytes that must remain free on the disk in addition to the bytes written."""


@dataclass(frozen=True)
class ModelFile:
    """One GGUF after the change: its new name, its header before (``None``: a new file) and after."""

    path: Path
    name: str
    old: Header | None
    new: bytes

    @property
    def size(self) -> int:
        """Bytes of the file after the change."""
        return len(self.new) if self.old is None else self.old.file_size - self.old.data_offset + len(self.new)


@dataclass(frozen=True)
class ModelPlan:
    """``files`` are all GGUF files of the model afterwards, in shard order; ``written`` is the number of bytes
    written."""

    method: Method
    files: tuple[ModelFile, ...]
    steps: tuple[JournalStep, ...]
    written: int
    removed_keys: tuple[str, ...]


def plan_model(target: TemplateTarget, text: str, kept: Mapping[str, str]) -> ModelPlan:
    """Plan the change of the GGUF's template; ``kept`` are the named templates to keep, other named ones are removed.

    Raises ``EnvironmentFailure`` if a copy is needed and the disk has no room for it.
    """
    headers = [read_header(path) for path in target.files]
    first = headers[0]
    others = {key: kept.get(key.removeprefix(NAMED_KEY)) for key in first.metadata if key.startswith(NAMED_KEY)}
    named = tuple(key for key, new in others.items() if new is None)
    if NAMES_KEY in first.metadata and len(named) == len(others):
        named = (*named, NAMES_KEY)
    same = all(new in (None, str(first.metadata[key].value)) for key, new in others.items())
    rest = [ModelFile(header.path, header.path.name, header, header.raw) for header in headers[1:]]
    present = first.metadata.get(TEMPLATE_KEY)
    if present is not None and present.value == text and same and not named:
        return ModelPlan("none", (ModelFile(first.path, first.path.name, first, first.raw), *rest), (), 0, ())
    written = {key: MetaValue.string(new) for key, new in others.items() if new is not None}
    changes: dict[str, MetaValue | None] = {TEMPLATE_KEY: MetaValue.string(text), **written, **dict.fromkeys(named)}
    metadata = edited(first.metadata, changes)
    fitting = fit(first, metadata)
    if not first.tensors and first.file_size <= LIMIT:
        return _replace_whole(target, first, _fitting_or_longer(fitting, first, metadata), rest, named)
    shared = first.path.stat().st_nlink > 1
    if fitting is not None and not shared:
        file = ModelFile(first.path, first.path.name, first, fitting)
        steps = _patches(target.root, first.path, first, fitting)
        return ModelPlan("in place", (file, *rest), steps, _patched_bytes(steps), named)
    if target.pack is not None and not shared:
        plan = _plan_first_shard(target, headers, metadata, named)
        if plan is not None:
            return plan
    return _plan_copy(target, first, _fitting_or_longer(fitting, first, metadata), rest, named)


def _fitting_or_longer(fitting: bytes | None, header: Header, metadata: dict[str, MetaValue]) -> bytes:
    """Return the header that fits in place, else a longer one."""
    return fitting if fitting is not None else outgrow(header, metadata)


def _relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _patches(root: Path, path: Path, header: Header, new: bytes) -> tuple[Patch, ...]:
    where, size = _relative(root, path), header.file_size
    return tuple(Patch(where, size, c.offset, c.old, c.new) for c in changes_between(header.raw, new))


def _patched_bytes(steps: tuple[Patch, ...]) -> int:
    return sum(len(step.new) for step in steps)


def _replace_whole(
    target: TemplateTarget, first: Header, new: bytes, rest: list[ModelFile], named: tuple[str, ...]
) -> ModelPlan:
    old = read_bytes(first.path, LIMIT)
    file = ModelFile(first.path, first.path.name, None, new)
    step = Put(_relative(target.root, first.path), old, new)
    return ModelPlan("in place", (file, *rest), (step,), len(new), named)


def _plan_first_shard(
    target: TemplateTarget, headers: list[Header], metadata: dict[str, MetaValue], named: tuple[str, ...]
) -> ModelPlan | None:
    split = split_headers(headers, metadata)
    if split is None:
        return None
    first, following = split
    count = len(headers) + 1
    folder = headers[0].path.parent
    stem = _SHARD_SUFFIX.sub("", headers[0].path.stem)
    names = [shard_name(stem, index, count) for index in range(count)]
    if taken := next((name for name in names if (folder / name).exists()), None):
        raise BadInput("is in the way of the pack's new first shard", where=folder / taken, remedy="move it away")
    files = [ModelFile(folder / names[0], names[0], None, first)]
    moves: list[JournalStep] = [Put(_relative(target.root, folder / names[0]), None, first)]
    patches: list[Patch] = []
    for header, new, name in zip(headers, following, names[1:], strict=True):
        files.append(ModelFile(header.path, name, header, new))
        moves.append(Move(_relative(target.root, header.path), _relative(target.root, folder / name)))
        patches += _patches(target.root, folder / name, header, new)
    written = len(first) + _patched_bytes(tuple(patches))
    return ModelPlan("first shard", tuple(files), (*moves, *patches), written, named)


def _plan_copy(
    target: TemplateTarget, first: Header, new: bytes, rest: list[ModelFile], named: tuple[str, ...]
) -> ModelPlan:
    need = allocated_bytes(first.path) + len(new)
    if can_share(first.path):
        need = len(new)
    free = free_bytes(first.path.parent)
    if need + MARGIN > free:
        raise EnvironmentFailure(
            f"its header has no room for this template, and a copy of the file needs {need / 1e9:.1f} GB where "
            f"{free / 1e9:.1f} GB are free",
            where=first.path,
            remedy="free some space, or use the template from a file with --chat-template-file",
        )
    file = ModelFile(first.path, first.path.name, first, new)
    step = Rewrite(_relative(target.root, first.path), first.file_size, file.size, first.raw, new)
    return ModelPlan("copy", (file, *rest), (step,), need, named)


def plan_folder(target: TemplateTarget, text: str, suite: GoldenSuite | None) -> tuple[list[Put], list[str]]:
    """Plan the changes of a pack's small files; return them and the places of the copies that change.

    Named copies get the same text: a pack has a single template.
    """
    steps: list[Put] = []
    changed: list[str] = []

    def put(relative: str, new: bytes, place: str) -> None:
        path = target.root / relative
        old = read_bytes(path, LIMIT) if path.is_file() else None
        if old != new:
            steps.append(Put(relative, old, new))
            changed.append(place)

    put(TEMPLATE, text.encode(), TEMPLATE)
    config = read_tokenizer_config(target.root)
    if config is not None and config.get("chat_template") not in (None, text):
        put(TOKENIZER_CONFIG, dump_json({**config, "chat_template": text}), f"{TOKENIZER_CONFIG}: chat_template")
    for one in target.copies:
        if one.kind == "additional":
            put(one.place, text.encode(), one.place)
    if suite is not None:
        put(GOLDEN, golden_bytes(suite), GOLDEN)
    return steps, changed


def golden_bytes(suite: GoldenSuite) -> bytes:
    """Return the suite as the pack's golden file."""
    return dump_json({"cases": [case.to_dict() for case in suite.cases]})


def plan_manifest(
    target: TemplateTarget,
    model: ModelPlan,
    puts: list[Put],
    template: TemplateEntry,
    golden: GoldenEntry | None,
    progress: Progress,
) -> Put:
    """Plan the new manifest; changed files are hashed before and after the change.

    Raises ``CheckFailed`` if a file does not match the manifest: a damaged file must not get a new hash.
    """
    assert target.pack is not None
    manifest: Manifest = copy.deepcopy(target.pack.manifest)
    entries = {entry["path"]: entry for entry in manifest["files"]}
    names = []
    for file in model.files:
        relative = _relative(target.root, file.path.with_name(file.name))
        names.append(relative)
        before = entries.pop(_relative(target.root, file.path), None)
        if file.old is not None and file.old.raw == file.new and before is not None:
            entries[relative] = before
            continue
        old_sha, new_sha = _hash_both(file, progress)
        if file.path.exists() and (before is None or before["sha256"] != old_sha):
            remedy = "find out why with `strata-pack verify`; nothing was changed"
            raise CheckFailed("is not the file that the manifest lists", where=file.path, remedy=remedy)
        entries[relative] = FileEntry(path=relative, size=file.size, sha256=new_sha)
    for step in puts:
        assert step.new is not None
        digest = hashlib.sha256(step.new).hexdigest()
        entries[step.path] = FileEntry(path=step.path, size=len(step.new), sha256=digest)
    manifest["files"] = sorted(entries.values(), key=lambda entry: entry["path"])
    manifest["model"]["files"] = names
    manifest["template"] = template
    manifest["golden"] = golden
    return Put(MANIFEST, read_bytes(target.root / MANIFEST, LIMIT), dump_json(manifest))


def plan_attestations(target: TemplateTarget, manifest: Put) -> list[Put]:
    """Plan the provenance and bill of materials of a pack with the new ``manifest``, if it has them."""
    assert manifest.new is not None
    new = attestation_files(parse_json_object(manifest.new, MANIFEST))  # type: ignore[arg-type]
    there = {name: target.root / name for name in new if (target.root / name).is_file()}
    return [Put(name, read_bytes(path, LIMIT), new[name]) for name, path in there.items()]


def _hash_both(file: ModelFile, progress: Progress) -> tuple[str, str]:
    """Return the SHA-256 of the file before and after the change, from one reading."""
    before, after = hashlib.sha256(), hashlib.sha256(file.new)
    if file.old is None:
        return sha256_file(file.path) if file.path.exists() else "", after.hexdigest()
    task = progress.task(f"hash {file.path.name}", file.old.file_size)
    with file.path.open("rb") as source, ThreadPoolExecutor(1) as other:
        before.update(source.read(file.old.data_offset))
        while chunk := source.read(8 * CHUNK):
            running = other.submit(before.update, chunk)
            after.update(chunk)
            running.result()
            task.advance(len(chunk))
    task.done()
    return before.hexdigest(), after.hexdigest()


class InstallPlanDict(TypedDict, total=False):
    """What an installation writes, in bytes; a rollback has only its method."""

    method: str
    bytes_written: int
    files: list[str]
    removed_keys: list[str]
    shares_extents: bool
    free_bytes: int


def describe_plan(model: ModelPlan, target: TemplateTarget) -> InstallPlanDict:
    """Return the description of what will be written, as text and data."""
    return {
        "method": model.method,
        "bytes_written": model.written,
        "files": [file.name for file in model.files],
        "removed_keys": list(model.removed_keys),
        "shares_extents": model.method == "copy" and can_share(target.files[0]),
        "free_bytes": free_bytes(target.root),
    }
