"""``strata-pack inspect``: what is in a pack or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.pack.inspect import StoredProjector

app = typer.Typer()

MIB = 1 << 20


@app.command(epilog="Example: strata-pack inspect packs/SmolLM2-135M-Instruct-Q4_K_M")
@with_shared_flags
def inspect(
    target: Annotated[Path, typer.Argument(help="A pack folder or a .gguf file (any shard).", metavar="PACK|GGUF")],
    metadata: Annotated[bool, typer.Option("--metadata", help="Show every metadata key too.")] = False,
    *,
    out: Out,
) -> None:
    """Show metadata, tensors by type, bits per weight, and the template's id and status."""
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.pack.inspect import inspect_path
    from strata_pack.report.diff import printable

    found = inspect_path(target)
    facts = Table(show_header=False, box=None, pad_edge=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for label, value in (
        ("name", found.name),
        ("architecture", found.architecture),
        ("parameters", f"{found.parameters:,}"),
        ("files", ", ".join(found.files)),
        ("size", f"{found.size / MIB:,.1f} MiB"),
        ("bits per weight", f"{found.bits_per_weight:.2f}"),
        ("projector", _projector_text(found.projector)),
        ("template", f"{found.template_id or 'not a shipped one'} ({found.template_status})"),
        ("template sha256", found.template_sha256 or "none"),
    ):
        facts.add_row(label, escape(printable(value)))
    out.show(facts)
    table = Table("type", "tensors", "weights", "MiB", title="tensors by type", title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for share in found.types:
        table.add_row(share.type, str(share.tensors), f"{share.elements:,}", f"{share.bytes / MIB:,.1f}")
    out.show(table)
    if metadata:
        keys = Table("key", "value", title="metadata", title_justify="left")
        for key, value in found.metadata.items():
            keys.add_row(escape(printable(key)), escape(printable(str(value))))
        out.show(keys)
    out.result(found.to_dict())


def _projector_text(projector: StoredProjector | None) -> str:
    if projector is None:
        return "none"
    size = "missing" if projector["size"] is None else f"{projector['size'] / MIB:,.1f} MiB"
    return f"{projector['file']}, {projector['type']}, {size}"
