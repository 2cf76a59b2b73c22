"""``strata-pack replay``: finds lost tool calls in recorded replies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.parsing import CallFormat
from strata_pack.plural import counted

app = typer.Typer()


@app.command(epilog="Example: strata-pack replay replies.jsonl.zst --examples 5")
@with_shared_flags
def replay(
    logs: Annotated[list[Path], typer.Argument(help="Logs of replies in a known format, also with gzip or zstd.")],
    call_format: Annotated[CallFormat, typer.Option(help="The format of the calls.")] = "auto",
    examples: Annotated[int, typer.Option(min=0, help="Number of replies to show for each model.")] = 3,
    *,
    out: Out,
) -> None:
    """Report the turns that ended inside the thinking, and the calls that each policy would have recovered."""
    from rich.table import Table

    from strata_pack.replay.replay import POLICIES
    from strata_pack.replay.replay import replay_log as read_logs

    with out.progress() as progress:
        found = read_logs(logs, call_format=call_format, examples=examples, progress=progress)
    table = Table(title="Recorded replies")
    for column in (
        "model",
        "turns",
        "ended in thinking",
        "stranded calls",
        *(f"saved: {name}" for name in POLICIES),
        "drift",
        "suspect",
    ):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, model in sorted(found.models.items()):
        counts = (model.turns, model.ended_in_thinking, model.stranded_calls, *model.recovered.values())
        counts += (model.drifted_calls, model.suspect_values)
        table.add_row(name, *map(str, counts))
    out.show(table)
    for name, model in sorted(found.models.items()):
        for example in model.examples:
            policies = ", ".join(example.recovered_by) or "no policy"
            calls = ", ".join(example.calls) or "call"
            out.line(f"{example.log}:{example.line} ({name}): {calls}; saved by {policies}")
            out.line(f"    {example.text!r}")
    for name, model in sorted(found.models.items()):
        if model.suspect_values:
            out.line(f"{name}: {model.suspect_values} string arguments hold a call's tag alone on a line")
    if found.unreadable_lines:
        verb = "contains" if found.unreadable_lines == 1 else "contain"
        lines = counted(found.unreadable_lines, "line")
        out.note(f"{lines} {verb} no reply; the first: {found.first_unreadable}")
    out.result(found.to_dict())
