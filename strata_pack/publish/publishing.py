"""Publish packs: verify and sign them, write the card, and upload what has changed.

Every file's hash is known before anything is sent, so a dry run reports everything a run would do, and a second run
finds nothing to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from strata_pack.errors import BadInput, CheckFailed, EnvironmentFailure, StrataError, WrongUse
from strata_pack.files import dump_json, parse_json_object, sha256_file, write_atomic
from strata_pack.pack.attestations.files import attestation_files
from strata_pack.pack.contents import walk
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import SIGNATURE, STATE_DIR
from strata_pack.pack.verification import verify
from strata_pack.progress import Progress, Silent
from strata_pack.publish.card import CardFacts, Figures, card_files
from strata_pack.publish.folder import check_apart, check_outside, look_into, write_folder
from strata_pack.publish.hub import ConcurrentCommit, HubState, commit, gated_sources, look_at, open_to_all, read_small
from strata_pack.publish.items import FileChange, FileChangeDict, PublishedFile, TargetFile, plan_changes
from strata_pack.publish.keys import fingerprint, read_private_key
from strata_pack.publish.licence import questions
from strata_pack.publish.oci import oci_changes, oci_items, write_oci
from strata_pack.publish.signing import fresh_signature
from strata_pack.report.model import Check
from strata_pack.weights.hub.connection import Hub, connect
from strata_pack.weights.source import is_repo_id

FIGURES = "figures.json"
"""File next to the card with the measurements, for the next card."""

TRIES = 3
"""Attempts to commit when others publish to other paths of the repository meanwhile."""


class LicenceQuestion(WrongUse):
    """The source's licence must be read before its packs are published; ``questions`` are sentences."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__("; ".join(found), remedy="read the terms, then say so with --accept-licence")
        self.questions = tuple(found)


class PublishedDict(TypedDict):
    """A ``Published`` as JSON; sizes in bytes."""

    target: str
    commit: str | None
    dry_run: bool
    bytes: int
    changes: list[FileChangeDict]
    questions: list[str]


@dataclass(frozen=True)
class Published:
    """What was done, or would be with ``dry_run``; ``commit`` is the Hub's, ``None`` for other targets."""

    target: str
    changes: tuple[FileChange, ...]
    commit: str | None
    dry_run: bool
    questions: tuple[str, ...] = ()

    @property
    def travelling(self) -> int:
        """Size in bytes of the added and replaced files."""
        return sum(change.size for change in self.changes if change.kind in ("add", "replace"))

    def to_dict(self) -> PublishedDict:
        return {
            "target": self.target,
            "commit": self.commit,
            "dry_run": self.dry_run,
            "bytes": self.travelling,
            "changes": [change.to_dict() for change in self.changes],
            "questions": list(self.questions),
        }


@dataclass(frozen=True)
class PublishOptions:
    """How packs are published. ``private`` applies to a new repository; ``base_model`` overrides what the
    packs record; ``figures`` are by pack name, and figures of an earlier release are kept. ``agree`` is called with
    the files that would be replaced or removed, before any change; an exception that it raises stops publishing."""

    accept_licence: bool = False
    private: bool = False
    title: str | None = None
    author: str | None = None
    base_model: str | None = None
    message: str | None = None
    figures: Mapping[str, Figures] | None = None
    agree: Callable[[Sequence[FileChange]], None] | None = None

    def ask(self, changes: Sequence[FileChange]) -> None:
        """Call ``agree`` if files would be replaced or removed."""
        lost = [change for change in changes if change.kind in ("replace", "remove")]
        if lost and self.agree is not None:
            self.agree(lost)


def publish(
    packs: Sequence[Path],
    target: str,
    *,
    key: Path | None = None,
    dry_run: bool = False,
    options: PublishOptions | None = None,
    progress: Progress | None = None,
    hub: Hub | None = None,
) -> Published:
    """Publish ``packs`` to ``target``: a hub id (``org/name``), a folder (``dir:DIR``) or an OCI layout (``oci:DIR``).

    ``key`` is the private key that signs each pack. Nothing is changed anywhere with ``dry_run``. Raises
    ``CheckFailed`` for a pack that does not verify, ``LicenceQuestion`` unless ``options.accept_licence``,
    ``ConcurrentCommit`` if somebody else published the same files meanwhile, ``EnvironmentFailure`` for network and
    disk. After any exception the target is unchanged or complete.
    """
    options, watcher = options or PublishOptions(), progress or Silent()
    opened = _open(packs)
    kind, place = parse_target(target)
    if kind != "hub":
        (check_apart if kind == "dir" else check_outside)(opened, Path(place).expanduser())
    private = None if key is None else read_private_key(key, watcher)
    hub = hub or (connect() if kind == "hub" else None)
    prepared = [_prepare(pack, private, watcher) for pack in opened]
    gated = gated_sources(hub, _sources(opened)) if hub is not None else []
    asked = questions(opened, gated)
    if asked and not (options.accept_licence or dry_run):
        raise LicenceQuestion(asked)
    name = fingerprint(private.public_key()) if private is not None else None
    release = _Release(opened, [item for items in prepared for item in items], options, name, watcher)
    if not dry_run:
        for pack, items in zip(opened, prepared, strict=True):
            _write_into(pack, items)
    if kind == "oci":
        return _to_oci(release, target, Path(place), dry_run=dry_run, asked=asked)
    if kind == "dir":
        return _to_folder(release, Path(place), dry_run=dry_run, asked=asked)
    assert hub is not None
    return _to_hub(release, hub, place, dry_run=dry_run, asked=asked)


