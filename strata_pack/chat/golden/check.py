"""Renders every case of a golden suite on every engine and compares each prompt byte for byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from strata_pack.chat.engines.engines import Engine
from strata_pack.chat.golden.cases import GoldenCase, GoldenSuite, load_suite
from strata_pack.chat.render.failures import RequestUnseen
from strata_pack.chat.render.template import ChatTemplate, TemplateError, TemplateRefused
from strata_pack.files import sha256_text
from strata_pack.progress import Progress, Silent

__all__ = ["CaseResult", "CaseStatus", "GoldenCase", "GoldenReport", "GoldenSuite", "check_golden", "load_suite"]

CaseStatus = Literal["passed", "failed", "known"]


class CaseResultDict(TypedDict):
    """A ``CaseResult`` as JSON; the expected and the actual result are present only if they differ."""

    case: str
    engine: str
    status: CaseStatus
    expected: NotRequired[str | None]
    error: NotRequired[str]
    got: NotRequired[str | None]
    got_error: NotRequired[str]
    reason: NotRequired[str]


class EngineCountsDict(TypedDict):
    """The number of cases on one engine by status."""

    name: str
    version: str
    passed: int
    known: int
    failed: int


class GoldenReportDict(TypedDict):
    """A ``GoldenReport`` as JSON."""

    ok: bool
    suite: str
    suite_sha256: str
    template_sha256: str
    engines: list[EngineCountsDict]
    results: list[CaseResultDict]


@dataclass(frozen=True)
class CaseResult:
    """The result of one case on one engine.

    ``status``: "passed", "failed", or "known" (a difference that the case lists for this engine, with ``reason``).
    ``got`` is the prompt, ``got_error`` the message of a refusal by the template or engine; exactly one is a string.
    """

    case: GoldenCase
    engine: str
    status: CaseStatus
    got: str | None = None
    got_error: str | None = None
    reason: str = ""

    def to_dict(self) -> CaseResultDict:
        """Return the result as JSON; the actual result is present only if it differs."""
        data: CaseResultDict = {"case": self.case.id, "engine": self.engine, "status": self.status}
        if self.status == "passed":
            return data
        if self.case.error is None:
            data["expected"] = self.case.expected
        else:
            data["error"] = self.case.error
        if self.got_error is None:
            data["got"] = self.got
        else:
            data["got_error"] = self.got_error
        if self.status == "known":
            data["reason"] = self.reason
        return data


@dataclass(frozen=True)
class GoldenReport:
    """The results of a suite's cases on all engines. ``engines`` maps an engine's name to its version."""

    suite: str
    suite_sha256: str
    template_sha256: str
    engines: dict[str, str]
    results: tuple[CaseResult, ...]

    @property
    def ok(self) -> bool:
        """Whether no case failed on any engine (known differences do not count)."""
        return not self.failures

    @property
    def failures(self) -> list[CaseResult]:
        """The failed results."""
        return [result for result in self.results if result.status == "failed"]

    def counts(self, engine: str) -> dict[CaseStatus, int]:
        """Return the number of cases on ``engine`` by status."""
        found = Counter(result.status for result in self.results if result.engine == engine)
        return {"passed": found["passed"], "known": found["known"], "failed": found["failed"]}

    def _counts(self, engine: str) -> EngineCountsDict:
        found = self.counts(engine)
        return {
            "name": engine,
            "version": self.engines[engine],
            "passed": found["passed"],
            "known": found["known"],
            "failed": found["failed"],
        }

    def to_dict(self) -> GoldenReportDict:
        """Return the report as JSON. It has no times and no paths: the same results give the same JSON."""
        return {
            "ok": self.ok,
            "suite": self.suite,
            "suite_sha256": self.suite_sha256,
            "template_sha256": self.template_sha256,
            "engines": [self._counts(name) for name in self.engines],
            "results": [result.to_dict() for result in self.results],
        }


def check_golden(
    template: ChatTemplate | str,
    suite: GoldenSuite,
    engines: Sequence[Engine],
    progress: Progress | None = None,
) -> GoldenReport:
    """Render every case of ``suite`` with ``template`` on every engine and compare.

    Raises only ``EnvironmentFailure``, if an engine cannot run.
    """
    source = template if isinstance(template, str) else template.source
    task = (progress or Silent()).task("golden cases", len(suite.cases) * len(engines), "cases")
    results: list[CaseResult] = []
    for engine in engines:
        for case in suite.cases:
            results.append(_run(engine, source, case))
            task.advance(1)
    task.done()
    return GoldenReport(
        suite=suite.name,
        suite_sha256=suite.sha256,
        template_sha256=sha256_text(source),
        engines={engine.name: engine.version for engine in engines},
        results=tuple(results),
    )


BOTH_REFUSE = "the engine's own check of the request refuses it, in its own words, before the template sees it"


def _run(engine: Engine, source: str, case: GoldenCase) -> CaseResult:
    got = got_error = None
    unseen = False
    try:
        got = engine.render(source, case.inputs())
    except TemplateRefused as error:
        got_error = error.message
    except TemplateError as error:
        got_error = str(error)
        unseen = isinstance(error, RequestUnseen)
    if (got, got_error) == (case.expected, case.error):
        return CaseResult(case, engine.name, "passed", got, got_error)
    label = next((label for label in engine.known_as if label in case.differs_on), None)
    if label is not None:
        return CaseResult(case, engine.name, "known", got, got_error, case.differs_on[label])
    if unseen and case.error is not None:
        return CaseResult(case, engine.name, "known", got, got_error, BOTH_REFUSE)
    return CaseResult(case, engine.name, "failed", got, got_error)
