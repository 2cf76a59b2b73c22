"""Runs scenarios one after the other and converts every outcome to checks.

If a server dies, hangs or sends invalid answers, the scenario ends with a check that says so and has the server's log;
the next scenario gets a new server if this process manages it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from strata_pack.errors import StrataError
from strata_pack.llama.answers import GarbledAnswer, RequestRefused, ServerGone, ServerTimeout
from strata_pack.progress import Progress
from strata_pack.report import Check, Report
from strata_pack.smoke import chat_api
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.registry import SCENARIO_FUNCTIONS
from strata_pack.smoke.scenario import Impossible, Need, Scenario

INTERRUPTED = "interrupted"
NO_TEMPLATE = "the model has no chat template"

LOG_BEFORE = 2048
"""Bytes of the log from before a scenario that are shown with it, because many requests leave no log line."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C interrupted the scenarios. ``checks`` are those made until then, ``report`` is the whole report."""

    def __init__(self, checks: Sequence[Check], report: Report | None = None) -> None:
        super().__init__(INTERRUPTED)
        self.checks = list(checks)
        self.report = report


class ServerSupervisor(Protocol):
    """The supervisor of the server under test."""

    def log_position(self) -> int:
        """Return the current position in the server's log."""

    def log_since(self, position: int) -> str:
        """Return the log since ``position``."""

    def renew(self, context: SmokeContext) -> None:
        """Give ``context`` a working server; raises ``StrataError`` if that is impossible."""


class ExternalServer:
    """The supervisor of an external server, which has no log and cannot be restarted."""

    def log_position(self) -> int:
        return 0

    def log_since(self, position: int) -> str:  # noqa: ARG002
        return ""

    def renew(self, context: SmokeContext) -> None:
        pass


def error_line(error: BaseException) -> str:
    """Return an error as one line for a report."""
    return " ".join(str(error).split()) or type(error).__name__


def skipped(scenarios: Sequence[Scenario], why: str) -> list[Check]:
    """Return a skipped check for each of ``scenarios``."""
    return [Check(scenario.id, scenario.proves, "skipped", why) for scenario in scenarios]


_MISSING: Mapping[Need, str] = {
    "template": NO_TEMPLATE,
    "calls": "the template writes no tool calls of a known form",
    "suite": "there are no golden cases for this template",
    "projector": "there is no projector with this model",
    "draft": "the model has no draft head",
}


def missing(context: SmokeContext, scenario: Scenario) -> str | None:
    """Return what ``context`` lacks for ``scenario``, as a sentence, or None."""
    there: Mapping[Need, bool] = {
        "template": bool(context.template),
        "calls": not context.template or context.call_support.calls,
        "suite": context.target.suite is not None,
        "projector": context.target.projector is not None,
        "draft": context.target.draft_layers > 0,
    }
    return next((why for need, why in _MISSING.items() if need in scenario.needs and not there[need]), None)


def run_all(
    context: SmokeContext,
    scenarios: Sequence[Scenario],
    supervisor: ServerSupervisor,
    progress: Progress,
    limit_seconds: float | None = None,
) -> list[Check]:
    """Run ``scenarios`` and return their checks. Ctrl-C raises ``Interrupted`` with the checks made until then."""
    checks: list[Check] = []
    task = progress.task("smoke", len(scenarios), "scenarios")
    for number, scenario in enumerate(scenarios):
        try:
            checks += run_scenario(context, scenario, supervisor, limit_seconds)
        except KeyboardInterrupt:
            checks.append(Check(scenario.id, scenario.proves, "error", INTERRUPTED))
            checks += skipped(scenarios[number + 1 :], f"not run: {INTERRUPTED}")
            raise Interrupted(checks) from None
        except _NoServer as error:
            checks += error.found
            checks += skipped(scenarios[number + 1 :], f"not run: {error.why}")
            break
        task.advance(1)
    task.done()
    return checks


class _NoServer(Exception):
    """There is no server to continue with, for the reason ``why``; ``found`` are the last scenario's checks."""

    def __init__(self, found: list[Check], why: str) -> None:
        super().__init__(why)
        self.found, self.why = found, why


def run_scenario(
    context: SmokeContext, scenario: Scenario, supervisor: ServerSupervisor, limit_seconds: float | None = None
) -> list[Check]:
    """Run one scenario within its time limit and return its checks; failed ones have the server's log."""
    why = missing(context, scenario)
    if why is not None:
        return skipped([scenario], why)
    limit = scenario.limit_seconds if limit_seconds is None else limit_seconds
    position = supervisor.log_position()
    start = time.monotonic()
    found: list[Check] = []
    broken: str | None = None
    try:
        with context.client.time_limit(limit):
            for check in SCENARIO_FUNCTIONS[scenario.id](context, scenario):
                now = time.monotonic()
                found.append(replace(check, seconds=now - start))
                start = now
    except Impossible as reason:
        found += skipped([scenario], str(reason))
    except ServerTimeout:
        broken = f"no answer within the scenario's time limit of {limit:g} s"
    except (ServerGone, GarbledAnswer) as error:
        broken = error_line(error)
    except StrataError as error:
        found.append(Check(scenario.id, scenario.proves, "error", error_line(error), time.monotonic() - start))
        if isinstance(error, RequestRefused) and error.status in chat_api.NO_MORE:
            raise _NoServer(found, f"the server refuses with HTTP {error.status}") from error
    if broken is not None:
        found.append(Check(scenario.id, scenario.proves, "error", broken, time.monotonic() - start))
    log = supervisor.log_since(max(0, position - LOG_BEFORE))
    found = [replace(check, log=log) if log and check.status in ("failed", "error") else check for check in found]
    if broken is not None:
        try:
            supervisor.renew(context)
        except StrataError as error:
            found.append(Check("restart", "the server restarts", "error", error_line(error)))
            raise _NoServer(found, "the server is gone") from error
    return found
