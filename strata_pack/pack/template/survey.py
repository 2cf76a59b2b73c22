"""Finds all copies of a chat template in a folder or on the Hub, and those that differ.

A repository often holds a template a dozen times: in every quantization, next to the tokenizer, in its configuration.
They should be equal; usually they differ because a fix was applied only to some of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from strata_pack.chat.library import status_of
from strata_pack.chat.render.template import normalize_source
from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import sha256_text
from strata_pack.pack.paths import DEFAULT_NAME, STATE_DIR
from strata_pack.pack.template.template_files import TemplateFile, hub_templates, may_have_template, templates_in
from strata_pack.progress import Progress, Silent
from strata_pack.weights.hub.tree import STATE_FOLDER
from strata_pack.weights.source import HUB_ID, HubSource, parse_source

MAX_REPOSITORIES = 500
_SKIPPED_FOLDERS = frozenset({".git", STATE_DIR, STATE_FOLDER})


@dataclass(frozen=True)
class SurveyedCopy:
    """One copy: its place, its model, and whether it differs from most copies of the same model and ``name``.

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
        """The copies that differ from the other copies of their model."""
        return [copy for copy in self.copies if copy.differs]

    @property
    def unreadable(self) -> list[SurveyedCopy]:
        """The files that cannot be read."""
        return [copy for copy in self.copies if copy.problem is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the survey as JSON values."""
        ok = not self.differing and not self.unreadable
        return {"ok": ok, "target": self.target, "copies": [asdict(copy) for copy in self.copies]}


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
        raise BadInput("has no chat template", where=target)
    return Survey(target, copies)


def _judged(model: str, found: Iterable[TemplateFile]) -> Iterator[SurveyedCopy]:
    rows: list[tuple[SurveyedCopy, str | None]] = []
    for one in found:
        if one.problem is not None:
            yield SurveyedCopy(model, one.place, DEFAULT_NAME, "unreadable", None, problem=one.problem)
            continue
        absent: dict[str, str | None] = {DEFAULT_NAME: None} if one.is_gguf else {}
        for name, text in {**absent, **one.texts}.items():
            clean = None if text is None else normalize_source(text)
            digest = None if clean is None else sha256_text(clean)
            # Engines ignore a line feed at the end, so converters may drop it.
            key = None if clean is None else clean.removesuffix("\n")
            rows.append((SurveyedCopy(model, one.place, name, status_of(clean), digest), key))
    usual = {
        name: Counter(key for copy, key in rows if copy.name == name and key is not None).most_common(1)
        for name in {copy.name for copy, _ in rows}
    }
    for copy, key in rows:
        yield replace(copy, differs=bool(usual[copy.name]) and key != usual[copy.name][0][0])


# Folders


def _in_folder(root: Path) -> Iterator[TemplateFile]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _SKIPPED_FOLDERS and not name.endswith(STATE_DIR))
        for name in sorted(names):
            path = Path(folder, name)
            if may_have_template(path.relative_to(root).as_posix()):
                yield from templates_in(path, path.relative_to(root).as_posix())


def _by_model(root: Path, found: list[TemplateFile]) -> dict[str, list[TemplateFile]]:
    """Return the copies by model: a folder that directly contains a copy is one model, with all its subfolders.

    Otherwise each subfolder is a model (in the Hub's cache, each snapshot); subfolders whose GGUF files name the same
    model are merged.
    """
    here = str(root)
    if any("/" not in one.place for one in found) or (root / "manifest.json").is_file():
        return {here: found}
    units: dict[str, list[TemplateFile]] = {}
    for one in found:
        parts = one.place.split("/")
        depth = parts.index("snapshots") + 2 if "snapshots" in parts[:2] else 1
        units.setdefault("/".join(parts[:depth]), []).append(one)
    models: dict[str, list[TemplateFile]] = {}
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
