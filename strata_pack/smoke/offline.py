"""Runs the scenarios that need only the model's files and no server; they come first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from strata_pack.errors import StrataError
from strata_pack.progress import Progress
from strata_pack.report import Check
from strata_pack.smoke import header
from strata_pack.smoke.call_support import call_support
from strata_pack.smoke.context import Target
from strata_pack.smoke.runner import NO_TEMPLATE, error_line, skipped
from strata_pack.smoke.scenario import Impossible, Scenario
from strata_pack.smoke.tensors import scan

SHOWN_FAULTS = 5

OfflinePlay = Callable[[Target, Scenario, Progress], Iterable[Check]]


def chat_template(target: Target, scenario: Scenario, _progress: Progress) -> Iterable[Check]:
    """Check whether there is a chat template, and whether it can call tools."""
    if not target.template:
        yield Check(scenario.id, scenario.proves, "failed", "the model has no chat template: no client can talk to it")
        return
    support = call_support(target.template)
    yield Check(
        scenario.id,
        scenario.proves,
        "passed" if support.calls else "failed",
        f"calls are written in the {support.form.upper()} form"
        if support.missing is None
        else f"the template cannot call tools: {support.missing}",
    )


def tensors(target: Target, scenario: Scenario, progress: Progress) -> Iterable[Check]:
    """Scan every tensor of the model, and name each broken one with its rows."""
    found = scan(list(target.files), progress)
    shown = [str(fault) for fault in found.faults[:SHOWN_FAULTS]]
    more = len(found.faults) - len(shown)
    unread = f"; not scanned: tensors of the types {', '.join(found.unread)}" if found.unread else ""
    size = f"{found.tensors:,} tensors, {found.size / (1 << 20):,.0f} MiB"
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if found.faults else "passed",
        "; ".join(shown) + (f"; and {more} more" if more else "")
        if found.faults
        else f"{size}, all finite, none of zeros, no row out of proportion{unread}",
        where=str(target.model),
        data={"faults": [str(fault) for fault in found.faults]},
    )


OFFLINE: Mapping[str, OfflinePlay] = {
    "chat-template": chat_template,
    "tensors": tensors,
    "end-of-turn": header.end_of_turn,
    "pre-tokenizer": header.pre_tokenizer,
    "source-shape": header.source_shape,
    "projector": header.projector,
}


def run_offline(target: Target, scenarios: Sequence[Scenario], progress: Progress) -> list[Check]:
    """Run ``scenarios`` on the files of ``target`` and return their checks."""
    checks: list[Check] = []
    for scenario in scenarios:
        start = time.monotonic()
        if "template" in scenario.needs and not target.template:
            checks += skipped([scenario], NO_TEMPLATE)
            continue
        try:
            for check in OFFLINE[scenario.id](target, scenario, progress):
                now = time.monotonic()
                checks.append(replace(check, seconds=now - start))
                start = now
        except Impossible as reason:
            checks.append(Check(scenario.id, scenario.proves, "skipped", str(reason), time.monotonic() - start))
        except StrataError as error:
            checks.append(Check(scenario.id, scenario.proves, "error", error_line(error), time.monotonic() - start))
    return checks
