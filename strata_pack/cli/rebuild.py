"""``strata-pack rebuild``: builds a pack again from its manifest and compares."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.quant_options import Kernels, Threads
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

app = typer.Typer()


@app.command(epilog="Example: strata-pack rebuild packs/Qwen3-0.6B-Q4_K_M")
@with_shared_flags
def rebuild(
    pack: Annotated[Path, typer.Argument(help="A pack folder, or its provenance.json alone.", metavar="PACK")],
    source: Annotated[
        str | None, typer.Option(help="Its source, if it was local: a .gguf or a folder.", metavar="SOURCE")
    ] = None,
    imatrix: Annotated[Path | None, typer.Option(help="Its imatrix, if it had one.", metavar="FILE")] = None,
    mmproj: Annotated[
        Path | None, typer.Option("--mmproj", help="Its projector, if it was built with --mmproj.", metavar="FILE")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the new pack in this folder.", metavar="DIR")] = None,
    template: Annotated[
        str | None,
        typer.Option(help="Its template file, if PACK is only the provenance.json.", metavar="FILE"),
    ] = None,
    golden: Annotated[
        Path | None, typer.Option(help="Its golden cases, if PACK is only the provenance.json.", metavar="FILE")
    ] = None,
    threads: Threads = None,
    kernels: Kernels = "auto",
    *,
    out: Out,
) -> None:
    """Build a pack again from its manifest or provenance statement and compare (exit code 1 if it differs).

    A difference is reported by file, tensor and block, with the possible causes.
    """
    from strata_pack.pack.rebuild import RebuildRequest, rebuild_pack

    with out.progress() as progress:
        request = RebuildRequest(pack, source, imatrix, keep, threads, kernels, mmproj, template, golden)
        result = rebuild_pack(request, progress)
    found = result.difference
    if found is None:
        out.line(f"{pack}: identical, {counted(result.files, 'file')}")
    else:
        place = "" if found.tensor is None else f", {found.tensor}"
        block = "" if found.block is None else f", block {found.block}"
        out.line(f"{found.file}{place}{block}: {found.problem}")
        for cause in result.causes or ("no known difference in source, recipe, template or quantizer",):
            out.line(f"  {cause}")
    out.result(result.to_dict())
    raise typer.Exit(0 if result.identical else 1)
