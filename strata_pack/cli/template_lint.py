"""``strata-pack template lint``: finds errors in a template, and constructs that only some engines support."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli import complete
from strata_pack.cli.output import Out
from strata_pack.cli.policy import PolicyFile, load_policy
from strata_pack.cli.report_files import HtmlFile, ReportFiles
from strata_pack.cli.shared_flags import with_shared_flags


class FailOn(StrEnum):
    """The lowest severity that makes the command fail."""

    error = "error"
    warning = "warning"
    info = "info"


@with_shared_flags
def lint(
    out: Out,
    target: Annotated[
        str | None,
        typer.Argument(metavar="TEMPLATE", help="An id, a file, a .gguf, a model folder, a pack or a hub id."),
    ] = None,
    select: Annotated[
        str,
        typer.Option(
            metavar="IDS",
            help="Only these rules: ST501, or ST3 for all that begin with it.",
            autocompletion=complete.rules,
        ),
    ] = "",
    ignore: Annotated[
        str, typer.Option(metavar="IDS", help="Skip these rules (comma-separated).", autocompletion=complete.rules)
    ] = "",
    fail_on: Annotated[FailOn, typer.Option(help="The lowest severity that makes the command fail.")] = FailOn.warning,
    sarif: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write SARIF 2.1.0.")] = None,
    html: HtmlFile = None,
    policy: PolicyFile = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules instead.")] = False,
) -> None:
    """Lint a template: portability across engines, hidden characters, malicious code, history that is lost or re-read.

    A comment {# strata: noqa ST301 #} silences a rule on its line, {# strata: noqa-file ST301 #} in the whole file.
    """
    from strata_pack.chat.lint.model import SEVERITIES
    from strata_pack.chat.lint.output import rule_table, terminal, to_dict, to_report
    from strata_pack.chat.lint.output import sarif as to_sarif
    from strata_pack.chat.lint.rules import RULES, lint_template, worst
    from strata_pack.errors import CheckFailed, WrongUse
    from strata_pack.files import write_atomic
    from strata_pack.outputs import check_outputs
    from strata_pack.pack.template.copies import read_all
    from strata_pack.pack.template.source import load_set

    if rules:
        out.show(rule_table())
        out.result({"rules": [rule.to_dict() for rule in RULES]})
        return
    if target is None:
        raise WrongUse("no template is given", remedy="name one, or use --rules to list the rules")
    check_outputs((html, sarif), (target,))
    files = ReportFiles(html)
    files.try_all(target)
    exceptions = load_policy(policy)
    with out.progress() as progress:
        named = load_set(target, progress)
    found = named.main
    place = Path(target)
    everything = [named.tools] if named.tools is not None else []
    if place.exists():
        everything = [copy for copy in read_all(place) if copy.where != found.where]
    others = [copy for copy in everything if copy.main]
    findings = lint_template(
        found.text,
        path=found.where,
        copies={copy.where: copy.text for copy in others},
        select=_ids(select),
        ignore=_ids(ignore),
    )
    for variant in everything:
        if not variant.main:
            findings += lint_template(variant.text, path=variant.where, select=_ids(select), ignore=_ids(ignore))
    named_as = Path(found.where).name
    granted = [exceptions.exception(one.rule.id, named_as) for one in findings]
    passed = [(one, exception) for one, exception in zip(findings, granted, strict=True) if exception is not None]
    findings = [one for one, exception in zip(findings, granted, strict=True) if exception is None]
    if sarif is not None:
        write_atomic(sarif, to_sarif(findings))
    code = files.write(to_report(findings, found.where, fail_on.value), out)
    out.show(terminal(findings, found.where))
    for one, exception in passed:
        out.line(f"{one.rule.id}: {exception.note} ({one.message})")
    for ended in exceptions.expired:
        out.line(ended.expired_note)
    excepted = [{**one.to_dict(), "excepted": exception.note} for one, exception in passed]
    expired = [one.expired_note for one in exceptions.expired]
    out.result({**to_dict(findings, found.where), "excepted": excepted, "expired": expired})
    severity = worst(findings)
    if severity is not None and SEVERITIES.index(severity) <= SEVERITIES.index(fail_on.value):
        number = len(findings)
        raise CheckFailed(
            f"{number} finding{'s' if number != 1 else ''}, the worst of them: {severity}", where=found.where
        )
    if expired:
        raise CheckFailed(expired[0], where=exceptions.path)
    if code:
        raise typer.Exit(code)


def _ids(text: str) -> list[str]:
    return [part for part in text.replace(",", " ").split() if part]
