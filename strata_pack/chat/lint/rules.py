"""Lints a chat template with every rule of one table, and applies ``noqa`` comments.

``{# strata: noqa ST301 #}`` silences rules on its own line, ``{# strata: noqa-file ST301 #}`` in the whole template;
without ids, all of them. The rules on safety (ST6) cannot be silenced by comments, only left out with ``ignore``. A
prefix of an id ("ST3") means every rule that starts with it, also in ``select``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from strata_pack.chat.lint import history, portable, properties, safety, scopes, text
from strata_pack.chat.lint.model import SEVERITIES, Finding, Found, Rule, Severity, Subject
from strata_pack.errors import WrongUse
from strata_pack.suggest import hint

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint_template", "worst"]

MAX_EXCERPT = 160


RULES: tuple[Rule, ...] = tuple(
    sorted(
        (one for module in (text, portable, scopes, history, safety, properties) for one in module.RULES),
        key=lambda one: one.id,
    )
)
"""Every rule, by id: ST1 the text, ST2 whether it compiles, ST3 portability, ST4 llama-server, ST5 the history, ST6
safety, ST7 its copies, ST8 the standard conversations. A rule is defined with its check, in the module of its
subject."""

_NOQA = re.compile(r"\{#-?\s*strata:\s*noqa(?P<file>-file)?(?P<ids>[^#]*?)-?#\}")
_ID = re.compile(r"ST\d*")


def lint_template(
    source: str,
    *,
    path: str = "chat_template.jinja",
    copies: Mapping[str, str] | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
) -> list[Finding]:
    """Return what the rules find in ``source``, by line and id; findings about the whole template come last.

    ``source`` is the unchanged text of the file (rules check line ends and byte order mark). ``copies`` maps the places
    of further copies of the template to their texts. ``select`` and ``ignore`` are ids or prefixes of ids; without
    ``select``, all rules run. Raises ``WrongUse`` for a prefix that matches no rule.
    """
    for prefix in (*select, *ignore):
        if not prefix or not any(rule.id.startswith(prefix) for rule in RULES):
            similar = hint(prefix, [rule.id for rule in RULES])
            raise WrongUse(f"no lint rule starts with {prefix!r}{similar}", remedy="see docs/lint.md for the rules")
    subject = Subject(source, path, copies or {})
    silenced = _noqa(subject)
    findings = [
        _finding(rule, found, subject)
        for rule in RULES
        if (not select or rule.id.startswith(tuple(select))) and not rule.id.startswith(tuple(ignore))
        for found in rule.check(subject)
        if not _is_silenced(rule.id, found.line, silenced)
    ]
    return sorted(set(findings), key=lambda one: (one.line is None, one.line or 0, one.rule.id, one.message))


def worst(findings: Sequence[Finding]) -> Severity | None:
    """Return the worst severity among ``findings``, None if there are none."""
    present = {finding.severity for finding in findings}
    return next((severity for severity in SEVERITIES if severity in present), None)


def _finding(rule: Rule, found: Found, subject: Subject) -> Finding:
    line = subject.lines[found.line - 1] if found.line is not None and found.line <= len(subject.lines) else ""
    column = line.find(found.text) + 1 if found.text and found.text in line else None
    return Finding(
        rule=rule,
        severity=found.severity or rule.severity,
        message=found.message,
        path=subject.path,
        line=found.line,
        column=column,
        engines=found.engines,
        excerpt=line.strip("\r").strip()[:MAX_EXCERPT],
    )


NEVER_SILENCED = "ST6"
"""The rules on safety: the author of a malicious template also writes its comments."""

Silenced = Mapping[int | None, tuple[str, ...]]
"""Maps a line (None: the whole template) to the prefixes of the ids that are silenced there; "" silences all."""


def _noqa(subject: Subject) -> Silenced:
    silenced: dict[int | None, tuple[str, ...]] = {}
    for number, line in enumerate(subject.lines, 1):
        for found in _NOQA.finditer(line):
            place = None if found["file"] else number
            silenced[place] = (*silenced.get(place, ()), *(_ID.findall(found["ids"]) or [""]))
    return silenced


def _is_silenced(rule_id: str, line: int | None, silenced: Silenced) -> bool:
    if rule_id.startswith(NEVER_SILENCED):
        return False
    here = silenced.get(line, ()) if line is not None else ()
    return rule_id.startswith((*silenced.get(None, ()), *here)) if silenced else False
