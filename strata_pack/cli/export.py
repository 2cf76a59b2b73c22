"""``strata-pack export``: writes the file that another program needs to run a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()


@app.command(epilog="Example: strata-pack export ollama packs/Qwen3-0.6B-Q4_K_M --out ollama")
@with_shared_flags
def export(
    program: Annotated[
        str,
        typer.Argument(
            help="ollama, lmstudio, llama-swap or oci.", metavar="PROGRAM", autocompletion=complete.programs
        ),
    ],
    pack: Annotated[Path, typer.Argument(help="A pack folder.", metavar="PACK")],
    folder: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.", metavar="DIR")],
    repo: Annotated[
        str | None, typer.Option(help="lmstudio: the repository the pack is published in.", metavar="ORG/NAME")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of context.", metavar="N", min=1)] = None,
    template: Annotated[
        Literal["auto", "template", "raw"],
        typer.Option(help="ollama: use the GGUF's template, or pass prompts on unchanged."),
    ] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Write a Modelfile (Ollama), model.yaml (LM Studio), configuration (llama-swap) or image (OCI) for a pack.

    All of them keep the pack's own chat template. The weights are not copied, except for an OCI image.
    """
    from strata_pack.publish import ExportOptions, exported_file, find_program
    from strata_pack.publish import export as export_pack

    found = find_program(program)
    target = exported_file(found, folder)
    if force and target is not None:
        consent(lambda: [f"{target}: will be replaced"] if target.exists() else [], out, yes=yes, named=True)
    with out.progress() as progress:
        done = export_pack(found, pack, folder, ExportOptions(repo, context, template, force), progress)
    for path in done.files:
        out.line(f"{path}: written")
    out.line("Go on with:")
    for step in done.next_steps:
        out.line(f"  {step}")
    out.result({"files": [str(path) for path in done.files], "next": list(done.next_steps)})
