"""``strata-pack build``: builds a pack from a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import Yes, consent
from strata_pack.cli.output import Out
from strata_pack.cli.quant_options import QuantFlags, with_quant_flags
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

if TYPE_CHECKING:
    from strata_pack.pack.build import BuildResult
    from strata_pack.pack.request import BuildRequest

app = typer.Typer()

MIB = 1 << 20


@app.command(epilog="Example: strata-pack build Qwen/Qwen3-0.6B --quant Q4_K_M --out packs/Qwen3-0.6B-Q4_K_M")
@with_shared_flags
@with_quant_flags
def build(
    source: Annotated[str, typer.Argument(help="A .gguf, a folder, or a hub id (org/name, hf://org/name@rev/path).")],
    out_dir: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The pack's folder; with several --quant, the folder for all packs.", metavar="DIR"
        ),
    ],
    template: Annotated[
        str,
        typer.Option(
            help="A template's id or file, auto (repair the source's template) or keep.",
            autocompletion=complete.template_or_auto,
        ),
    ] = "auto",
    golden: Annotated[Path | None, typer.Option(help="Golden cases for the template.", metavar="FILE")] = None,
    allow_triggers: Annotated[
        bool, typer.Option("--allow-triggers", help="Accept text that the template adds or hides on a trigger (ST605).")
    ] = False,
    name: Annotated[str | None, typer.Option(help="The model file's name, without .gguf.")] = None,
    layout: Annotated[Literal["pack", "gguf"], typer.Option(help="A whole pack, or only the .gguf in DIR.")] = "pack",
    mmproj: Annotated[
        Path | None, typer.Option("--mmproj", help="The projector of a GGUF model.", metavar="FILE")
    ] = None,
    no_mmproj: Annotated[bool, typer.Option("--no-mmproj", help="Leave out the projector for images.")] = False,
    mmproj_type: Annotated[
        Literal["auto", "bf16", "f16", "f32", "q8_0"], typer.Option(help="The projector's type, if it is converted.")
    ] = "auto",
    no_mtp: Annotated[bool, typer.Option("--no-mtp", help="Leave out layers for multi-token prediction.")] = False,
    converter: Annotated[
        Literal["own", "reference"],
        typer.Option(
            help="reference: llama.cpp's, in an environment of its own, for classes that are not supported here."
        ),
    ] = "own",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing pack or bare GGUF.")] = False,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan for a local source and stop.")] = False,
    *,
    flags: QuantFlags,
    out: Out,
) -> None:
    """Build a pack: fetch, convert, quantize, install the template, check its golden cases.

    With several --quant, the source is read once and each preset gives a separate pack in DIR.
    """
    from strata_pack.errors import WrongUse
    from strata_pack.pack.build import build_packs
    from strata_pack.pack.build_plan import replaced_packs
    from strata_pack.pack.request import BuildRequest, requests_by_recipe
    from strata_pack.weights.gguf.edit import RESERVE
    from strata_pack.weights.quantize.recipes import make_recipe

    if no_mmproj and (mmproj is not None or mmproj_type != "auto"):
        raise WrongUse(
            "--no-mmproj leaves out the projector, so --mmproj and --mmproj-type do not apply",
            remedy="give one of them",
        )
    if converter == "reference" and flags.fit is not None:
        raise WrongUse("--fit needs the tool's own converter", where="--converter", remedy="convert the source first")
    flags.check_fit()
    edits, split_bytes = flags.edits(), flags.split_bytes()
    request = BuildRequest(
        source=source,
        out=out_dir,
        recipe=make_recipe(),
        template=template,
        golden=golden,
        allow_triggers=allow_triggers,
        name=name,
        imatrix=flags.imatrix,
        projector=not no_mmproj,
        projector_type=mmproj_type,
        projector_file=mmproj,
        mtp=not no_mtp,
        converter=converter,
        layout=layout,
        force=force,
        allow_requantize=flags.allow_requantize,
        allow_nonfinite=flags.allow_nonfinite,
        keep_split=flags.keep_split,
        threads=flags.threads,
        kernels=flags.kernels,
        edits=edits,
        split_bytes=split_bytes,
    )
    projector = _projector_bytes(request) if flags.fit is not None else 0
    place = out_dir.parent / f"{out_dir.name}.fit.toml"
    recipes, searched = flags.recipes(source, place, out, reserve=RESERVE, projector=projector, mtp=not no_mtp)
    request = replace(request, recipe=recipes[0])
    requests = [request] if len(recipes) == 1 else requests_by_recipe(request, recipes)
    if dry_run:
        _show_plans(requests, searched, out)
        return
    if force:
        consent(lambda: replaced_packs(requests), out, yes=yes, named=True)
    with out.progress() as progress:
        results = build_packs(requests, progress)
    answers = [_show(result, out) for result in results]
    seconds = next((result.seconds for result in results if result.seconds), None)
    if seconds:
        out.line("seconds: " + ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items()))
    out.result({**(answers[0] if len(answers) == 1 else {"ok": True, "packs": answers}), **searched})


def _projector_bytes(request: BuildRequest) -> int:
    """Check all that a build checks before it writes, because a search takes minutes; return the projector's bytes."""
    from strata_pack.pack.build_plan import plan_packs

    with plan_packs([replace(request, allow_requantize=True)]) as ((_, needs),):
        return needs.need.projector


def _show_plans(requests: Sequence[BuildRequest], searched: Mapping[str, Any], out: Out) -> None:
    from strata_pack.cli.quantize import show_plan
    from strata_pack.pack.build_plan import plan_packs

    plans = []
    with plan_packs(requests) as planned:
        for plan, needs in planned:
            shown = show_plan(plan, out)
            for line in needs.lines():
                out.line(line)
            plans.append({**shown, "forecast": needs.to_dict()})
    out.result({**(plans[0] if len(plans) == 1 else {"ok": True, "plans": plans}), **searched})


def _show(result: BuildResult, out: Out) -> dict[str, Any]:
    """Print the finished pack's facts; return them as JSON data."""
    model, shown = result.manifest["model"], result.manifest["template"]
    size = sum(entry["size"] for entry in result.manifest["files"])
    out.line(f"{result.path}: {model['name']}, {size / MIB:,.1f} MiB, {model['bits_per_weight']:.2f} bits per weight")
    out.line(f"template: {shown['id'] or shown['sha256'][:12]} ({shown['origin']})")
    for engine, counts in (result.manifest["golden"] or {"engines": {}})["engines"].items():
        passed, known = counts["passed"], counts["known_differences"]
        out.line(f"golden: {passed} passed on {engine} {counts['version']}, {counted(known, 'known difference')}")
    if result.manifest["golden"] is None:
        out.line("golden: no cases for this template (name a file with --golden)")
    return {
        "ok": True,
        "pack": str(result.path),
        "resumed": result.resumed,
        "kept": list(result.kept),
        "seconds": {stage: round(spent, 3) for stage, spent in result.seconds.items()},
        "manifest": result.manifest,
    }
