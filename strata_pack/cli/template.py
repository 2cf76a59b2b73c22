"""``strata-pack template``: lists shipped templates, shows the status of a model's template, and more."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli import (
    complete,
    template_check,
    template_diff,
    template_install,
    template_lint,
    template_prefix,
    template_repair,
)
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.chat.library import ShippedTemplate

app = typer.Typer(
    help="Chat templates: list, repair, lint, check, compare, install.",
    epilog="Example: strata-pack template status packs/my-model",
    no_args_is_help=True,
)
app.command(epilog="Example: strata-pack template repair model.gguf -o repaired.jinja --diff")(template_repair.repair)
app.command(epilog="Example: strata-pack template lint chat_template.jinja --ignore ST103")(template_lint.lint)
app.command(epilog="Example: strata-pack template check packs/my-model")(template_check.check)
app.command(epilog="Example: strata-pack template diff packs/my-model qwen3.8-flash-next")(template_diff.diff)
app.command(epilog="Example: strata-pack template prefix qwen3.8-flash-next")(template_prefix.prefix)
app.command(epilog="Example: strata-pack template install packs/my-model --template qwen3.8-flash-next")(
    template_install.install
)
app.command(epilog="Example: strata-pack template rollback packs/my-model")(template_install.rollback)


def _entry(shipped: ShippedTemplate) -> dict[str, object]:
    return {"id": shipped.id, "family": shipped.family, "formats": shipped.formats, "sha256": shipped.sha256}


@app.command("list", epilog="Example: strata-pack template list")
@with_shared_flags
def list_(out: Out) -> None:
    """List the templates that ship with the tool."""
    from rich.table import Table

    from strata_pack.chat.library import list_templates

    shipped = list_templates()
    table = Table("id", "family", "calls", "sha256")
    for one in shipped:
        table.add_row(one.id, one.family, ", ".join(one.formats), one.sha256)
    out.show(table)
    out.result({"templates": [_entry(one) for one in shipped]})


@app.command(epilog="Example: strata-pack template show qwen3.8-flash-next > chat_template.jinja")
@with_shared_flags
def show(
    template_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a shipped template.", autocompletion=complete.templates)
    ],
    out: Out,
) -> None:
    """Print a shipped template unchanged, so that it can be redirected to a file."""
    from strata_pack.chat.library import load_shipped

    shipped = load_shipped(template_id)
    if out.mode == "terminal":
        out.raw(shipped.source.removesuffix("\n"))
    out.result(
        {
            "id": shipped.id,
            "family": shipped.family,
            "title": shipped.title,
            "formats": shipped.formats,
            "sha256": shipped.sha256,
            "repairs": shipped.repairs,
            "source": shipped.source,
        }
    )


@app.command(epilog="Example: strata-pack template status model/chat_template.jinja")
@with_shared_flags
def status(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|FOLDER|GGUF|PACK|HUB",
            help="A template, a model's folder, a .gguf, a pack, or hf://org/name/FILE.gguf.",
        ),
    ],
    out: Out,
) -> None:
    """Show the status of a model's template: repaired, stock (a repair exists), modified, unknown or missing.

    In a folder, chat_template.jinja takes precedence over tokenizer_config.json, as in transformers. Of a repository on
    the Hub only small files and headers are read.
    """
    from strata_pack.pack.paths import is_pack
    from strata_pack.pack.template.source import find_hub_templates, find_templates
    from strata_pack.weights.source import hub_source

    path, source = Path(target), hub_source(target)
    if source is None and (is_pack(path) or path.suffix == ".gguf"):
        template_install.show_status(path, out)
        return
    if source is None:
        found = find_templates(path)
    else:
        with out.progress() as progress:
            found = find_hub_templates(source, progress)
    out.line(f"{target}: {found.status}" + ("" if found.sha256 is None else f" (sha256 {found.sha256})"))
    if source is not None or path.is_dir():
        template_install.show_copies(found.copies, out)
    for note in found.notes:
        out.line(f"note: {note}")
    out.result({"target": target, **asdict(found)})
