"""Finds all copies of a chat template in a folder tree or on the Hub, and those that differ.

A repository often holds a template a dozen times: in every quantization, next to the tokenizer, in its configuration.
They should be one text; a fix that reached some of them is the usual fault.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from strata_pack.chat.library import status_of
from strata_pack.chat.render.template import normalize_source
from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import sha256_text
from strata_pack.pack.layout import named_templates
from strata_pack.pack.paths import ADDITIONAL_DIR, DEFAULT_NAME, STATE_DIR
from strata_pack.pack.recovery import recover
from strata_pack.pack.template.source import JSON_FILES, read_all
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from strata_pack.weights.gguf.head import read_metadata
from strata_pack.weights.hub.select import SHARD_NAME
from strata_pack.weights.hub.tree import STATE_FOLDER, RepoTree
from strata_pack.weights.source import HUB_ID, HubSource, parse_source

MAX_REPOSITORIES = 500
NOT_MODELS = frozenset({"mmproj", "adapter", "imatrix"})
"""Values of ``general.type`` of files that carry no template."""
_SKIPPED_FOLDERS = frozenset({".git", STATE_DIR, STATE_FOLDER})
_NAME_KEYS = ("general.basename", "general.finetune", "general.size_label", "general.version")


@dataclass(frozen=True)
class SurveyedCopy:
    """One copy: where it lies, whose it is, and whether it differs from most copies of that model and ``name``.

    ``status`` is that of ``library.status_of``, or "unreadable" with the reason in ``problem``.
    """

    model: str
    place: str
    name: str
    status: str
    sha256: str | None
    differs: bool = False
    problem: str | None = None


@dataclass(frozen=True)
class Survey:
    """Every copy that was found, by model."""

    target: str
    copies: tuple[SurveyedCopy, ...]

    @property
    def differing(self) -> list[SurveyedCopy]:
        """The copies that should be as the others of their model and are not."""
        return [copy for copy in self.copies if copy.differs]

    @property
    def unreadable(self) -> list[SurveyedCopy]:
        """The files that cannot be read."""
        return [copy for copy in self.copies if copy.problem is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the survey as JSON values."""
        ok = not self.differing and not self.unreadable
        return {"ok": ok, "target": self.target, "copies": [asdict(copy) for copy in self.copies]}


@dataclass(frozen=True)
class _Found:
    """What one file holds: its templates by name, empty for a GGUF without; ``identity`` is the model's, if it says."""

    place: str
    texts: Mapping[str, str]
    is_gguf: bool = False
    identity: str = ""
    problem: str | None = None


def survey(target: str, progress: Progress | None = None) -> Survey:
    """Return every copy in the folder tree, repository (``org/name``) or organisation that ``target`` names.

    Raises ``BadInput`` if there is none, ``EnvironmentFailure`` if the Hub cannot be reached.
    """
    progress = progress or Silent()
    path = Path(target)
    if path.is_dir():
        groups = _by_model(path, list(_in_folder(path)))
    elif path.exists():
        raise BadInput("is a file", where=target, remedy="name its folder, or use `strata-pack template status`")
    else:
        groups = {repo: list(hub_templates(source, progress)) for repo, source in _repositories(target)}
    copies = tuple(copy for model, found in groups.items() for copy in _judged(model, found))
    if all(copy.status == "missing" for copy in copies):
        raise BadInput("holds no chat template", where=target)
    return Survey(target, copies)


def _judged(model: str, found: Iterable[_Found]) -> Iterator[SurveyedCopy]:
    rows: list[tuple[SurveyedCopy, str | None]] = []
    for one in found:
        if one.problem is not None:
            yield SurveyedCopy(model, one.place, DEFAULT_NAME, "unreadable", None, problem=one.problem)
            continue
        absent: dict[str, str | None] = {DEFAULT_NAME: None} if one.is_gguf else {}
        for name, text in {**absent, **one.texts}.items():
            clean = None if text is None else normalize_source(text)
            digest = None if clean is None else sha256_text(clean)
            # Engines drop a line feed at the end, so converters may, too.
            key = None if clean is None else clean.removesuffix("\n")
            rows.append((SurveyedCopy(model, one.place, name, status_of(clean), digest), key))
    usual = {
        name: Counter(key for copy, key in rows if copy.name == name and key is not None).most_common(1)
        for name in {copy.name for copy, _ in rows}
    }
    for copy, key in rows:
        yield replace(copy, differs=bool(usual[copy.name]) and key != usual[copy.name][0][0])


# Folders


def _in_folder(root: Path) -> Iterator[_Found]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _SKIPPED_FOLDERS and not name.endswith(STATE_DIR))
        for name in sorted(names):
            path = Path(folder, name)
            if is_carrier(path.relative_to(root).as_posix()):
                yield from _in_file(path, path.relative_to(root).as_posix())


def is_carrier(place: str) -> bool:
    """Say whether the file at ``place`` may hold a template: of a split GGUF, the first shard alone."""
    folder, _, name = place.rpartition("/")
    if name.lower().endswith(".gguf"):
        shard = SHARD_NAME.fullmatch(name)
        return shard is None or int(shard["number"]) == 1
    return name in (*JSON_FILES, "chat_template.jinja") or (
        name.endswith(".jinja") and folder.rpartition("/")[2] == ADDITIONAL_DIR
    )


