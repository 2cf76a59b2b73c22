"""``strata-pack build``: from a source to a whole pack."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from strata_pack.cli import complete
from strata_pack.cli.face import face
from strata_pack.cli.fitting import fitted, refuse_with_fit
from strata_pack.cli.output import Out
from strata_pack.cli.quant_options import (
    AllowNonfinite,
    AllowRequantize,
    EmbeddingType,
    FitProbe,
    FitSize,
    ImatrixFile,
    KeepSplit,
    Kernels,
    LeaveOutput,
    OutputType,
    Pure,
    Quant,
    RecipeFile,
    TensorType,
    Threads,
)

app = typer.Typer()

MIB = 1 << 20


@app.command(epilog="Example: strata-pack build Qwen/Qwen3-0.6B --quant Q4_K_M --out packs/Qwen3-0.6B-Q4_K_M")
@face
def build(
    source: Annotated[str, typer.Argument(help="A .gguf, a folder, or a hub id (org/name, hf://org/name@rev/path).")],
    out_dir: Annotated[Path, typer.Option("--out", "-o", help="The pack's folder.", metavar="DIR")],
    template: Annotated[
        str,
        typer.Option(
            help="A template's id or file, auto (repair the source's own) or keep.",
            autocompletion=complete.template_or_auto,
        ),
    ] = "auto",
    golden: Annotated[Path | None, typer.Option(help="Golden cases for the template.", metavar="FILE")] = None,
    allow_triggers: Annotated[
        bool, typer.Option("--allow-triggers", help="Let pass what the template says or hides on a trigger (ST605).")
    ] = False,
    name: Annotated[str | None, typer.Option(help="The model file's name, without .gguf.")] = None,
    layout: Annotated[Literal["pack", "gguf"], typer.Option(help="A whole pack, or just the .gguf in DIR.")] = "pack",
    mmproj: Annotated[
        Path | None, typer.Option("--mmproj", help="The projector of a GGUF model.", metavar="FILE")
    ] = None,
    no_mmproj: Annotated[bool, typer.Option("--no-mmproj", help="Leave out the projector for images.")] = False,
    mmproj_type: Annotated[
        Literal["auto", "bf16", "f16", "f32", "q8_0"], typer.Option(help="The projector's type, if it is converted.")
    ] = "auto",
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Leave out layers for multi-token prediction.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a pack or bare GGUF that is there.")] = False,
    threads: Threads = None,
    kernels: Kernels = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan of a local source and leave.")] = False,
    quant: Quant = None,
    recipe: RecipeFile = None,
    fit: FitSize = None,
    fit_probe: FitProbe = None,
    imatrix: ImatrixFile = None,
    tensor_type: TensorType = None,
    output_tensor_type: OutputType = None,
    token_embedding_type: EmbeddingType = None,
    leave_output_tensor: LeaveOutput = False,
    pure: Pure = False,
    keep_split: KeepSplit = False,
    allow_requantize: AllowRequantize = False,
    allow_nonfinite: AllowNonfinite = False,
    *,
    out: Out,
) -> None:
    """Build a pack: fetch, convert, quantize, install the template, check its golden cases."""
    from strata_pack.errors import WrongUse
    from strata_pack.pack.build import build_pack, plan_pack
    from strata_pack.pack.request import BuildRequest
    from strata_pack.weights.gguf.edit import RESERVE
    from strata_pack.weights.quantize.recipes import make_recipe

    chosen = make_recipe(
        quant,
        recipe,
        tensor_types=tensor_type or (),
        output=output_tensor_type,
        embedding=token_embedding_type,
        leave_output=leave_output_tensor,
        pure=pure,
    )
    if no_mmproj and (mmproj is not None or mmproj_type != "auto"):
        raise WrongUse("--no-mmproj leaves no projector to say more of", remedy="give one of them")
    request = BuildRequest(
        source=source,
        out=out_dir,
        recipe=chosen,
        template=template,
        golden=golden,
        allow_triggers=allow_triggers,
        name=name,
        imatrix=imatrix,
        projector=not no_mmproj,
        projector_type=mmproj_type,
        projector_file=mmproj,
        mtp=not no_mtp,
        layout=layout,
        force=force,
        allow_requantize=allow_requantize,
        allow_nonfinite=allow_nonfinite,
        keep_split=keep_split,
        threads=threads,
        kernels=kernels,
    )
    if fit is not None:
        refuse_with_fit(quant, recipe)
        place = request.out.with_name(request.out.name + ".fit.toml")
        chosen = fitted(source, fit, imatrix, fit_probe, threads, place, out, reserve=RESERVE)
        request = replace(request, recipe=chosen)
    if dry_run:
        from strata_pack.cli.quantize import show_plan

        with plan_pack(request) as (plan, needs):
            planned = show_plan(plan, out)
            for line in needs.lines():
                out.line(line)
            out.result({**planned, "forecast": needs.to_dict()})
        return
    with out.progress() as progress:
        result = build_pack(request, progress)
    model, shown = result.manifest["model"], result.manifest["template"]
    size = sum(entry["size"] for entry in result.manifest["files"])
    out.line(f"{result.path}: {model['name']}, {size / MIB:,.1f} MiB, {model['bits_per_weight']:.2f} bits per weight")
    out.line(f"template: {shown['id'] or shown['sha256'][:12]} ({shown['origin']})")
    for engine, counts in (result.manifest["golden"] or {"engines": {}})["engines"].items():
        passed, known = counts["passed"], counts["known_differences"]
        out.line(f"golden: {passed} passed on {engine} {counts['version']}, {known} known differences")
    if result.manifest["golden"] is None:
        out.line("golden: no cases for this template (give some with --golden)")
    if result.seconds:
        out.line("seconds: " + ", ".join(f"{stage} {spent:.1f}" for stage, spent in result.seconds.items()))
    out.result(
        {
            "ok": True,
            "pack": str(result.path),
            "resumed": result.resumed,
            "kept": list(result.kept),
            "seconds": {stage: round(spent, 3) for stage, spent in result.seconds.items()},
            "manifest": result.manifest,
        }
    )
