"""``strata-pack convert``: converts a safetensors checkpoint to one GGUF file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import DryRun, Yes, confirm, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.weights.convert.convert import SourcePart

app = typer.Typer()


@app.command(epilog="Example: strata-pack convert weights/qwen3-0.6b --outtype bf16 --out qwen3-0.6b-bf16.gguf")
@with_shared_flags
def convert(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A checkpoint in Hugging Face layout.")],
    dest: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The .gguf file to write.")],
    out: Out,
    outtype: Annotated[
        str,
        typer.Option(
            help="bf16, f16, f32, q8_0, tq1_0, tq2_0, or auto: as the weights are stored.",
            autocompletion=complete.outtypes,
        ),
    ] = "auto",
    pre: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the pre-tokenizer, if it is not recognised.")
    ] = None,
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Leave out layers for multi-token prediction.")] = False,
    mtp: Annotated[bool, typer.Option("--mtp", help="Write only these layers, as a draft model.")] = False,
    mmproj: Annotated[bool, typer.Option("--mmproj", help="Write only the vision tower, as a projector.")] = False,
    name: Annotated[str | None, typer.Option(help="The model's name in the header.")] = None,
    converter: Annotated[
        Literal["own", "reference", "auto"],
        typer.Option(
            help="reference: llama.cpp's, in a separate environment; auto: that one for unknown model classes."
        ),
    ] = "own",
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    dry_run: DryRun = False,
    threads: Annotated[int | None, typer.Option(min=1, max=64, help="Threads (default: all cores).")] = None,
) -> None:
    """Convert safetensors to GGUF, without torch; the file is byte-identical to llama.cpp's converter's.

    Tensors are converted one at a time, so memory stays small for models of any size.
    """
    from strata_pack.errors import WrongUse
    from strata_pack.outputs import check_file_output
    from strata_pack.weights.convert.arch import is_known
    from strata_pack.weights.convert.convert import SafetensorsSource
    from strata_pack.weights.convert.convert import convert_checkpoint as convert_source
    from strata_pack.weights.preflight import size_text

    parts: dict[SourcePart, bool] = {"trunk": no_mtp, "mtp": mtp, "projector": mmproj}
    chosen = [part for part, wanted in parts.items() if wanted]
    if len(chosen) > 1:
        raise WrongUse("--no-mtp, --mtp and --mmproj exclude each other", remedy="give one of them")
    check_file_output(dest, force=force)
    if converter == "reference" or (converter == "auto" and not is_known(folder)):
        if pre is not None:
            raise WrongUse("--pre is for the built-in converter", remedy="leave it out with --converter reference")
        _by_reference(out, folder, dest, outtype, chosen[0] if chosen else "model", name, converter, yes, dry_run)
        return
    if force and not dry_run:
        consent(lambda: _replaced(folder, dest), out, yes=yes, named=True)
    with (
        out.progress() as progress,
        SafetensorsSource.open(folder, outtype, pre=pre, part=chosen[0] if chosen else "model", name=name) as source,
    ):
        progress.note(
            f"{folder}: {source.architecture}, {source.parameters / 1e6:.1f} M parameters, "
            f"{len(source.tensors)} tensors, to {source.outtype}"
        )
        if source.left_out:
            remedy = "convert it with --mmproj" if source.has_tower else "strata-pack cannot convert such a tower"
            progress.note(f"{folder}: {source.left_out} tensors of a vision or audio tower are left out; {remedy}")
        if dry_run:
            size = sum(tensor.nbytes for tensor in source.tensors)
            out.line(f"{dest}: would be written, {len(source.tensors)} tensors of {size_text(size)} and the header")
            names = [tensor.name for tensor in source.tensors]
            out.result({"dry_run": True, "file": str(dest), "size": size, "tensors": names, **source.to_dict()})
            return
        result = convert_source(source, dest, progress=progress, threads=threads)
    out.line(f"{dest}: {size_text(result.size)}, sha256 {result.sha256}")
    out.result({"ok": True, **result.to_dict(), **source.to_dict()})


def _replaced(folder: Path, dest: Path) -> list[str]:
    from strata_pack.outputs import check_outputs

    check_outputs([dest], [folder])
    return [f"{dest}: will be replaced"] if os.path.lexists(dest) else []


def _by_reference(
    out: Out,
    folder: Path,
    dest: Path,
    outtype: str,
    part: SourcePart,
    name: str | None,
    converter: str,
    yes: bool,
    dry_run: bool,
) -> None:
    """Convert with llama.cpp's own converter; "auto" asks before it creates the environment."""
    from strata_pack.errors import BadInput
    from strata_pack.pack.loadable import header_problems
    from strata_pack.weights.convert.reference import convert_by_reference
    from strata_pack.weights.convert.reference_environment import COST, environment_folder, ready_environment
    from strata_pack.weights.gguf.file import GgufFile
    from strata_pack.weights.preflight import size_text

    ready = ready_environment() is not None
    if dry_run:
        told = "is there" if ready else f"would be made in {environment_folder()}"
        out.line(f"{dest}: would be written by llama.cpp's converter; its environment {told}")
        out.result({"dry_run": True, "converter": "reference", "environment": ready, "out": str(dest)})
        return
    if not ready and converter == "auto":
        out.note(COST)
        confirm(f"Make it in {environment_folder()}?", out, yes=yes)

    consent(lambda: _replaced(folder, dest), out, yes=yes, named=True)

    def check(file: GgufFile) -> None:
        problems = [] if part == "projector" else header_problems(file.metadata, file.tensors)
        if problems:
            raise BadInput(
                f"llama.cpp's converter wrote a file that llama.cpp cannot load: {problems[0]}", where=folder
            )

    with out.progress() as progress:
        result = convert_by_reference(
            folder, dest, outtype=outtype, part=part, name=name, check=check, progress=progress
        )  # fmt: skip
    out.line(f"{dest}: {size_text(result.size)}, sha256 {result.sha256}")
    out.result(
        {
            "ok": True,
            "file": str(dest),
            "size": result.size,
            "sha256": result.sha256,
            "converter": "reference",
            "tensors": len(result.tensor_types),
        }
    )
