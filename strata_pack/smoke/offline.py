"""Scenarios that need the model's files and no server: they are played first, and say what no server would."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from strata_pack.errors import StrataError
from strata_pack.report import Check
from strata_pack.smoke.manner import manner_of
from strata_pack.smoke.player import error_line
from strata_pack.smoke.scenario import Impossible, Scenario
from strata_pack.smoke.stage import Target

OfflinePlay = Callable[[Target, Scenario], Iterable[Check]]


def chat_template(target: Target, scenario: Scenario) -> Iterable[Check]:
    """Say first of all whether there is a chat template, and whether it can call tools."""
    if not target.template:
        yield Check(scenario.id, scenario.proves, "failed", "the model has no chat template: no client can talk to it")
        return
    manner = manner_of(target.template)
    yield Check(
        scenario.id,
        scenario.proves,
        "passed" if manner.calls else "failed",
        f"calls are written in the {manner.form.upper()} form"
        if manner.missing is None
        else f"the template cannot call tools: {manner.missing}",
    )


OFFLINE: Mapping[str, OfflinePlay] = {"chat-template": chat_template}


def play_offline(target: Target, scenarios: Sequence[Scenario]) -> list[Check]:
    """Play ``scenarios`` on the files of ``target`` and return what was found."""
    checks: list[Check] = []
    for scenario in scenarios:
        start = time.monotonic()
        try:
            for check in OFFLINE[scenario.id](target, scenario):
                now = time.monotonic()
                checks.append(replace(check, seconds=now - start))
                start = now
        except Impossible as reason:
            checks.append(Check(scenario.id, scenario.proves, "skipped", str(reason), time.monotonic() - start))
        except StrataError as error:
            checks.append(Check(scenario.id, scenario.proves, "error", error_line(error), time.monotonic() - start))
    return checks
