"""``strata-pack template``: the shipped templates, and what the template of a model is to us."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli import template_install, template_lint, template_prefix, template_repair
from strata_pack.cli.face import Out, face

app = typer.Typer(help="The chat templates: shipped, repaired, checked, installed.", no_args_is_help=True)
app.command(epilog="Example: strata-pack template repair model.gguf -o repaired.jinja --diff")(template_repair.repair)
app.command(epilog="Example: strata-pack template lint chat_template.jinja --ignore ST103")(template_lint.lint)
app.command(epilog="Example: strata-pack template prefix qwen3.8-flash-next")(template_prefix.prefix)
app.command(epilog="Example: strata-pack template install packs/my-model --template qwen3.8-flash-next")(
    template_install.install
)
app.command(epilog="Example: strata-pack template rollback packs/my-model")(template_install.rollback)


@app.command("list", epilog="Example: strata-pack template list")
@face
def list_(out: Out) -> None:
    """List the templates that ship with the tool."""
    from rich.table import Table

    from strata_pack.chat.library import list_templates

    shipped = list_templates()
    table = Table("id", "family", "calls", "sha256")
    for one in shipped:
        table.add_row(one.id, one.family, ", ".join(one.formats), one.sha256)
    out.show(table)
    out.result([{"id": one.id, "family": one.family, "formats": one.formats, "sha256": one.sha256} for one in shipped])


@app.command(epilog="Example: strata-pack template show qwen3.8-flash-next > chat_template.jinja")
@face
def show(
    template_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a shipped template.")], out: Out
) -> None:
    """Print a shipped template as it is, ready to be written to a file."""
    from strata_pack.chat.library import load_shipped

    shipped = load_shipped(template_id)
    if out.mode == "terminal":
        out.line(shipped.source.removesuffix("\n"))
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
@face
def status(
    target: Annotated[Path, typer.Argument(metavar="FILE|GGUF|PACK", help="A template, a .gguf file or a pack.")],
    out: Out,
) -> None:
    """Say what the template of a model is: repaired, stock (a repair is there), modified, unknown or missing."""
    from strata_pack.chat.library import status_of
    from strata_pack.files import sha256_text
    from strata_pack.pack.layout import is_pack, read_pack_template

    if is_pack(target) or target.suffix == ".gguf":
        template_install.show_status(target, out)
        return
    text = read_pack_template(target)
    found = status_of(text)
    sha256 = None if text is None else sha256_text(text)
    out.line(f"{target}: {found}" + ("" if sha256 is None else f" (sha256 {sha256})"))
    out.result({"target": str(target), "status": found, "sha256": sha256})
