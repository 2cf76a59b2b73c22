"""Report page of a release: every pack, every gate, size against divergence, and links to the gates' pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args

from strata_pack.progress import Progress
from strata_pack.release.gates import GATES, page_of
from strata_pack.release.results import Result, Results, write_whole
from strata_pack.release.task import NodeOutput, Task
from strata_pack.report import Check, Point, Report, Scatter, Status, Table, html, to_json

PAGE = "report.html"
DATA = "report.json"
MB = 1e6
TITLES = {
    "pack": "the pack was built",
    "verify": "the pack is what its manifest says",
    "golden": "the golden cases render byte for byte",
    "smoke": "the scenarios pass on a real server",
    "kl": "the next tokens stay near the source's",
    "calls": "tools are called as the source calls them",
}


def report(task: Task, results: Results, progress: Progress) -> NodeOutput:  # noqa: ARG001
    """Write the page, and the same data as JSON."""
    made = release_report(task)
    written = []
    for name, data in ((PAGE, html(made)), (DATA, to_json(made))):
        write_whole(results.out / name, data)
        written.append(results.record(results.out / name))
    return NodeOutput(written, {"status": made.status})


def release_report(task: Task) -> Report:
    """Return the report of a release from the results of its nodes."""
    judged = [node.partition(":")[2] for node in task.inputs if node.startswith("gates:")]
    checks = [_overview(task, judged)]
    for pack in judged:
        checks += _pack_checks(task, pack)
    passed = sum(_passed(task, pack) for pack in judged)
    facts = {"packs": str(len(judged)), "may be published": str(passed)}
    return Report(f"release {task.settings['name']}", tuple(checks), facts)


def _data(task: Task, node: str) -> dict[str, Any] | None:
    found: Result | str | None = task.inputs.get(node)
    return None if found is None or isinstance(found, str) else found["data"]


def _passed(task: Task, pack: str) -> bool:
    return bool((_data(task, f"gates:{pack}") or {}).get("passed"))


def _overview(task: Task, packs: list[str]) -> Check:
    """The table of all packs and, where divergence was measured, the plot of size against divergence."""
    points = []
    for pack in packs:
        built, compared = _data(task, f"pack:{pack}"), _data(task, f"kl:{pack}")
        if built is not None and compared is not None and math.isfinite(compared["judged"]["kl_mean"]):
            points.append((pack, round(compared["judged"]["size"] / MB, 3), compared["judged"]["kl_mean"]))
    picture = None
    if points:
        values = [y for _, _, y in points if y > 0]
        wide = len(values) > 1 and max(values) > 20 * min(values)
        marked = tuple(Point(name, x, y, _is_best(name, points)) for name, x, y in points)
        picture = Scatter("Size against KL divergence", "size in MB", "mean KL divergence in nats", marked, log_y=wide)
    headers = ("pack", "quantization", "MB", "bits/weight", "KL mean", "right calls", "gates", "published")
    return Check(
        "overview",
        "All packs of the release",
        "passed",
        f"{len(packs)} packs, {sum(_passed(task, pack) for pack in packs)} pass all their gates",
        table=Table(headers, tuple(_row(task, pack) for pack in packs)),
        chart=picture,
    )


def _is_best(name: str, points: list[tuple[str, float, float]]) -> bool:
    """Return whether no other pack is both smaller (or as small) and nearer to the source."""
    _, x, y = next(point for point in points if point[0] == name)
    return not any(a <= x and b <= y and (a, b) != (x, y) for _, a, b in points)


def _row(task: Task, pack: str) -> tuple[str | float, ...]:
    built, compared, asked = (_data(task, f"{kind}:{pack}") for kind in ("pack", "kl", "calls"))
    gates = (_data(task, f"gates:{pack}") or {"gates": []})["gates"]
    failed = [row["gate"] for row in gates if row["status"] in ("failed", "error")]
    passed = _passed(task, pack)
    return (
        pack,
        "" if built is None else built["preset"],
        "" if built is None else round(built["size"] / MB, 1),
        "" if built is None else round(built["bits_per_weight"], 2),
        "" if compared is None else round(compared["judged"]["kl_mean"], 6),
        "" if asked is None else f"{asked['right']} of {asked['tasks']}",
        "all passed" if passed else f"failed: {', '.join(failed)}" if failed else "not judged",
        "may be" if passed else "no",
    )


def _pack_checks(task: Task, pack: str) -> Iterator[Check]:
    judged = _data(task, f"gates:{pack}")
    if judged is None:
        said = task.inputs[f"gates:{pack}"]
        yield Check(f"{pack}/gates", "the gates were judged", "error", said if isinstance(said, str) else "")
        return
    for row in judged["gates"]:
        gate = row["gate"]
        status: Status = row["status"] if row["status"] in get_args(Status) else "error"
        found = task.inputs.get(f"{gate}:{pack}")
        measured = found is not None and not isinstance(found, str) and gate in GATES
        yield Check(
            f"{pack}/{gate}",
            f"{pack}: {TITLES[gate]}",
            status,
            row["detail"],
            found["seconds"] if measured and not isinstance(found, str) and found is not None else 0.0,
            links={f"the page of {gate}": page_of(gate, pack)} if measured else {},
        )
