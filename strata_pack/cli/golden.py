"""``strata-pack golden``: checks that a template renders every recorded conversation byte for byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.confirm import DryRun, Yes, confirm, consent
from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, JunitFile, ReportFiles, SarifFile
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.plural import counted

app = typer.Typer(
    help="Golden cases: conversations and the exact prompts that a template must render.",
    epilog="Example: strata-pack golden check packs/my-model",
    no_args_is_help=True,
)

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="[TEMPLATE|PACK|FILE]",
        help="The id of a shipped template, a pack, a .gguf or a template file (default: all shipped templates).",
    ),
]
Golden = Annotated[
    Path | None, typer.Option("--golden", metavar="FILE", help="The cases (a JSON file or a folder of them).")
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        "-e",
        help="jinja2 (default), minijinja, transformers, llama.cpp, or all; repeatable.",
        autocompletion=complete.engines,
    ),
]
Model = Annotated[
    Path | None, typer.Option(help="A GGUF for the engine llama.cpp to load (default: a built-in stub model).")
]


@app.command(epilog="Example: strata-pack golden check qwen3.8-flash-next -e jinja2 -e llama.cpp --junit golden.xml")
@with_shared_flags
def check(
    target: Target = None,
    golden: Golden = None,
    engine: Engines = None,
    model: Model = None,
    html: HtmlFile = None,
    junit: JunitFile = None,
    sarif: SarifFile = None,
    *,
    out: Out,
) -> None:
    """Render every golden case on every engine and compare (exit code 1 on any difference that is not listed as known).

    In a GitHub workflow (GITHUB_ACTIONS) every difference is also printed as an annotation.
    """
    from strata_pack.chat.engines.engines import expand_names, missing_engines, open_engines
    from strata_pack.chat.golden import output as golden_faces
    from strata_pack.chat.golden.check import check_golden
    from strata_pack.pack.golden_target import golden_targets

    files = ReportFiles(html, junit, sarif)
    files.try_all(target, golden, model)
    left_out = missing_engines() if "all" in (engine or ()) else {}
    reports = []
    for one in golden_targets(target, golden):
        suite = one.suite()
        with open_engines(expand_names(engine), one.source, model=model) as engines, out.progress() as progress:
            reports.append((one.where, check_golden(one.source, suite, engines, progress)))
    for where, report in reports:
        out.show(golden_faces.terminal(report, where))
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for annotation in golden_faces.github_annotations(report, where):
                out.line(annotation)
    for name, remedy in left_out.items():
        out.line(f"not run: {name}, which is not installed; {remedy}")
    ok = all(report.ok for _, report in reports)
    out.result(
        {
            "ok": ok,
            "not_run": list(left_out),
            "targets": [{"target": where, **report.to_dict()} for where, report in reports],
        }
    )
    code = files.write(golden_faces.to_report(reports), out)
    raise typer.Exit(code if ok else 1)


@app.command("list", epilog="Example: strata-pack golden list qwen3.8-flash-next")
@with_shared_flags
def list_(target: Target = None, golden: Golden = None, *, out: Out) -> None:
    """List the golden cases of a template: what each case expects, and the engines on which it is known to differ."""
    from rich.table import Table

    from strata_pack.pack.golden_target import golden_targets

    found = [(one.where, one.suite()) for one in golden_targets(target, golden)]
    for where, suite in found:
        table = Table(
            "case", "expects", "differs on", title=f"{where}: {counted(len(suite.cases), 'case')}", title_justify="left"
        )
        for case in suite.cases:
            table.add_row(case.id, "a prompt" if case.error is None else "an error", ", ".join(case.differs_on))
        out.show(table)
    rows = [
        {"target": where, "suite": suite.name, "sha256": suite.sha256, "cases": [case.id for case in suite.cases]}
        for where, suite in found
    ]
    out.result({"targets": rows})


@app.command(epilog="Example: strata-pack golden add golden/mine/golden.json talk.json --name 'two calls' -t my.jinja")
@with_shared_flags
def add(
    suite: Annotated[Path, typer.Argument(metavar="SUITE", help="The golden file; created if it does not exist.")],
    conversation: Annotated[Path, typer.Argument(metavar="FILE", help="Messages, or the body of a chat request.")],
    name: Annotated[str, typer.Option(help="Name of the case: the fact that it states.")],
    template: Annotated[str, typer.Option("--template", "-t", help="A shipped template, a pack, a GGUF or a file.")],
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Add a conversation to a golden file with the prompt that a template renders; the prompt is shown first."""
    from strata_pack.chat.golden.edit import plan_add, write
    from strata_pack.chat.render.template import ChatTemplate
    from strata_pack.outputs import check_outputs
    from strata_pack.pack.golden_target import template_source
    from strata_pack.report.diff import visible

    check_outputs((suite,), (conversation, template))
    change = plan_add(suite, conversation, name, ChatTemplate(template_source(template)))
    case = change.cases[0]
    text = case.expected if case.error is None else f"(refused) {case.error}"
    for line in visible(text or "").split("\n"):
        out.line(line)
    confirm(f"Add this to {suite}?", out, yes=yes)
    write(change)
    out.line(f"{suite}: added {name!r}")
    out.result({"written": True, "suite": str(suite), "case": case.to_dict()})


@app.command(epilog="Example: strata-pack golden update my.jinja --golden golden/mine")
@with_shared_flags
def update(
    target: Target = None, golden: Golden = None, dry_run: DryRun = False, yes: Yes = False, *, out: Out
) -> None:
    """Replace the expected prompts that differ by what the template renders now (on jinja2); every difference is
    shown first."""
    from strata_pack.chat.engines.engines import Jinja2Engine
    from strata_pack.chat.golden import output as golden_faces
    from strata_pack.chat.golden.cases import suite_files
    from strata_pack.chat.golden.check import check_golden
    from strata_pack.chat.golden.edit import plan_update, write
    from strata_pack.errors import WrongUse
    from strata_pack.outputs import check_outputs
    from strata_pack.pack.golden_target import golden_targets

    changes = []
    for one in golden_targets(target, golden):
        if one.in_pack:
            raise WrongUse(
                "the golden cases are part of the pack", where=one.where, remedy="change them and build again"
            )
        report = check_golden(one.source, one.suite(), [Jinja2Engine()])
        out.show(golden_faces.terminal(report, one.where))
        for change in plan_update(suite_files(one.golden), report):
            check_outputs((change.path,), ())
            changes.append(change)
    if not dry_run:
        lost = [
            f"{change.path}: {counted(len(change.cases), 'recorded result')} will be replaced" for change in changes
        ]
        consent(lambda: lost, out, yes=yes)
        for change in changes:
            write(change)
            out.line(f"{change.path}: {counted(len(change.cases), 'case')} recorded again")
    rows = [
        {"file": str(change.path), "written": not dry_run, "cases": [case.name for case in change.cases]}
        for change in changes
    ]
    out.result({"dry_run": dry_run, "changed": rows})
