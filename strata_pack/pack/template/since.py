"""Finds the commit since which a repository's chat template differs from a given one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any
from urllib.parse import quote

from strata_pack.errors import BadInput
from strata_pack.pack.paths import DEFAULT_NAME
from strata_pack.pack.template.copies import NamedTemplate
from strata_pack.pack.template.difference import compare_templates
from strata_pack.pack.template.template_files import hub_texts, may_have_template
from strata_pack.progress import Progress, Silent
from strata_pack.weights.source import HubSource

MOST_COMMITS = 200


@dataclass(frozen=True)
class DiffersSince:
    """Since when a repository's template differs: ``commit``, of ``date`` and with ``title``, changed it.

    ``always``: it differs in all ``examined`` commits, of which ``commit`` is the oldest.
    """

    commit: str
    date: str
    title: str
    always: bool
    examined: int

    def sentence(self) -> str:
        """Return a sentence for the user."""
        if self.always:
            oldest = f"the oldest {self.commit[:12]} of {self.date}"
            return f"differs in all {self.examined} examined commits, {oldest}"
        return f"differs since commit {self.commit[:12]} of {self.date}: {self.title}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def differs_since(ours: NamedTemplate, source: HubSource, progress: Progress | None = None) -> DiffersSince | None:
    """Return the commit since which the template of ``source`` renders differently from ``ours``; ``None`` if it does
    not.

    Commits are examined from the newest back; a template is read only at commits that change a file with a template.
    Raises ``EnvironmentFailure`` if the Hub cannot be reached.
    """
    from strata_pack.weights.hub.api import get_pages
    from strata_pack.weights.hub.connection import connect

    progress = progress or Silent()
    where = str(source)
    path = f"/api/models/{source.repo_id}/commits/{quote(source.revision or 'main', safe='')}"
    commits = [one for one in islice(get_pages(connect(), path, where), MOST_COMMITS) if isinstance(one, dict)]
    same = _comparer(ours, source)
    task = progress.task(f"commits of {source.repo_id}", len(commits), "commits")
    newer: dict[str, Any] | None = None
    examined = 0
    for commit in commits:
        if same(str(commit.get("id"))):
            break
        examined += 1
        newer = commit
        task.advance(1)
    task.done()
    if newer is None:
        return None
    said = {key: str(newer.get(key, "")) for key in ("id", "date", "title")}
    return DiffersSince(said["id"], said["date"][:10], said["title"], examined == len(commits), examined)


def _comparer(ours: NamedTemplate, source: HubSource) -> Callable[[str], bool]:
    """Return a function that says whether the template at a commit renders like ``ours``; each set of files is read
    once."""
    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.repo import read_tree

    hub = connect()
    known: dict[tuple[tuple[str, str], ...], bool] = {}

    def same(commit: str) -> bool:
        files = read_tree(hub, source.repo_id, commit).files
        inside = [file for file in files if source.path is None or f"{file.path}/".startswith(f"{source.path}/")]
        carriers = tuple((file.path, file.key) for file in inside if may_have_template(file.path))
        if carriers not in known:
            known[carriers] = _renders_alike(ours, HubSource(source.repo_id, commit, source.path))
        return known[carriers]

    return same


def _renders_alike(ours: NamedTemplate, theirs: HubSource) -> bool:
    text = hub_texts(theirs).get(DEFAULT_NAME)
    if text is None:
        return False
    try:
        return not compare_templates(ours, NamedTemplate(text, str(theirs))).renderings
    except BadInput:
        return False
