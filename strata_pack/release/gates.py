"""Nodes that check and measure packs, and the node that compares with the limits of ``release.toml``.

Measuring and comparing are two nodes, so a changed limit needs no new measurement. A failing pack is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata_pack.compare.calls.output import make_report as calls_report
from strata_pack.compare.calls.output import percent
from strata_pack.compare.calls.run import CallsOptions, ask_model
from strata_pack.compare.full import model_file
from strata_pack.compare.many import CompareOptions, compare_many, write_reference
from strata_pack.compare.output import make_report as compare_report
from strata_pack.compare.texts import Text, texts
from strata_pack.llama.logits_native import LogitsUnavailable
from strata_pack.llama.runtimes import pick_runtime
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import REPORTS_DIR
from strata_pack.pack.verification import verify
from strata_pack.progress import Progress
from strata_pack.release.build_nodes import reference
from strata_pack.release.results import Results, remove_leftovers, write_whole
from strata_pack.release.task import NodeOutput, Task
from strata_pack.report import Report, html
from strata_pack.smoke.prove import keep_report, prove_golden
from strata_pack.smoke.run import SmokeOptions, is_complete_report, run_smoke

GATES = ("verify", "golden", "smoke", "kl", "calls")
"""In the order of the report page."""


def page_of(gate: str, pack: str) -> str:
    """Return the path of a gate's page in the release's folder."""
    return f"reports/{pack}/{gate}.html"


def _kept(task: Task, results: Results, report: Report, **data: Any) -> NodeOutput:
    """Write the gate's page and return the node's output: the page, and the data that ``judge`` reads."""
    path = results.out / page_of(task.kind, task.pack)
    write_whole(path, html(report))
    failed = [check for check in report.checks if check.status in ("failed", "error")]
    detail = report.summary + "".join(f"; {check.id}: {check.detail}" for check in failed[:3])
    return NodeOutput([results.record(path)], {"status": report.status, "detail": detail, **data})


def _pack(task: Task, results: Results) -> Path:
    return results.out / task.pack


def verify_pack(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Verify the pack against its manifest."""
    return _kept(task, results, verify(_pack(task, results), progress))


def golden(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Render the golden cases on every installed engine."""
    pack = Pack.open(_pack(task, results))
    remove_leftovers(pack.path / REPORTS_DIR / "golden.json")
    report = prove_golden(pack, progress)
    keep_report(pack, "golden", report, progress)
    return _kept(task, results, report)


def smoke(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Run the smoke scenarios on a real server."""
    path = _pack(task, results)
    report = run_smoke(path, options=SmokeOptions(threads=task.threads), progress=progress)
    remove_leftovers(path / REPORTS_DIR / "smoke.json")
    if is_complete_report(report):
        keep_report(Pack.open(path), "smoke", report, progress)
    return _kept(task, results, report)


def _options(task: Task, results: Results) -> tuple[tuple[Text, ...], CompareOptions]:
    how = task.settings
    kept = results.out / ".release" / "logits"
    return texts([Path(path) for path in task.paths["text"]]), CompareOptions(
        how["context"], how["windows"], task.threads, kept
    )


def logits(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Compute the source's logits, once for all packs. If they cannot be computed, packs get bounds instead."""
    over, options = _options(task, results)
    try:
        files = write_reference(reference(task, results), over, options, progress)
    except LogitsUnavailable as error:
        return NodeOutput((), {"unavailable": str(error)})
    return NodeOutput([results.record(path) for path in files])


def kl(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Compare the pack with the source."""
    over, options = _options(task, results)
    found = compare_many([_pack(task, results)], reference(task, results), over, options, progress)
    judged = found[0].to_dict()
    # The result belongs to these bytes, whatever their path.
    judged["model"], judged["reference"] = task.pack, Path(judged["reference"]).name
    judged["texts"] = [{**one, "model": task.pack, "reference": judged["reference"]} for one in judged["texts"]]
    return _kept(task, results, compare_report(found, None), judged=judged)


def calls(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Run every tool-calling task on the pack, or on the source."""
    how = task.settings
    options = CallsOptions(how["seed"], how["tasks"], runtime=pick_runtime(), threads=task.threads)
    model = _pack(task, results) if task.pack else model_file(reference(task, results))
    found = ask_model(model, options, progress)
    share = {"right": found.total.right, "tasks": found.total.tasks, "detail_of": percent(found.total)}
    if not task.pack:
        return NodeOutput((), share)
    return _kept(task, results, calls_report(found, None, None), **share)


def judge(task: Task, results: Results, progress: Progress) -> NodeOutput:  # noqa: ARG001
    """Compare every measurement of a pack with its limits."""
    built = task.inputs[f"pack:{task.pack}"]
    if isinstance(built, str):
        return NodeOutput((), {"passed": False, "built": False, "gates": [_row("pack", "error", built)]})
    rows = list(_rows(task))
    passed = all(row["status"] == "passed" or row["status"] == "skipped" for row in rows)
    return NodeOutput((), {"passed": passed, "built": True, "gates": rows})


def _rows(task: Task) -> Iterator[dict[str, Any]]:
    for gate in GATES:
        node = f"{gate}:{task.pack}"
        if node not in task.inputs:
            continue
        found = task.inputs[node]
        if isinstance(found, str):
            yield _row(gate, "error", found)
        elif gate == "kl":
            value, limit = found["data"]["judged"]["kl_mean"], task.settings["kl_mean"]
            error = found["data"]["judged"]["kl_mean_error"]
            within = value <= limit
            said = f"mean KL divergence {value:.6f} ± {error:.6f}, {'within' if within else 'above'} {limit:g}"
            yield _row(gate, "passed" if within else "failed", said)
        elif gate == "calls":
            yield _calls_row(task, found["data"])
        else:
            yield _row(gate, found["data"]["status"], found["data"]["detail"])


def _calls_row(task: Task, found: Any) -> dict[str, Any]:
    source = task.inputs["calls"]
    if isinstance(source, str):
        return _row("calls", "error", f"the source's own calls could not be measured: {source}")
    base, least = source["data"], task.settings["calls"]
    enough = found["right"] * base["tasks"] >= least * base["right"] * found["tasks"]
    said = f"{found['detail_of']} right; the source: {base['detail_of']}; asked for: {least:.0%} of the source's"
    return _row("calls", "passed" if enough else "failed", said)


def _row(gate: str, status: str, detail: str) -> dict[str, Any]:
    return {"gate": gate, "status": status, "detail": detail}
