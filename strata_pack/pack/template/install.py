"""Installs a template into a finished pack or GGUF, or rolls it back, in one atomic step without moving tensors.

``install_template`` first chooses, checks and plans (``choice``, golden cases, ``plan``), then writes a journal and
applies it (``strata_pack.pack.journal``). ``recover``, which everything that opens a pack calls, completes an
interrupted installation.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict

from strata_pack.chat.engines.engines import Engine, available_engines
from strata_pack.chat.golden.check import CaseStatus, GoldenReport, GoldenSuite, check_golden, load_suite
from strata_pack.chat.library import status_of
from strata_pack.chat.render.start_up import start_up_failure
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import BadInput, CheckFailed, WrongUse
from strata_pack.files import dump_json, read_bytes, write_atomic
from strata_pack.pack.journal import Journal, JournalStep, TemplateIdentityDict
from strata_pack.pack.manifest import GoldenEntry, TemplateEntry
from strata_pack.pack.paths import DEFAULT_NAME, REPORTS_DIR, SIGNATURE, TOOLS_NAME
from strata_pack.pack.recovery import backups_in, carry_out, locked_folder, read_allowed, recover, roll_back
from strata_pack.pack.template.choice import AUTO, ChosenTemplate, check_variants, choose_template
from strata_pack.pack.template.plan import (
    InstallPlanDict,
    ModelPlan,
    describe_plan,
    plan_attestations,
    plan_folder,
    plan_manifest,
    plan_model,
)
from strata_pack.pack.template.status import ReaderDict, readers_of, template_identity
from strata_pack.pack.template.target import (
    TemplateCopy,
    TemplateTarget,
    modelfile_note,
    open_target,
    refuse_inside_pack,
    resolve,
)
from strata_pack.progress import Progress, Silent

REPORT_LIMIT = 64 << 20


class TemplateNotRecognised(CheckFailed):
    """The target's template is unknown; ``diff`` shows what would change."""

    def __init__(self, copy: TemplateCopy, status: str, diff: str) -> None:
        super().__init__(
            f"holds a template that is {status}, so changes in it would be lost; nothing was changed",
            where=copy.place,
            remedy="look at the difference, then use --template auto (keeps and repairs it) or --force (replaces it)",
        )
        self.diff = diff


class GoldenFailed(CheckFailed):
    """The new template fails golden cases; ``report`` says which."""

    def __init__(self, report: GoldenReport, *, of_the_old: Path | None = None) -> None:
        """``of_the_old`` is the place of the cases if they are those of the replaced template."""
        failures = report.failures
        first = failures[0]
        differ = (
            f"{len(failures)} of {len(report.results)} golden renderings differ (first: {first.case.id} with "
            f"{first.engine}); nothing was changed"
        )
        if of_the_old is None:
            remedy = "see them with `strata-pack golden check`, or give another template's own cases with --golden"
            super().__init__(differ, where=f"suite {report.suite}", remedy=remedy)
        else:
            super().__init__(
                f"the new template has no golden cases, and with those of the template it replaces {differ}",
                where=of_the_old,
                remedy="give its own with --golden FILE (`strata-pack golden add` records them), or see what differs "
                "with `strata-pack golden check TEMPLATE --golden` and this file",
            )
        self.report = report


class GoldenCountsDict(TypedDict):
    """The golden cases that were checked, with the counts on each engine."""

    suite: str
    engines: dict[str, dict[CaseStatus, int]]


class InstallResultDict(TypedDict):
    """An ``InstallResult`` as JSON."""

    target: str
    kind: str
    changed: bool
    dry_run: bool
    before: TemplateIdentityDict
    after: TemplateIdentityDict
    plan: InstallPlanDict
    golden: GoldenCountsDict | None
    copies: list[str]
    notes: list[str]
    diff: str
    readers: list[ReaderDict]


@dataclass(frozen=True)
class InstallResult:
    """What was done, or would be done with ``dry_run``. ``plan`` is that of ``describe_plan``."""

    target: str
    kind: str
    changed: bool
    dry_run: bool
    before: TemplateIdentityDict
    after: TemplateIdentityDict
    plan: InstallPlanDict
    golden: GoldenCountsDict | None
    copies: list[str]
    notes: list[str] = field(default_factory=list)
    diff: str = ""
    readers: list[ReaderDict] = field(default_factory=list)

    def to_dict(self) -> InstallResultDict:
        found: InstallResultDict = asdict(self)  # type: ignore[assignment]
        return found


