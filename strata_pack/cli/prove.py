"""``strata-pack prove``: runs verify, golden and smoke with one summary."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.confirm import Anyway, DryRun
from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, JunitFile, ReportFiles, SarifFile
from strata_pack.cli.shared_flags import with_shared_flags

app = typer.Typer()


def program() -> str:
    """Return how the user calls this program: by its name if it is on the PATH, else by its path."""
    name = Path(sys.argv[0])
    if name.name == "__main__.py":
        return "python -m strata_pack"
    found = shutil.which(name.name)
    return name.name if found is not None and Path(found).samefile(name) else str(name)


@app.command(epilog="Example: strata-pack prove packs/SmolLM2-135M-Instruct-Q4_K_M")
@with_shared_flags
def prove(
    pack: Annotated[Path, typer.Argument(help="A pack folder.", metavar="PACK")],
    dry_run: DryRun = False,
    *,
    source: Annotated[
        Path | None,
        typer.Option(
            help="What it was made from, to compare tensors and predictions.",
            metavar="PATH",
            show_default=False,
        ),
    ] = None,
    anyway: Anyway = False,
    html: HtmlFile = None,
    junit: JunitFile = None,
    sarif: SarifFile = None,
    out: Out,
) -> None:
    """Run verify, golden and smoke on a pack and show one summary; the reports stay in its reports/ folder."""
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.compare.proof import comparer
    from strata_pack.report import terminal
    from strata_pack.smoke.prove import plan_proof, prove_pack
    from strata_pack.smoke.run import SmokeOptions
    from strata_pack.smoke.runner import Interrupted

    files = ReportFiles(html, junit, sarif)
    if dry_run:
        plan = plan_proof(pack)
        for step in plan:
            out.line(f"{step['what']}: {step['detail']}")
        out.result({"dry_run": True, "pack": str(pack), "steps": plan})
        return
    files.try_all(pack, source)
    try:
        with out.progress() as progress:
            compare = comparer(progress) if source is not None else None
            proof = prove_pack(pack, SmokeOptions(anyway=anyway), progress, source=source, compare=compare)
    except Interrupted as stopped:
        if stopped.report is not None:
            out.show(terminal(stopped.report))
        raise
    manifest = proof.pack.manifest
    for report in proof.reports:
        if not report.ok:
            out.show(terminal(report))
    summary = Table("what", "result", "seconds", title=escape(str(pack)), title_justify="left")
    summary.columns[2].justify = "right"
    model, quant = manifest["model"], manifest["recipe"]["preset"]
    summary.add_row(
        "model", escape(f"{model['name']} ({model['architecture']}, {quant}, {model['bits_per_weight']:.2f} bpw)"), ""
    )
    template = manifest["template"]
    summary.add_row("template", f"{template['id'] or template['sha256'][:12]} ({template['origin']})", "")
    for report in proof.reports:
        name = report.title.partition(" ")[0].rstrip(":")
        details = "; ".join(check.detail for check in report.checks) if name == "golden" else report.summary
        summary.add_row(
            name, escape(details if report.ok else f"{report.status}: {report.summary}"), f"{report.seconds:.1f}"
        )
    summary.add_row("proved", "yes" if proof.ok else "no", "")
    out.show(summary)
    if proof.ok:
        out.line("Go on with:")
        for command in ("inspect", "verify", "golden check", "smoke", "serve", "template status"):
            out.line(f"  {program()} {command} {pack}")
    out.result(proof.to_dict())
    code = files.write(proof.merged(), out)
    raise typer.Exit(proof.exit_code or code)