def parse_target(text: str) -> tuple[str, str]:
    """Return (kind, place) of a target; kinds are "hub", "dir" and "oci".

    A plain ``org/name`` is the Hub's, a path is absolute or begins with a dot.
    """
    for prefix, kind in (("oci:", "oci"), ("dir:", "dir"), ("hf://", "hub")):
        if text.startswith(prefix):
            place = text.removeprefix(prefix)
            if not place or (kind == "hub" and not is_repo_id(place)):
                raise BadInput("names no target", where=text, remedy="give org/name, dir:DIR or oci:DIR")
            return kind, place
    if text.startswith(("/", "./", "../", "~")):
        return "dir", text
    if not is_repo_id(text):
        raise BadInput("is not a hub id", where=text, remedy="give org/name, or --to DIR or oci:DIR")
    return "hub", text


@dataclass(frozen=True)
class _Release:
    packs: Sequence[Pack]
    items: Sequence[PublishedFile]
    options: PublishOptions
    fingerprint: str | None
    progress: Progress

    @property
    def folders(self) -> list[str]:
        return [pack.path.name for pack in self.packs]

    def whole(self, repo: str | None, earlier: Mapping[str, Figures]) -> dict[str, PublishedFile]:
        """Return every item by its path, with the card; ``earlier`` are the figures in the target."""
        options = self.options
        figures = {**earlier, **(options.figures or {})}
        facts = CardFacts(repo, options.title, options.author, options.base_model, self.fingerprint, figures)
        files = card_files(self.packs, facts)
        if figures:
            files[FIGURES] = dump_json({name: asdict(one) for name, one in sorted(figures.items())})
        items = [*self.items, *(PublishedFile.of_bytes(name, data) for name, data in files.items())]
        return {item.path: item for item in items}


def _open(paths: Sequence[Path]) -> list[Pack]:
    if not paths:
        raise WrongUse("no pack is given", remedy="name the folders of packs")
    packs = [Pack.open(path) for path in paths]
    names = [pack.path.name for pack in packs]
    for name in names:
        if names.count(name) > 1:
            raise WrongUse(f"two packs are called {name}", remedy="rename one folder")
    return packs


def _sources(packs: Sequence[Pack]) -> list[str]:
    return sorted({repo for pack in packs if (repo := pack.manifest["source"]["repo"]) is not None})


def _prepare(pack: Pack, key: Any, progress: Progress) -> list[PublishedFile]:
    """Verify a pack and return its files, with missing attestations and an up-to-date signature added."""
    known: dict[str, str] = {}

    def keep(_: Pack, digests: Mapping[str, str]) -> Check:
        known.update(digests)
        return Check("published", "", "passed")

    report = verify(pack.path, progress, [keep])
    if not report.ok:
        failed = next(check for check in report.checks if check.status not in ("passed", "skipped"))
        problem = f"does not verify ({failed.id}: {failed.detail[:200]}); nothing was published"
        raise CheckFailed(problem, where=pack.path, remedy="see `strata-pack verify`")
    new = {name: data for name, data in attestation_files(pack.manifest).items() if not (pack.path / name).exists()}
    for name in walk(pack.path, (STATE_DIR,)):
        if (pack.path / name).is_symlink() or not (pack.path / name).is_file():
            raise CheckFailed(f"{name} is no plain file; nothing was published", where=pack.path)
        if name not in known and not name.startswith(".git"):
            known[name] = sha256_file(pack.path / name)
    digests = {**known, **{name: PublishedFile.of_bytes(name, data).sha256 for name, data in new.items()}}
    if key is not None and (signature := fresh_signature(pack, digests, key)) is not None:
        new[SIGNATURE] = signature
    folder = pack.path.name
    items = [PublishedFile.of_file(f"{folder}/{n}", pack.path / n, d) for n, d in sorted(known.items()) if n not in new]
    return items + [PublishedFile.of_bytes(f"{folder}/{name}", data) for name, data in new.items()]


def _write_into(pack: Pack, items: Sequence[PublishedFile]) -> None:
    """Write a pack's new attestations and signature into the pack itself, so that both copies are equal."""
    for item in items:
        if item.data is not None:
            write_atomic(pack.path.parent / item.path, item.data)


