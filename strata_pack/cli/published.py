"""How a publication, done or planned, is shown: every file with its change and size, and the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata_pack.cli.output import Out

if TYPE_CHECKING:
    from strata_pack.publish import Published


def show_changes(out: Out, done: Published) -> None:
    """Print what a publication changed, or would change."""
    from strata_pack.weights.preflight import size_text

    for change in done.changes:
        size = "" if change.kind == "remove" else f"  {size_text(change.size)}"
        out.line(f"{change.kind:<8}{change.path}{size}")
    for question in done.questions:
        out.line(f"mind: {question}")
    moving = [change for change in done.changes if change.kind != "keep"]
    kept = len(done.changes) - len(moving)
    verb = "would change" if done.dry_run else "changed"
    out.line(f"{done.target}: {len(moving)} files {verb}, {kept} are there already; {size_text(done.travelling)} new")
    if done.commit is not None and not done.dry_run:
        out.line(f"commit {done.commit}")