def _in_file(path: Path, place: str) -> Iterator[_Found]:
    try:
        if path.suffix.lower() == ".gguf":
            recover(path)
            with GgufFile.open(path) as gguf:
                yield from _in_metadata(gguf.metadata, place)
            return
        texts = {path.stem if path.parent.name == ADDITIONAL_DIR else one.name: one.text for one in read_all(path)}
        if texts:
            yield _Found(place, texts)
    except BadInput as error:
        yield _Found(place, {}, problem=str(error))


def _in_metadata(metadata: Mapping[str, MetaValue], place: str) -> Iterator[_Found]:
    def said(key: str) -> str:
        return "" if key not in metadata else re.sub(r"[^a-z0-9]+", "-", str(metadata[key].value).lower())

    if said("general.type") not in NOT_MODELS and said("general.architecture") != "clip":
        identity = "/".join(filter(None, map(said, _NAME_KEYS))) if said(_NAME_KEYS[0]) else said("general.name")
        yield _Found(place, named_templates(metadata), is_gguf=True, identity=identity)


def _by_model(root: Path, found: list[_Found]) -> dict[str, list[_Found]]:
    """Return the copies by model: a folder that holds one itself is one model, with all below it.

    Otherwise each folder in it is a model (in the Hub's cache each snapshot), and folders whose GGUF files name the
    same model are one.
    """
    here = str(root)
    if any("/" not in one.place for one in found) or (root / "manifest.json").is_file():
        return {here: found}
    units: dict[str, list[_Found]] = {}
    for one in found:
        parts = one.place.split("/")
        depth = parts.index("snapshots") + 2 if "snapshots" in parts[:2] else 1
        units.setdefault("/".join(parts[:depth]), []).append(one)
    models: dict[str, list[_Found]] = {}
    for unit, inside in units.items():
        ggufs = [one for one in inside if one.is_gguf]
        apart = not ggufs or "snapshots" in unit.split("/")
        named = unit if apart else next((one.identity for one in ggufs if one.identity), here)
        models.setdefault(named, []).extend(inside)
    return models


# The Hub


def _repositories(target: str) -> Iterator[tuple[str, HubSource]]:
    from strata_pack.weights.hub.api import get_pages
    from strata_pack.weights.hub.connection import connect, is_offline

    if "/" in target:
        source = parse_source(target)
        assert isinstance(source, HubSource)
        yield source.repo_id, source
        return
    if not HUB_ID.fullmatch(target):
        raise BadInput("no such folder, and not a hub id either", where=target, remedy="give a folder, org or org/name")
    if is_offline():
        raise EnvironmentFailure("HF_HUB_OFFLINE forbids the network", where=target, remedy="unset it and run again")
    for number, entry in enumerate(get_pages(connect(), f"/api/models?author={quote(target)}&limit=100", target)):
        name = entry.get("id") if isinstance(entry, dict) else None
        if number >= MAX_REPOSITORIES:
            raise BadInput(f"has more than {MAX_REPOSITORIES} repositories", where=target, remedy="name one of them")
        if isinstance(name, str):
            source = parse_source(f"hf://{name}")
            assert isinstance(source, HubSource)
            yield name, source


def hub_templates(source: HubSource, progress: Progress) -> Iterator[_Found]:
    """Yield what the files of a repository hold: small files whole, of GGUF files the header alone."""
    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.repo import read_tree

    tree = read_tree(connect(), source.repo_id, source.revision)
    files = [file.path for file in tree.files if is_carrier(file.path)]
    inside = [path for path in files if source.path is None or f"{path}/".startswith(f"{source.path}/")]
    task = progress.task(f"templates of {source.repo_id}", len(inside), "files")
    with tempfile.TemporaryDirectory(prefix="strata-survey-") as name:
        for found in map(_reader(tree, Path(name)), inside):
            task.advance(1)
            yield from found
    task.done()


def _reader(tree: RepoTree, folder: Path) -> Any:
    import httpx2 as httpx

    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.head import head_opener
    from strata_pack.weights.hub.small import SmallFiles

    hub = connect()
    small = SmallFiles(hub, tree, folder, offline=False)

    def read(place: str) -> list[_Found]:
        if place.lower().endswith(".gguf"):
            with httpx.Client(follow_redirects=True, timeout=hub.patience.timeout_seconds) as client:
                head, size = head_opener(client, hub, tree, folder)(place)
                try:
                    return list(_in_metadata(read_metadata(head, size, place), place))
                except BadInput as error:
                    return [_Found(place, {}, problem=str(error))]
        path = folder / place
        data = small.read(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return list(_in_file(path, place))

    return read


def hub_texts(source: HubSource, progress: Progress | None = None) -> dict[str, str]:
    """Return the templates of a repository by name: what its small files say goes before its GGUF files."""
    found = sorted(hub_templates(source, progress or Silent()), key=lambda one: (one.is_gguf, one.place.count("/")))
    texts: dict[str, str] = {}
    for one in found:
        for name, text in one.texts.items():
            texts.setdefault(name, text)
    return texts