def _to_oci(release: _Release, target: str, out: Path, *, dry_run: bool, asked: Sequence[str]) -> Published:
    items = oci_items(release.packs, out)
    changes = oci_changes(items, out)
    if not dry_run:
        release.options.ask(changes)
        write_oci(out, items, changes, release.progress)
    return Published(target, tuple(changes), None, dry_run, tuple(asked))


def _to_folder(release: _Release, out: Path, *, dry_run: bool, asked: Sequence[str]) -> Published:
    there = look_into(out)
    earlier = _figures((out / FIGURES).read_bytes(), out, release.progress) if FIGURES in there else {}
    items = release.whole(None, earlier)
    changes = plan_changes(items.values(), there, release.folders)
    if not dry_run and _moving(changes):
        release.options.ask(changes)
        _say_unsigned(changes, release.progress)
        write_folder(out, items, changes, release.progress)
    return Published(str(out), tuple(changes), None, dry_run, tuple(asked))


def _to_hub(release: _Release, hub: Hub, repo: str, *, dry_run: bool, asked: Sequence[str]) -> Published:
    first: HubState | None = None
    for attempt in range(1, TRIES + 1):
        state = look_at(hub, repo)
        items = release.whole(repo, _earlier(hub, repo, state, release.progress))
        changes = plan_changes(items.values(), state.files, release.folders)
        if first is not None and _ours(first.files, items, release) != _ours(state.files, items, release):
            raise ConcurrentCommit(
                "somebody else published the same files meanwhile", where=repo, remedy="look at it, then run again"
            )
        if not dry_run and not _moving(changes):
            open_to_all(hub, repo, release.progress, private=release.options.private)
        if dry_run or not _moving(changes):
            return Published(repo, tuple(changes), state.commit, dry_run, tuple(asked))
        if first is None:
            release.options.ask(changes)
        _say_unsigned(changes, release.progress)
        first = state
        message = release.options.message or f"Publish {', '.join(release.folders)} with strata-pack"
        try:
            made = commit(
                hub, repo, state, items, changes, message, private=release.options.private, progress=release.progress
            )
        except ConcurrentCommit:
            if attempt == TRIES:
                raise
            release.progress.note(f"{repo}: somebody else published there meanwhile; looking again")
            continue
        except EnvironmentFailure:
            # The response to a commit may be lost, so the repository's state decides.
            arrived = _arrived(hub, repo, items, release)
            if arrived is None:
                raise
            made = arrived
        _check_arrived(hub, repo, items, release)
        open_to_all(hub, repo, release.progress, private=release.options.private)
        return Published(repo, tuple(changes), made, dry_run, tuple(asked))
    raise AssertionError("the last try returns or raises")


def _arrived(hub: Hub, repo: str, items: Mapping[str, PublishedFile], release: _Release) -> str | None:
    with contextlib.suppress(StrataError):
        state = look_at(hub, repo)
        if not _moving(plan_changes(items.values(), state.files, release.folders)):
            return state.commit
    return None


def _check_arrived(hub: Hub, repo: str, items: Mapping[str, PublishedFile], release: _Release) -> None:
    left = _moving(plan_changes(items.values(), look_at(hub, repo).files, release.folders))
    if left:
        problem = f"{left[0].path} is not there as it was sent (and {len(left) - 1} more)"
        raise EnvironmentFailure(problem, where=repo, remedy="look for a .gitignore there, then run again")


def _say_unsigned(changes: Sequence[FileChange], progress: Progress) -> None:
    for change in changes:
        if change.kind == "remove" and change.path.endswith(f"/{SIGNATURE}"):
            progress.note(f"{change.path}: goes, because the pack is not signed any more; --key signs it")


def _moving(changes: Sequence[FileChange]) -> list[FileChange]:
    return [change for change in changes if change.kind != "keep"]


def _ours(
    files: Mapping[str, TargetFile], items: Mapping[str, PublishedFile], release: _Release
) -> dict[str, TargetFile]:
    """Return the target's files that belong to this release."""
    folders = tuple(f"{folder}/" for folder in release.folders)
    return {path: there for path, there in files.items() if path in items or path.startswith(folders)}


def _earlier(hub: Hub, repo: str, state: HubState, progress: Progress) -> dict[str, Figures]:
    return _figures(read_small(hub, state, FIGURES), repo, progress) if FIGURES in state.files else {}


def _figures(data: bytes, where: str | Path, progress: Progress) -> dict[str, Figures]:
    """Return the figures in a figures file; invalid entries are ignored, because they can be measured again."""
    try:
        value = parse_json_object(data, Path(FIGURES))
    except BadInput as error:
        progress.note(f"{where}/{error}; the card leaves out what was measured earlier")
        return {}
    found = {}
    for name, one in value.items():
        if isinstance(one, dict):
            numbers = {key: one.get(key) for key in ("kl_mean", "calls_right", "calls")}
            if all(number is None or type(number) in (int, float) for number in numbers.values()):
                found[name] = Figures(**numbers)
    return found
