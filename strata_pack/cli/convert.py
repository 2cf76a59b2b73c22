"""``strata-pack convert``: a safetensors checkpoint as one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.confirm import DryRun
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()


@app.command(epilog="Example: strata-pack convert weights/qwen3-0.6b --outtype bf16 --out qwen3-0.6b-bf16.gguf")
@with_shared_flags
def convert(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A checkpoint in Hugging Face layout.")],
    dest: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The .gguf file to write.")],
    out: Out,
    outtype: Annotated[
        str, typer.Option(help="bf16, f16, f32, q8_0, tq1_0, tq2_0, or auto: as the weights are stored.")
    ] = "auto",
    pre: Annotated[str | None, typer.Option(metavar="NAME", help="Pre-tokenizer, if it is not recognised.")] = None,
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Leave out layers for multi-token prediction.")] = False,
    mtp: Annotated[bool, typer.Option("--mtp", help="Write these layers alone, as a draft model's file.")] = False,
    mmproj: Annotated[bool, typer.Option("--mmproj", help="Write the tower for images, as a projector.")] = False,
    name: Annotated[str | None, typer.Option(help="The model's name in the header.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    dry_run: DryRun = False,
    threads: Annotated[int | None, typer.Option(min=1, max=64, help="Threads (default: all cores).")] = None,
) -> None:
    """Convert safetensors to GGUF, without torch; the file is byte-identical to llama.cpp's converter's.

    One tensor at a time: memory stays small whatever the size of the model.
    """
    from strata_pack.errors import WrongUse
    from strata_pack.outputs import check_file_output
    from strata_pack.weights.convert.convert import SafetensorsSource, SourcePart, plan_dict, result_dict
    from strata_pack.weights.convert.convert import convert_checkpoint as convert_source
    from strata_pack.weights.preflight import size_text

    parts: dict[SourcePart, bool] = {"trunk": no_mtp, "mtp": mtp, "projector": mmproj}
    chosen = [part for part, wanted in parts.items() if wanted]
    if len(chosen) > 1:
        raise WrongUse("--no-mtp, --mtp and --mmproj each name another file", remedy="give one of them")
    check_file_output(dest, force=force)
    with (
        out.progress() as progress,
        SafetensorsSource.open(folder, outtype, pre=pre, part=chosen[0] if chosen else "model", name=name) as source,
    ):
        progress.note(
            f"{folder}: {source.architecture}, {source.parameters / 1e6:.1f} M parameters, "
            f"{len(source.tensors)} tensors, to {source.outtype}"
        )
        if source.left_out:
            told = "convert it with --mmproj" if source.has_tower else "this tool converts no such tower"
            progress.note(f"{folder}: {source.left_out} tensors of a tower for images or sound are left out; {told}")
        if dry_run:
            size = sum(tensor.nbytes for tensor in source.tensors)
            out.line(f"{dest}: would be written, {len(source.tensors)} tensors of {size_text(size)} and the header")
            out.result({"dry_run": True, **plan_dict(source, dest)})
            return
        result = convert_source(source, dest, progress=progress, threads=threads)
    out.line(f"{dest}: {size_text(result.size)}, sha256 {result.sha256}")
    out.result(result_dict(source, result))
