"""Implements ``strata-pack template install`` and ``rollback``, and ``status`` for packs and GGUF files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

if TYPE_CHECKING:
    from strata_pack.pack.template.install import InstallResult
    from strata_pack.pack.template.status import ReaderDict
    from strata_pack.pack.template.target import CopyDict

Target = Annotated[Path, typer.Argument(metavar="PACK|GGUF", help="A finished pack, or a .gguf file (any shard).")]
Template = Annotated[
    str,
    typer.Option(
        metavar="auto|ID|FILE",
        autocompletion=complete.template_or_auto,
        help="auto: the target's own template with history repair added; or the id of a shipped template, or a file.",
    ),
]
Golden = Annotated[
    Path | None, typer.Option(metavar="FILE|FOLDER", help="Golden cases in place of the template's own.")
]
AllowTriggers = Annotated[
    bool, typer.Option("--allow-triggers", help="Accept text that the template adds or hides on a trigger (ST605).")
]
Force = Annotated[bool, typer.Option("--force", help="Replace a template that is not recognised.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", "-n", help="Check everything, show what would be written, and stop.")
]
ShowDiff = Annotated[bool, typer.Option("--diff", help="Show how the template changes.")]


@with_shared_flags
def install(
    target: Target,
    template: Template = "auto",
    golden: Golden = None,
    allow_triggers: AllowTriggers = False,
    force: Force = False,
    dry_run: DryRun = False,
    diff: ShowDiff = False,
    *,
    out: Out,
) -> None:
    """Install a chat template into a finished pack or GGUF: all copies in one atomic step; tensors do not change.

    The golden cases are checked first (exit code 1 if one differs; nothing is changed then). `rollback` undoes it.
    """
    from strata_pack.pack.template.install import TemplateNotRecognised, install_template

    try:
        with out.progress() as progress:
            result = install_template(
                target,
                template,
                golden=golden,
                allow_triggers=allow_triggers,
                force=force,
                dry_run=dry_run,
                progress=progress,
            )
    except TemplateNotRecognised as error:
        _show_diff(out, error.diff)
        raise
    if diff or template == "auto":
        _show_diff(out, result.diff)
    _show_result(out, result)
    out.result({"ok": True, **result.to_dict()})


@with_shared_flags
def rollback(target: Target, dry_run: DryRun = False, yes: Yes = False, *, out: Out) -> None:
    """Undo the last installation: every file gets its former bytes. The present template is lost."""
    from strata_pack.pack.template.install import rollback_template as roll_back

    def lost() -> list[str]:
        plan = roll_back(target, dry_run=True)
        what = f"template {_short(plan.before['sha256'])} ({plan.before['status']})"
        return [f"{target}: {what} will be replaced by the earlier {_short(plan.after['sha256'])}"]

    if not dry_run:
        consent(lost, out, yes=yes, named=True)
    with out.progress() as progress:
        result = roll_back(target, dry_run=dry_run, progress=progress)
    back = "would go back" if dry_run else "back"
    out.line(f"{target}: {back} to the template {_short(result.after['sha256'])} ({result.after['status']})")
    for note in result.notes:
        out.line(f"note: {note}")
    out.result({"ok": True, **result.to_dict()})


def show_status(target: Path, out: Out) -> None:
    """Print the status of a pack's or GGUF's template, copy by copy."""
    from strata_pack.pack.template.status import template_status

    found = template_status(target)
    named = f", {found.id}" if found.id else ""
    out.line(f"{target}: {found.status}{named}" + (f" (sha256 {found.sha256})" if found.sha256 else ""))
    show_copies(found.copies, out)
    if found.previous:
        out.line(
            f"  {counted(found.previous, 'earlier template')} can be restored with `strata-pack template rollback`"
        )
    for note in found.notes:
        out.line(f"note: {note}")
    _show_readers(out, found.readers)
    out.result(found.to_dict())


def show_copies(copies: Sequence[CopyDict], out: Out) -> None:
    """Print the place and status of each copy of a template."""
    for copy in copies:
        out.line(f"  {copy['place']}: {copy['status']} ({_short(copy['sha256'])})")


def _show_result(out: Out, result: InstallResult) -> None:
    if not result.changed:
        out.line(f"{result.target}: holds the template {_short(result.after['sha256'])} already; nothing to do")
        return
    verb = "would be installed" if result.dry_run else "installed"
    was = "none" if result.before["sha256"] is None else _short(result.before["sha256"])
    out.line(
        f"{result.target}: template {_short(result.after['sha256'])} {verb} (was {was}, {result.before['status']}), "
        f"GGUF {result.plan['method']}, {result.plan['bytes_written']} bytes"
    )
    for place in result.copies:
        out.line(f"  {place}")
    if result.golden is not None:
        for engine, counts in result.golden["engines"].items():
            known = f", {counted(counts['known'], 'known difference')}" if counts["known"] else ""
            out.line(f"golden cases of {result.golden['suite']} with {engine}: {counts['passed']} passed{known}")
    for note in result.notes:
        out.line(f"note: {note}")
    _show_readers(out, result.readers)


def _show_readers(out: Out, readers: list[ReaderDict]) -> None:
    from rich.table import Table

    table = Table("engine", "reads", "overridden by (it wins)")
    for reader in readers:
        caveat = f"; {reader['caveat']}" if reader["caveat"] else ""
        table.add_row(reader["engine"], reader["reads"], reader["overridden_by"] + caveat)
    out.show(table)


def _show_diff(out: Out, diff: str) -> None:
    for line in diff.splitlines():
        out.line(line)


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]