def install_template(
    path: Path,
    template: str = "auto",
    *,
    golden: Path | None = None,
    allow_triggers: bool = False,
    force: bool = False,
    dry_run: bool = False,
    engines: Sequence[Engine] | None = None,
    progress: Progress | None = None,
) -> InstallResult:
    """Install ``template`` (an id, a file, or "auto": the target's own, repaired) into a PACK or GGUF.

    ``allow_triggers`` is as in ``choose_template``.
    Raises ``TemplateNotRecognised``, ``HidesSomething`` or ``GoldenFailed`` (nothing has changed then), ``BadInput``
    for a target or template that cannot be read, ``EnvironmentFailure`` for a full disk. ``force`` overrides only
    the first.
    """
    progress = progress or Silent()
    refuse_inside_pack(path)
    recovered = recover(path)
    root, _ = resolve(path)
    with locked_folder(root):
        target = open_target(path)
        chosen = choose_template(template, target.text, golden, allow_triggers=allow_triggers, engines=engines)
        if not force:
            _check_recognised(target, chosen.text, kept=template == AUTO)
        kept = _kept_by_name(target, allow_triggers, engines) if template == AUTO and target.pack is None else {}
        theirs = None if chosen.suite is not None or target.pack is None else target.pack.golden_path
        suite = chosen.suite if theirs is None else load_suite(theirs)
        report = _prove(chosen.text, suite, theirs, engines, progress)
        model = plan_model(target, chosen.text, kept)
        steps, places = _all_steps(target, chosen, suite, report, model, progress)
        signed = bool(steps) and target.pack is not None and (target.root / SIGNATURE).is_file()
        before, after = template_identity(target.text), template_identity(chosen.text)
        plan = describe_plan(model, target)
        if steps and not dry_run:
            if model.method == "copy":
                progress.note(
                    f"{target.files[0].name}: its header has no room, so the file is copied with a longer header"
                )
            carry_out(target.root, target.state_dir, Journal(before, after, tuple(steps)), progress)
            _renew_report(target, after["sha256"], report)
    return InstallResult(
        target=str(path),
        kind="gguf" if target.pack is None else "pack",
        changed=bool(steps),
        dry_run=dry_run,
        before=before,
        after={**after, "id": chosen.entry["id"], "origin": chosen.entry["origin"]},
        plan=plan,
        golden=None if report is None else _golden_counts(report),
        copies=places,
        notes=[*chosen.notes, *_notes(target, model, suite, recovered, signed=signed)],
        diff=unified_diff(target.text or "", chosen.text),
        readers=readers_of(target),
    )


def rollback_template(path: Path, *, dry_run: bool = False, progress: Progress | None = None) -> InstallResult:
    """Restore byte for byte what the last installation replaced; with ``dry_run`` only return what that would be.

    Raises ``WrongUse`` if there is no installation to undo, ``BadInput`` if another program has changed a file since.
    """
    refuse_inside_pack(path)
    recovered = recover(path)
    root, state_dir = resolve(path)
    with locked_folder(root):
        backups = backups_in(state_dir)
        if not backups:
            raise WrongUse("has no earlier template to restore", where=path)
        target = open_target(path)
        back = read_allowed(backups[-1], path).inverted()
        if not dry_run:
            roll_back(root, state_dir, backups[-1], back, progress or Silent())
            _renew_report(target, back.after["sha256"], None)
    return InstallResult(
        target=str(path),
        kind="gguf" if target.pack is None else "pack",
        changed=True,
        dry_run=dry_run,
        before=back.before,
        after=back.after,
        plan={"method": "rollback"},
        golden=None,
        copies=[step.target for step in back.steps],
        notes=[recovered] if recovered else [],
        readers=readers_of(target),
    )


def unified_diff(old: str, new: str) -> str:
    """Return the difference of two templates, as ``diff -u`` writes it."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "installed", "new", lineterm="")
    return "\n".join(lines)


def _check_recognised(target: TemplateTarget, text: str, *, kept: bool) -> None:
    """Raise ``TemplateNotRecognised`` if the user's changes would be lost. ``kept``: the new texts contain the target's
    own.

    A pack has a single template: templates of other names are not kept in it.
    """
    own = {copy.name: copy.text for copy in target.copies} if kept and target.pack is None else {}
    if kept and target.text is not None:
        own[DEFAULT_NAME] = target.text
    for copy in target.copies:
        status = status_of(copy.text)
        if status in ("unknown", "modified") and copy.text not in (text, own.get(copy.name)):
            raise TemplateNotRecognised(copy, status, unified_diff(copy.text, text))


def _kept_by_name(target: TemplateTarget, allow_triggers: bool, engines: Sequence[Engine] | None) -> dict[str, str]:
    """Return a plain GGUF's named templates; the template for tools gets history repair."""
    others = {copy.name: copy.text for copy in target.copies if not copy.main}
    check_variants(others, allow_triggers=allow_triggers)
    return {
        name: choose_template(AUTO, text, allow_triggers=True, engines=engines).text if name == TOOLS_NAME else text
        for name, text in others.items()
    }


