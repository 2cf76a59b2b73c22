"""``strata-pack fetch``: downloads the files of a Hub repository that a build needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

if TYPE_CHECKING:
    from strata_pack.weights.hub.outcome import FetchPlan

app = typer.Typer()


@app.command(epilog="Example: strata-pack fetch Qwen/Qwen3-0.6B --out weights/qwen3-0.6b")
@with_shared_flags
def fetch(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="org/name, or hf://org/name@revision/path.")],
    dest: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to fetch into.")],
    out: Out,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit (default: main).")] = None,
    parallel: Annotated[int, typer.Option(min=1, max=32, help="Files fetched at once.")] = 4,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be fetched, and stop.")] = False,
    yes: Yes = False,
) -> None:
    """Fetch weights (one format), tokenizer, config and template; every file is verified by its hash.

    After an interruption, run it again: it resumes at the next missing byte. HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and
    the Hub cache are used.
    """
    from strata_pack.errors import WrongUse
    from strata_pack.weights.hub import fetch as hub
    from strata_pack.weights.source import HubSource, parse_source

    source = parse_source(repo)
    if not isinstance(source, HubSource):
        raise WrongUse("is a local path", where=repo, remedy="name a repository as hf://org/name")
    if revision and source.revision:
        raise WrongUse("the revision is given twice", where=repo, remedy="leave out --revision")
    wanted = revision or source.revision

    def announce(plan: FetchPlan) -> None:
        progress.note(plan.sentence())
        lost = [f"{path}: differs from the repository and will be replaced" for path in plan.replaced(dest)]
        consent(lambda: lost, out, yes=yes, named=True)

    with out.progress() as progress:
        if dry_run:
            plan = hub.look(source.repo_id, wanted, dest, path=source.path, progress=progress)
            _show(plan, out)
            return
        found = hub.fetch_repo(
            source.repo_id,
            wanted,
            dest,
            path=source.path,
            progress=progress,
            parallel=parallel,
            announce=announce,
        )
    out.line(f"{found.folder}: {counted(len(found.files), 'file')} of {found.repo_id} at {found.commit}")
    out.result(found.to_dict())


def _show(plan: FetchPlan, out: Out) -> None:
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.weights.preflight import size_text

    table = Table("file", "size", "from")
    for file in plan.selection.files:
        table.add_row(escape(file.path), size_text(file.size), plan.origins[file.path])
    out.show(table)
    out.line(plan.sentence())
    out.result(plan.to_dict())
