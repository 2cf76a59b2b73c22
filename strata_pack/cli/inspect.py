"""``strata-pack inspect``: shows the content of a pack or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.pack.inspect import Inspection, StoredProjector

app = typer.Typer()

MIB = 1 << 20


@app.command(epilog="Example: strata-pack inspect packs/SmolLM2-135M-Instruct-Q4_K_M")
@with_shared_flags
def inspect(
    target: Annotated[
        str,
        typer.Argument(
            help="A pack folder, a .gguf file (any shard), or hf://org/name/FILE.gguf.", metavar="PACK|GGUF|HUB"
        ),
    ],
    metadata: Annotated[bool, typer.Option("--metadata", help="Show every metadata key too.")] = False,
    *,
    out: Out,
) -> None:
    """Show metadata, tensors by type, bits per weight, and the template's id and status.

    Of a repository on the Hub only the headers are read; if it has several models, a table of them is shown.
    """
    from strata_pack.weights.source import hub_source

    source = hub_source(target)
    if source is None:
        from strata_pack.pack.inspect import inspect_path

        found = inspect_path(Path(target))
    else:
        from strata_pack.pack.inspect import inspect_source

        with out.progress() as progress:
            models = inspect_source(source, progress)
        if len(models) > 1:
            _show_models(models, out)
            out.result({"path": target, "models": [model.to_dict() for model in models]})
            return
        found = models[0]
    _show(found, metadata, out)
    out.result(found.to_dict())


def _show_models(models: list[Inspection], out: Out) -> None:
    from rich.table import Table

    table = Table("model", "files", "MiB", "parameters", "bits per weight", "template")
    for column in table.columns[1:5]:
        column.justify = "right"
    for one in models:
        sizes = (str(len(one.files)), f"{one.size / MIB:,.1f}", f"{one.parameters:,}", f"{one.bits_per_weight:.2f}")
        table.add_row(one.files[0], *sizes, one.template_id or one.template_status)
    out.show(table)


def _show(found: Inspection, metadata: bool, out: Out) -> None:
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.report.diff import printable

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


def _projector_text(projector: StoredProjector | None) -> str:
    if projector is None:
        return "none"
    size = "missing" if projector["size"] is None else f"{projector['size'] / MIB:,.1f} MiB"
    return f"{projector['file']}, {projector['type']}, {size}"
