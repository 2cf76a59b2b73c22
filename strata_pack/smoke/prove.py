"""Proves a pack: verify, golden cases on every available engine, smoke; writes the reports to its ``reports/``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TypedDict

from strata_pack.chat.engines.engines import available_engines
from strata_pack.chat.golden.check import check_golden, load_suite
from strata_pack.files import write_atomic
from strata_pack.llama.runtimes import Runtime, pick_runtime
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import REPORTS_DIR, SIGNATURE, member
from strata_pack.pack.template.source import read_pack_template
from strata_pack.pack.verification import verify
from strata_pack.plural import counted
from strata_pack.progress import Progress, Silent
from strata_pack.report import Check, Report, to_json
from strata_pack.report.model import ReportDict
from strata_pack.smoke.run import SmokeOptions, is_complete_report, run_smoke
from strata_pack.smoke.scenario import scenarios


class ProofDict(TypedDict):
    """A ``Proof`` as JSON; ``reports`` by name ("verify", "golden", "smoke", "compare")."""

    ok: bool
    pack: str
    reports: dict[str, ReportDict]


@dataclass(frozen=True)
class Proof:
    """The reports of one pack, in the order of the checks."""

    pack: Pack
    reports: tuple[Report, ...]

    @property
    def ok(self) -> bool:
        return all(report.ok for report in self.reports)

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the first report that is not ok."""
        return next((report.exit_code for report in self.reports if not report.ok), 0)

    def merged(self) -> Report:
        """Return all reports as one, each check under the name of its report."""
        checks = [
            replace(check, id=f"{_name(report)}/{check.id}", repeat=check.repeat or _repeat(self.pack.path, report))
            for report in self.reports
            for check in report.checks
        ]
        facts = {name: value for report in self.reports for name, value in report.facts.items()}
        seconds = sum(report.seconds for report in self.reports)
        started = next((report.started for report in self.reports if report.started), None)
        return Report(f"prove: {self.pack.path.name}", tuple(checks), facts, started, seconds)

    def to_dict(self) -> ProofDict:
        reports = {_name(report): report.to_dict() for report in self.reports}
        return {"ok": self.ok, "pack": str(self.pack.path), "reports": reports}


def _name(report: Report) -> str:
    return report.title.partition(" ")[0].rstrip(":")


def _repeat(pack: Path, report: Report) -> str:
    command = {"golden": ["golden", "check"], "compare": ["prove"]}.get(_name(report), [_name(report)])
    return shlex.join(["strata-pack", *command, str(pack)])


Compare = Callable[[Path, Path], Sequence[Check]]
"""A function that compares a pack with its source and returns checks. The caller passes it, because this package does
not import ``compare``."""


def prove_pack(
    path: Path,
    options: SmokeOptions | None = None,
    progress: Progress | None = None,
    *,
    source: Path | None = None,
    compare: Compare | None = None,
) -> Proof:
    """Verify the pack, render its golden cases, run the smoke scenarios; write ``reports/golden.json`` and
    ``reports/smoke.json``, unless the pack is signed, because the signature covers them.

    ``source`` is what the pack was made from, if available: its shape is compared with the pack's, and ``compare`` is
    called too. Everything runs even if a check failed before. Ctrl-C leaves earlier reports
    unchanged. Raises ``BadInput`` if ``path`` is not a pack.
    """
    watcher = progress or Silent()
    pack = Pack.open(path)
    verified = verify(path, watcher)
    golden = prove_golden(pack, watcher)
    smoked = run_smoke(path, source=source, options=options, progress=watcher)
    reports = [verified, golden, smoked]
    if compare is not None and source is not None:
        started = monotonic()
        checks = tuple(compare(path, source))
        reports.append(Report(f"compare {pack.path.name}", checks, seconds=monotonic() - started))
    keep_report(pack, "golden", golden, watcher)
    if is_complete_report(smoked):
        keep_report(pack, "smoke", smoked, watcher)
    return Proof(pack, tuple(reports))


def plan_proof(path: Path) -> list[dict[str, str]]:
    """Return the steps of ``prove_pack`` for the pack in ``path`` (``what`` and ``detail``) without running them."""
    pack = Pack.open(path)
    names = ", ".join(engine.name for engine in available_engines())
    cases = 0 if pack.golden_path is None else len(load_suite(pack.golden_path).cases)
    played = [scenario.id for scenario in scenarios() if "native" in scenario.needs]
    size = sum(entry["size"] for entry in pack.manifest["files"])
    kept = f"{REPORTS_DIR}/golden.json and {REPORTS_DIR}/smoke.json in the pack"
    return [
        {"what": "verify", "detail": f"{len(pack.manifest['files'])} files, {size} bytes to hash"},
        {"what": "golden", "detail": f"{cases} cases on {names}" if cases else "the pack has no cases"},
        {"what": "smoke", "detail": f"on {_taken(pick_runtime())}: {', '.join(played)}"},
        {"what": "write", "detail": "nothing: the pack is signed" if _is_signed(pack) else kept},
    ]


def _taken(runtime: Runtime) -> str:
    return f"{runtime.name} ({runtime.why})" if runtime.why else runtime.name


def _is_signed(pack: Pack) -> bool:
    return member(pack.path, SIGNATURE).is_file()


def keep_report(pack: Pack, name: str, report: Report, progress: Progress) -> None:
    """Write ``reports/<name>.json`` of the pack atomically; not into a signed pack, because the signature covers it."""
    path = f"{REPORTS_DIR}/{name}.json"
    if _is_signed(pack):
        progress.note(f"{pack.path}: is signed, so {path} is not rewritten")
    else:
        write_atomic(member(pack.path, path), to_json(report))


def prove_golden(pack: Pack, progress: Progress) -> Report:
    """Render the pack's golden cases on every available engine; return the report with one check per engine."""
    started = monotonic()
    title = f"golden {pack.path.name}"
    if pack.golden_path is None:
        return Report(title, (Check("golden", "the golden cases", "skipped", "the pack has none"),))
    suite, text = load_suite(pack.golden_path), read_pack_template(pack.path)
    checks: list[Check] = []
    for engine in available_engines():
        begun = monotonic()
        found = check_golden(text, suite, [engine], progress)
        counts, failures = found.counts(engine.name), found.failures
        detail = (
            f"{engine.name}: {counts['passed']} of {len(suite.cases)} cases identical, "
            f"{counted(counts['known'], 'known difference')}"
        )
        if failures:
            detail += f", {len(failures)} differ (first: {failures[0].case.id})"
        checks.append(
            Check(
                f"golden-{engine.name}",
                f"the golden cases on {engine.name} {engine.version}",
                "failed" if failures else "passed",
                detail,
                monotonic() - begun,
                expected=failures[0].case.expected or failures[0].case.error if failures else None,
                got=failures[0].got or failures[0].got_error if failures else None,
            )
        )
    return Report(title, tuple(checks), {"suite": suite.name}, seconds=monotonic() - started)