def _prove(
    text: str,
    suite: GoldenSuite | None,
    of_the_old: Path | None,
    engines: Sequence[Engine] | None,
    progress: Progress,
) -> GoldenReport | None:
    """Render a plain conversation, and every golden case; raise ``GoldenFailed`` if any differs."""
    failure = start_up_failure(ChatTemplate(text), on_any_engine=True)
    if failure is not None:
        remedy = "an engine would not start with it; nothing was changed"
        raise BadInput(f"the template fails on a plain conversation ({failure})", remedy=remedy)
    if suite is None:
        return None
    report = check_golden(text, suite, available_engines() if engines is None else engines, progress)
    if not report.ok:
        raise GoldenFailed(report, of_the_old=of_the_old)
    return report


def _renew_report(target: TemplateTarget, sha256: str | None, report: GoldenReport | None) -> None:
    """Write the pack's golden report, or remove an outdated one. It is not part of the pack's identity.

    An outdated signature is removed.
    """
    path = target.root / REPORTS_DIR / "golden.json"
    if target.pack is None:
        return
    (target.root / SIGNATURE).unlink(missing_ok=True)
    if report is not None:
        write_atomic(path, dump_json(report.to_dict()))
    elif path.is_file() and str(sha256) not in read_bytes(path, REPORT_LIMIT).decode("utf-8", "replace"):
        path.unlink()


def _golden_counts(report: GoldenReport) -> GoldenCountsDict:
    return {"suite": report.suite, "engines": {name: report.counts(name) for name in report.engines}}


def _all_steps(
    target: TemplateTarget,
    chosen: ChosenTemplate,
    suite: GoldenSuite | None,
    report: GoldenReport | None,
    model: ModelPlan,
    progress: Progress,
) -> tuple[list[JournalStep], list[str]]:
    """Return the steps and the copies they change: the GGUF first, the manifest last."""
    places = [f"{target.files[0].name}: tokenizer.chat_template"] if model.steps else []
    if target.pack is None:
        return list(model.steps), places
    puts, changed = plan_folder(target, chosen.text, suite)
    if not model.steps and not puts:
        return [], []
    template = TemplateEntry(**{**chosen.entry, "replaced_sha256": template_identity(target.text)["sha256"]})
    golden = None if suite is None or report is None else golden_entry(suite, report)
    manifest = plan_manifest(target, model, puts, template, golden, progress)
    attestations = plan_attestations(target, manifest)
    steps = [*model.steps, *puts, *attestations, manifest]
    return steps, [*places, *changed, *(step.path for step in attestations), "manifest.json"]


def golden_entry(suite: GoldenSuite, report: GoldenReport) -> GoldenEntry:
    """Return the manifest's entry of a golden check."""
    engines = {}
    for name, version in report.engines.items():
        counts = report.counts(name)
        engines[name] = {
            "version": version,
            "passed": counts["passed"],
            "failed": counts["failed"],
            "known_differences": counts["known"],
        }
    return GoldenEntry(suite=suite.name, sha256=suite.sha256, cases=len(suite.cases), engines=engines)


def _notes(
    target: TemplateTarget, model: ModelPlan, suite: GoldenSuite | None, recovered: str | None, *, signed: bool
) -> list[str]:
    notes = [] if recovered is None else [recovered]
    if suite is None:
        notes.append("no golden cases are known for this template: only the trial conversation was rendered")
    if model.removed_keys:
        notes.append(f"removed {', '.join(model.removed_keys)}: llama.cpp would use it instead if a request has tools")
    if model.method == "copy":
        notes.append("the header had no room: the file was copied with a longer header; the next installation will fit")
    if model.method == "first shard":
        notes.append(f"the header had no room: the model now starts with the shard {model.files[0].name}")
    if target.pack is None and model.steps:
        notes.append("the file's SHA-256 has changed; a hash published for it no longer applies")
    if note := modelfile_note(target.files[0].parent):
        notes.append(note)
    if signed:
        notes.append("the pack was signed before the change: sign it again with `strata-pack sign`")
    notes.append("a running server keeps the old template until it is restarted")
    return notes
