"""Runs the smoke test on a real server and returns one report, also after failures.

Every server is stopped at the end, also after an exception.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from strata_pack import __version__
from strata_pack.errors import EnvironmentFailure, StrataError, WrongUse
from strata_pack.files import sha256_text
from strata_pack.llama.answers import RequestRefused
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.devices import free_cores
from strata_pack.llama.runtimes import Runtime, pick_runtime
from strata_pack.llama.server import START_SECONDS, LlamaServer, StartFailed
from strata_pack.pack.fit import fit_of, fit_sentence, refuse_misfit
from strata_pack.progress import Progress, Silent
from strata_pack.report import Check, Report, Status
from strata_pack.smoke.builds import build_name
from strata_pack.smoke.chat_api import loss_table
from strata_pack.smoke.context import SmokeContext, Target
from strata_pack.smoke.offline import run_offline
from strata_pack.smoke.runner import ExternalServer, Interrupted, error_line, run_all, skipped
from strata_pack.smoke.scenario import Need, Scenario, scenarios
from strata_pack.smoke.target import open_target
from strata_pack.suggest import unknown as unknown_value

CONTEXT = 8192
"""Context tokens that all slots of the server under test share: enough for eight short streams, or one of 64 KiB."""

SLOTS = 8
MAX_RESTARTS = 3


@dataclass(frozen=True)
class SmokeOptions:
    """The options of a run: ``only`` these scenarios (ids; empty for all); ``limit_seconds`` replaces their time
    limits.

    ``threads`` None: as many as free cores. ``anyway``: start the server even if the model needs more memory than is
    available.
    """

    runtime: Runtime | None = None
    only: tuple[str, ...] = ()
    limit_seconds: float | None = None
    start_seconds: float = START_SECONDS
    port: int | None = None
    context: int = CONTEXT
    gpu_layers: int | None = None
    threads: int | None = None
    log_dir: Path | None = None
    anyway: bool = False


def run_smoke(
    pack_or_model: Path,
    *,
    template: str | None = None,
    suite: Path | None = None,
    source: Path | None = None,
    options: SmokeOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Start a llama.cpp server with ``pack_or_model``, run the scenarios on it, and return the report.

    Raises ``WrongUse`` and ``BadInput`` for invalid arguments; the report has all later failures.
    """
    chosen = options or SmokeOptions()
    played = _chosen(chosen.only, "native")
    target = open_target(pack_or_model, template, suite, source)
    runtime = chosen.runtime or pick_runtime()
    log_dir = chosen.log_dir or Path(tempfile.mkdtemp(prefix="strata-smoke-"))
    started, begin = datetime.now(UTC), time.monotonic()
    facts = _facts(target, runtime)
    fit = fit_of(pack_or_model, chosen.context, runtime, SLOTS, target.projector)
    facts["memory"] = fit_sentence(fit)
    managed = _ManagedServer(target, runtime, chosen, log_dir)
    on_files = [scenario for scenario in played if "file" in scenario.needs]
    played = tuple(scenario for scenario in played if "file" not in scenario.needs)
    found: list[Check] = []

    def report(checks: Sequence[Check]) -> Report:
        repeatable = _repeatable(checks, ["smoke", str(pack_or_model)], template, chosen)
        return _report(f"smoke: {target.name}", repeatable, facts, started, begin)

    try:
        found = run_offline(target, on_files, progress or Silent())
        if not played:
            return report(found)
        if not chosen.anyway:
            refuse_misfit(pack_or_model, fit)
        server = managed.start()
        with server.client.time_limit(chosen.start_seconds):
            facts |= _server_facts(server)
        context = SmokeContext(server.client, target, runtime, server=server)
        with context.beside:
            checks = run_all(context, played, managed, progress or Silent(), chosen.limit_seconds)
    except EnvironmentFailure as failure:
        checks = _not_started(failure, time.monotonic() - begin) + skipped(played, "the server did not start")
    except Interrupted as stopped:
        stopped.report = report([*found, *stopped.checks])
        raise
    finally:
        managed.stop()
    checks = [*found, *checks]
    if any(check.status in ("failed", "error") for check in checks):
        facts["server log"] = str(log_dir)
    elif chosen.log_dir is None:
        shutil.rmtree(log_dir, ignore_errors=True)
    return report(checks)


