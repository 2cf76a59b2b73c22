"""``strata-pack runtime``: lists, checks, installs, builds and selects llama.cpp runtimes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import DryRun, Yes, confirm
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

if TYPE_CHECKING:
    from strata_pack.llama.runtimes import Runtime
    from strata_pack.weights.source import HubSource

app = typer.Typer(
    help="The llama.cpp runtimes that packs are tested on: list, check, install, build, use.",
    epilog="Example: strata-pack runtime check --model packs/my-model",
    no_args_is_help=True,
)

LlamaServerOption = Annotated[
    Path | None, typer.Option("--llama-server", help="A llama-server binary to include.", metavar="FILE")
]


@app.command("list", epilog="Example: strata-pack runtime list")
@with_shared_flags
def list_(*, out: Out) -> None:
    """Show every llama.cpp that can be started here, and which one is used."""
    from strata_pack.llama.runtimes import list_runtimes, pick_runtime

    taken = pick_runtime()
    rows = [
        {
            "name": runtime.name,
            "backend": runtime.backend,
            "path": str(runtime.path or runtime.python) if runtime.path or runtime.python else None,
            "origin": runtime.origin,
            "taken": runtime == taken,
            "why": taken.why or None if runtime == taken else None,
        }
        for runtime in list_runtimes()
    ]
    for row in rows:
        mark = "*" if row["taken"] else " "
        out.line(f"{mark} {row['name']:24} {row['backend']:7} {row['path'] or row['origin']}")
    out.result({"runtimes": rows})


@app.command(epilog="Example: strata-pack runtime check --model packs/Qwen3-0.6B-Q4_K_M --context 32768")
@with_shared_flags
def check(
    name: Annotated[
        str,
        typer.Argument(help="A runtime of `runtime list`, or a model on the Hub.", autocompletion=complete.runtimes),
    ] = "auto",
    *,
    llama_server: LlamaServerOption = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A pack or .gguf to check, or hf://org/name/FILE.gguf.", metavar="TARGET"),
    ] = None,
    context: Annotated[int, typer.Option("--context", min=1, help="Context tokens of all slots together.")] = 8192,
    out: Out,
) -> None:
    """Show version, build and devices, and whether a model fits in memory (exit code 1 if it does not).

    Of a model on the Hub only the headers are read; a table shows which of its files fits in which memory, and with
    which context.
    """
    from strata_pack.llama.describe import describe_runtime
    from strata_pack.llama.quantizer import Quantizer, kernel_line
    from strata_pack.llama.runtimes import pick_runtime
    from strata_pack.pack.fit import fit_of, fit_sentence, own_projector
    from strata_pack.weights.source import hub_source

    if name.startswith("hf://") and model is None:
        name, model = "auto", name
    runtime = pick_runtime(name, llama_server)
    source = None if model is None else hub_source(model)
    if source is not None:
        _check_remote(source, context, runtime, out)
    what = describe_runtime(runtime)
    devices = [device.description for device in what.devices]
    kernels = Quantizer.load().state()
    answer: dict[str, Any] = {
        "name": runtime.name,
        "backend": runtime.backend,
        "why": runtime.why or None,
        "version": what.version,
        "build": what.build,
        "devices": devices,
        "kernels": asdict(kernels),
    }
    taken = f" ({runtime.why})" if runtime.why else ""
    out.line(f"{runtime.name}{taken}: {what.version}, {what.build}")
    out.line(f"devices: {', '.join(devices) or 'CPU'}")
    path = None if model is None else Path(model)
    fit = fit_of(path, context, runtime, projector=own_projector(path)) if path is not None else None
    if fit is not None:
        answer["fit"] = {
            "weights": fit.need.held,
            "lazy": fit.need.lazy,
            "kv_cache": fit.need.kv_cache,
            "projector": fit.need.projector,
            "total": fit.need.total,
            "available": fit.room.free,
            "place": fit.room.place,
            "fits": fit.fits,
            "runs": fit.runs,
        }
        verdict = (
            "fits" if fit.fits else "fits partly; the other layers go to main memory" if fit.runs else "does not fit"
        )
        out.line(f"{verdict}: {fit_sentence(fit)}")
    out.line(kernel_line(kernels))
    out.result(answer)
    raise typer.Exit(0 if fit is None or fit.runs else 1)


def _check_remote(source: HubSource, context: int, runtime: Runtime, out: Out) -> NoReturn:
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.pack.fit import room_of
    from strata_pack.pack.fit_table import GIB, fit_table, shown_memories
    from strata_pack.report.diff import printable
    from strata_pack.weights.preflight import size_text

    room = room_of(runtime)
    with out.progress() as progress:
        rows = fit_table(source, context, room, progress)
    memories = shown_memories(rows)
    table = Table("file", "size", "in memory", "on disk", *(f"{memory // GIB} GiB" for memory in memories), "here")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        lengths = [_tokens(row.contexts[memory]) for memory in memories]
        lazy = size_text(row.need.lazy) if row.need.lazy else "-"
        here = "fits" if row.fits else "no"
        name = escape(printable(row.name))
        table.add_row(name, size_text(row.size), size_text(row.need.held), lazy, *lengths, here)
    out.show(table)
    out.line("in memory: the weights; per memory size: the longest context that fits with them; on disk: n-gram table")
    out.line(f"here: {context:,} tokens in {size_text(room.free)} free in {room.place}")
    place = {"place": room.place, "available": room.free}
    out.result({"model": str(source), "context": context, **place, "files": [row.to_dict() for row in rows]})
    raise typer.Exit(0 if any(row.fits for row in rows) else 1)


def _tokens(context: int) -> str:
    return f"{context // 1024}k" if context >= 1024 else str(context or "-")


@app.command(epilog="Example: strata-pack runtime install --backend vulkan --yes")
@with_shared_flags
def install(
    *,
    backend: Annotated[Literal["vulkan", "cuda"], typer.Option("--backend", help="The compute backend.")],
    index_url: Annotated[
        str | None,
        typer.Option(
            "--index-url",
            envvar="STRATA_CUDA_INDEX",
            help="The package index with xllamacpp's CUDA wheels.",
            metavar="URL",
        ),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", help="The hash that the CUDA wheel must have.", metavar="HEX")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    out: Out,
) -> None:
    """Install a prebuilt server with pip, test it, and register it if it works here."""
    from strata_pack.llama.install import install_runtime, plan_install

    plan = plan_install(backend, index_url)
    for line in plan:
        out.note(line)
    if dry_run:
        out.result({"installed": None, "plan": plan})
        return
    confirm("Fetch and install it?", out, yes=yes)
    with out.progress() as progress:
        runtime = install_runtime(backend, index_url, sha256, progress)
    out.line(f"{runtime.name}: {runtime.path or runtime.python}, sha256 {' '.join(runtime.details['sha256'])}")
    out.result({"installed": runtime.name, "path": str(runtime.path or runtime.python), **runtime.details})


@app.command(epilog="Example: strata-pack runtime build --backend cuda --arch 90")
@with_shared_flags
def build(
    *,
    backend: Annotated[
        Literal["cpu", "cuda", "vulkan", "hip", "metal"], typer.Option("--backend", help="The compute backend.")
    ] = "cpu",
    arch: Annotated[
        str | None, typer.Option("--arch", help="Architectures: 90 or 80;90 (CUDA), gfx1100 (HIP).", metavar="LIST")
    ] = None,
    toolkit: Annotated[
        Literal["system", "pip"],
        typer.Option("--toolkit", help="CUDA compiler, cmake and ninja: this machine's, or wheels from pip."),
    ] = "system",
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Cores to use; all by default.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the toolchain, show the flags, build nothing.")
    ] = False,
    out: Out,
) -> None:
    """Build llama-server from the pinned source; an earlier build with the same tools is reused."""
    from strata_pack.llama.build import build_runtime, plan_runtime_build

    plan = plan_runtime_build(backend, arch, jobs, toolkit)
    answer: dict[str, Any] = {"name": plan.name, "flags": list(plan.flags), "minutes": round(plan.minutes, 1)}
    if dry_run:
        out.line(f"{plan.name}: about {plan.minutes:.0f} minutes")
        for flag in plan.flags:
            out.line(f"  {flag}")
    else:
        with out.progress() as progress:
            runtime = build_runtime(plan, jobs=jobs, progress=progress)
        answer["path"] = str(runtime.path)
        out.line(f"{runtime.name}: {runtime.path}")
    out.result(answer)


@app.command(epilog="Example: strata-pack runtime use cpu-293ccb12702b")
@with_shared_flags
def use(
    name: Annotated[
        str, typer.Argument(help="A runtime of `runtime list`, or auto.", autocompletion=complete.runtimes)
    ],
    *,
    out: Out,
) -> None:
    """Make this runtime the default."""
    _use(name, out)


@app.command(epilog="Example: strata-pack runtime auto")
@with_shared_flags
def auto(*, out: Out) -> None:
    """Make the best available runtime the default (CUDA, then Vulkan, then CPU), and print it."""
    _use("auto", out)


def _use(name: str, out: Out) -> None:
    from strata_pack.llama.runtimes import use_runtime

    runtime = use_runtime(name)
    why = f" ({runtime.why})" if runtime.why else ""
    out.line(f"{name}: {runtime.name}{why}, {runtime.path or runtime.origin}")
    out.result({"use": name, "runtime": runtime.name, "backend": runtime.backend, "why": runtime.why or None})
