"""The source of a release: pinned to a commit, fetched once, and passed to every pack with its hashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from strata_pack.errors import WrongUse
from strata_pack.outputs import is_inside, is_same_file
from strata_pack.pack.model_source import Model, SourceFile, bring, hub_folder
from strata_pack.progress import Progress, Silent
from strata_pack.release.lock import Lock, LockedFile, LockedSource
from strata_pack.release.release_file import Release
from strata_pack.release.results import Result
from strata_pack.weights.hub.fetch import look
from strata_pack.weights.hub.select import Weights
from strata_pack.weights.source import HubSource, parse_source


def pin_source(
    release: Release, lock: Lock | None, *, update: bool = False, progress: Progress | None = None
) -> LockedSource:
    """Return the pinned source, or pin it now.

    ``update`` pins the revision's current commit. Raises as ``look`` for a Hub source (no network is
    used for a pinned one), ``BadInput`` for a local source without a model, ``WrongUse`` for packs
    inside the source.
    """
    source = parse_source(release.source)
    if not isinstance(source, HubSource):
        if source.path.is_dir() and (is_same_file(release.out, source.path) or is_inside(release.out, source.path)):
            raise WrongUse("lies in the source", where=release.out, remedy="let out name a folder outside of it")
        return _local(release.source, None if lock is None else lock["source"])
    if lock is not None and not update and lock["source"]["text"] == release.source:
        return lock["source"]
    folder = hub_folder(source, release.state / "source")
    plan = look(source.repo_id, source.revision, folder, path=source.path, progress=progress)
    return LockedSource(
        text=release.source,
        kind="hub",
        repo=plan.tree.repo_id,
        commit=plan.tree.commit,
        format=plan.selection.weights.format,
        files=[_entry(file.path, file.size, file.sha256) for file in plan.selection.files],
    )


def _local(text: str, known: LockedSource | None) -> LockedSource:
    model = bring(parse_source(text), Path(), Silent(), lambda _folder: None)
    hashes = {} if known is None else {file["path"]: file for file in known["files"]}
    files = []
    for file in model.files:
        size = file.path.stat().st_size
        before = hashes.get(file.name)
        same = before is not None and before["size"] == size
        files.append(_entry(file.name, size, before.get("sha256") if before is not None and same else None))
    # The lock is shared by machines, so it holds no local path.
    return LockedSource(
        text=Path(text).name, kind=model.kind, repo=None, commit=None, format=model.weights.format, files=files
    )


def _entry(path: str, size: int, sha256: str | None) -> LockedFile:
    entry = LockedFile(path=path, size=size)
    if sha256 is not None:
        entry["sha256"] = sha256
    return entry


def hashed(source: LockedSource, fetched: Result) -> LockedSource:
    """Return ``source`` with the fetched files' hashes and the template's hash."""
    files = [
        LockedFile(path=name, size=record["size"], sha256=record["sha256"])
        for name, record in zip(fetched["data"]["files"], fetched["files"], strict=True)
    ]
    return {**source, "files": files, "template_sha256": fetched["data"]["template_sha256"]}


def bring_source(
    text: str, commit: str | None, state: Path, progress: Progress, early: Callable[[Path], None]
) -> Model:
    """Fetch the pinned commit into ``state``, or find the local source. Raises as ``bring``."""
    source = parse_source(text)
    if isinstance(source, HubSource):
        source = replace(source, revision=commit)
    return bring(source, state / "source", progress, early)


def fetch_data(model: Model, template_sha256: str | None) -> dict[str, object]:
    """Return the JSON, without paths, that ``brought_model`` needs besides the files."""
    weights = model.weights
    return {
        "kind": model.kind,
        "name": model.name,
        "format": weights.format,
        "weights": list(weights.files),
        "index": weights.index,
        "repo": model.repo,
        "commit": model.commit,
        "files": [file.name for file in model.files],
        "template_sha256": template_sha256,
    }


def brought_model(text: str, out: Path, fetched: Result) -> Model:
    """Return the fetched model with the hashes that were checked then."""
    data, source = fetched["data"], parse_source(text)
    if isinstance(source, HubSource):
        root = hub_folder(source, out / ".release" / "source")
    else:
        root = source.path.parent if data["kind"] == "file" else source.path
    files = tuple(
        SourceFile(name, out / record["path"], record["sha256"])
        for name, record in zip(data["files"], fetched["files"], strict=True)
    )
    return Model(
        kind=data["kind"],
        name=data["name"],
        weights=Weights(data["format"], tuple(data["weights"]), data["index"]),
        root=root,
        folder=None if data["kind"] == "file" else root,
        files=files,
        repo=data["repo"],
        commit=data["commit"],
    )


def first_weights(model: Model) -> Path:
    """Return the first GGUF of a GGUF model, or the folder of a checkpoint."""
    if model.weights.format == "gguf":
        return model.root / model.weights.files[0]
    return (model.root / (model.weights.index or model.weights.files[0])).parent