def run_smoke_url(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    options: SmokeOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run the scenarios of the public interface on the server at ``url`` (with or without ``/v1``); return the report.

    ``model`` is the model's name in requests; None takes the first one that the server lists.
    """
    chosen = options or SmokeOptions()
    played = _chosen(chosen.only, "public")
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise WrongUse("is not an http or https URL", where=url)
    started, begin = datetime.now(UTC), time.monotonic()
    facts = {"server": base, "strata-pack": __version__}
    client = LlamaClient(base, api_key=api_key)

    def report(checks: Sequence[Check]) -> Report:
        repeatable = _repeatable(checks, ["smoke", "--url", base], None, chosen)
        return _report(f"smoke: {base}", repeatable, facts, started, begin)

    try:
        with client.time_limit(chosen.start_seconds):
            offered = _offered(client)
        name = model or next(iter(offered), None)
        facts["model"] = name or "the server's own"
        context = SmokeContext(client, Target(name or base), None, model_name=name)
        checks = run_all(context, played, ExternalServer(), progress or Silent(), chosen.limit_seconds)
        losses = loss_table(checks)
        checks += [losses] if losses is not None else []
    except StrataError as error:
        checks = [Check("start", "the server answers", "error", error_line(error), where=base)]
        checks += skipped(played, "the server does not answer")
    except Interrupted as stopped:
        stopped.report = report(stopped.checks)
        raise
    finally:
        client.close()
    return report(checks)


def _offered(client: LlamaClient) -> list[str]:
    """Return the models that the server lists; none if it does not list any."""
    try:
        return client.models()
    except RequestRefused as refused:
        if refused.status in (404, 405):
            return []
        raise


def _chosen(only: Sequence[str], kind: Need) -> tuple[Scenario, ...]:
    every = tuple(scenario for scenario in scenarios() if kind in scenario.needs)
    known = [scenario.id for scenario in every]
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise unknown_value("scenario", unknown[0], known, where="--only")
    return tuple(scenario for scenario in every if not only or scenario.id in only)


def _repeatable(
    checks: Sequence[Check], command: Sequence[str], template: str | None, options: SmokeOptions
) -> list[Check]:
    """Add to each check the command that repeats only its scenario."""
    known = {scenario.id for scenario in scenarios()}
    words = ["strata-pack", *command, *(("--template", template) if template else ())]
    if options.runtime is not None and options.runtime.path is not None:
        words += ["--llama-server", str(options.runtime.path)]
    return [
        replace(check, repeat=shlex.join([*words, "--only", scenario]))
        if (scenario := check.id.partition("/")[0]) in known
        else replace(check, repeat=shlex.join(words))
        for check in checks
    ]


def is_complete_report(report: Report) -> bool:
    """Return whether a server was available for all scenarios. Only such a report replaces an earlier one."""
    lost = ("start", "restart")
    return not any(check.id in lost and check.status == "error" for check in report.checks)


def _report(title: str, checks: list[Check], facts: dict[str, str], started: datetime, begin: float) -> Report:
    """Return the report; a run in which nothing was run gets an error."""
    if all(check.status == "skipped" for check in checks):
        reasons = "; ".join(dict.fromkeys(check.detail for check in checks))
        sentence = f"no scenario was run, so nothing is proved: {reasons}"
        checks = [Check("played", "at least one scenario was run", "error", sentence), *checks]
    stamp = started.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Report(title, tuple(checks), facts, stamp, time.monotonic() - begin)


def _not_started(failure: EnvironmentFailure, seconds: float) -> list[Check]:
    """Return the check of a failed start: failed if the server refuses the template, else an error of the
    environment."""
    title = "the server starts and loads the model"
    if not isinstance(failure, StartFailed):
        return [Check("start", title, "error", error_line(failure), seconds)]
    status: Status = "failed" if failure.reason == "template" else "error"
    data = {"reason": failure.reason}
    return [Check("start", title, status, error_line(failure), seconds, log=failure.log_tail or None, data=data)]


class _ManagedServer:
    """Supervises the server under test: starts it, restarts it after a failure, stops it."""

    def __init__(self, target: Target, runtime: Runtime, options: SmokeOptions, log_dir: Path) -> None:
        self._target = target
        self._runtime = runtime
        self._options = options
        self._log = log_dir / "server.log"
        self._server: LlamaServer | None = None
        self._restarts = 0

    def start(self) -> LlamaServer:
        assert self._target.model is not None
        options = self._options
        self._server = LlamaServer.start(
            self._target.model,
            runtime=self._runtime,
            template_file=self._target.template_file,
            port=options.port,
            context=options.context,
            parallel=SLOTS,
            shared=True,
            gpu_layers=options.gpu_layers,
            threads=options.threads or free_cores(),
            # Golden conversations may end with an assistant turn, which the template must see.
            prefill_assistant=False,
            warmup=False,
            projector=self._target.projector,
            timeout_seconds=options.start_seconds,
            log_path=self._log,
        )
        return self._server

    def log_position(self) -> int:
        return self._server.process.log_position() if self._server else 0

    def log_since(self, position: int) -> str:
        return self._server.process.log_since(position) if self._server else ""

    def renew(self, context: SmokeContext) -> None:
        self.stop()
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise EnvironmentFailure(f"the server failed {self._restarts} times", remedy=f"read {self._log}")
        context.server = self.start()
        context.client = context.server.client

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def _facts(target: Target, runtime: Runtime) -> dict[str, str]:
    where = str(runtime.path) if runtime.path else runtime.origin
    template = target.template
    return {
        "model": target.name,
        "template": f"{target.template_name}, sha256 {sha256_text(template)[:16]}" if template else "none",
        "runtime": f"{runtime.name} ({where})" + (f"; {runtime.why}" if runtime.why else ""),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "strata-pack": __version__,
    }


def _server_facts(server: LlamaServer) -> dict[str, str]:
    props = server.client.props()
    return {
        "llama.cpp": build_name(server.runtime, props),
        "compute": server.process.compute(),
        "context": f"{props.context:,} tokens, {props.slots} slots",
    }
