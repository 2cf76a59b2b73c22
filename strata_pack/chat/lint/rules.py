"""Lint of chat templates: every rule in one table, run over one template, with ``noqa`` comments honoured.

``{# strata: noqa ST301 #}`` silences rules on its own line, ``{# strata: noqa-file ST301 #}`` in the whole template;
without ids, all of them. The rules on safety (ST6) cannot be silenced so, only left out with ``ignore``. A prefix of an
id ("ST3") stands for every rule that starts with it, here and in ``select``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from strata_pack.chat.lint import (
    history as lint_history,
)
from strata_pack.chat.lint import (
    portable as lint_portable,
)
from strata_pack.chat.lint import (
    safety as lint_safety,
)
from strata_pack.chat.lint import (
    scopes as lint_scopes,
)
from strata_pack.chat.lint import (
    text as lint_text,
)
from strata_pack.chat.lint.model import SEVERITIES, Finding, Found, Rule, Severity, Subject
from strata_pack.errors import WrongUse

__all__ = ["RULES", "Finding", "Rule", "Severity", "lint_template", "worst"]

MAX_EXCERPT = 160


def _copies(subject: Subject) -> Iterator[Found]:
    wanted = subject.source.rstrip("\n")
    for place, text in subject.copies.items():
        if text.rstrip("\n") != wanted:
            yield Found(f"another text than {place}, so what is served depends on which one the engine reads")


_PORTABLE = "use a construct of the portable subset, which every engine runs alike"
_NAME = "correct its name, or define it"
_HUMAN = "retype the line; nothing in a template needs the character"
_HOSTILE = "do not use this template unless you wrote it; chat templates need none of this"

RULES: tuple[Rule, ...] = (
    Rule(
        "ST101", "byte-order-mark", "error", "the file starts with a byte order mark",
        "save it as UTF-8 without a byte order mark", lint_text.byte_order_mark,
    ),
    Rule(
        "ST102", "carriage-return", "warning", "lines end in carriage return and line feed",
        "save it with LF line ends, so that its hash is the same everywhere", lint_text.carriage_returns,
    ),
    Rule("ST103", "tab", "info", "the text holds tabs", "indent with spaces", lint_text.tabs),
    Rule("ST104", "bidirectional", "error", "characters that reorder a line", _HUMAN, lint_text.bidirectional),
    Rule("ST105", "hidden-character", "warning", "characters that no editor shows", _HUMAN, lint_text.hidden),
    Rule("ST201", "syntax", "error", "the template does not compile", "correct the line", lint_text.does_not_compile),
    Rule("ST202", "unknown-filter", "error", "a filter that does not exist", _NAME, lint_text.unknown_filters),
    Rule("ST203", "unknown-test", "error", "a test that does not exist", _NAME, lint_text.unknown_tests),
    Rule("ST204", "unknown-function", "error", "a function that does not exist", _NAME, lint_text.unknown_functions),
    Rule("ST301", "method", "error", "a method that not every engine has", _PORTABLE, lint_portable.methods),
    Rule("ST302", "argument", "error", "arguments that not every engine takes", _PORTABLE, lint_portable.arguments),
    Rule("ST303", "filter", "error", "a filter that not every engine has", _PORTABLE, lint_portable.filters),
    Rule("ST304", "test", "info", "a test that not every engine has", _PORTABLE, lint_portable.tests),
    Rule("ST305", "function", "error", "a function that not every engine has", _PORTABLE, lint_portable.functions),
    Rule("ST306", "statement", "error", "a statement that not every engine has", _PORTABLE, lint_portable.statements),
    Rule("ST307", "written-form", "error", "a form that not every engine reads", _PORTABLE, lint_portable.written),
    Rule("ST308", "printed-constant", "error", "printing true or none", _PORTABLE, lint_portable.printed_constants),
    Rule(
        "ST309", "null-default", "info", "default() means something else for null on one engine",
        "test with `is defined` and `is none`", lint_portable.null_defaults,
    ),
    Rule(
        "ST310", "leaking-variable", "warning", "a loop's variable keeps its value from turn to turn on some engines",
        "set it unconditionally at the top of the loop body", lint_scopes.leaking_variables,
    ),
    Rule(
        "ST311", "macro-writes", "warning", "a macro sets a namespace that it does not read",
        "pass the namespace to the macro as an argument", lint_scopes.macro_writes,
    ),
    Rule(
        "ST312", "namespace-underscore", "error", "a namespace attribute that starts with an underscore",
        "name it without the underscore", lint_scopes.namespaces,
    ),
    Rule(
        "ST313", "lost-output", "error", "continue or break after output, which some engines lose",
        "print after the decision, or use if and else", lint_portable.lost_output,
    ),
    Rule(
        "ST401", "family-marker", "warning", "llama-server does not know the family by the text",
        "keep the markers of the calls in the text, as in the instructions for tools", lint_history.family_markers,
    ),
    Rule(
        "ST402", "foreign-marker", "error", "llama-server takes it for another family",
        "write the marker in two halves, or leave it out", lint_history.foreign_markers,
    ),
    Rule(
        "ST403", "start-up", "error", "llama-server would not start with it",
        "render system, user, assistant, user without an error", lint_history.refuses_start_up,
    ),
    Rule(
        "ST501", "stranded-call", "error", "a tool call stays inside the thinking of the history",
        "run `strata-pack template repair`", lint_history.stranded_calls,
    ),
    Rule(
        "ST502", "lost-text", "warning", "the history loses text",
        "do not cut answers at tags; take thinking from reasoning_content alone", lint_history.lost_text,
    ),
    Rule(
        "ST503", "unstable-prefix", "warning", "a prompt is not the beginning of the next one",
        "see `strata-pack template prefix`", lint_history.unstable_prefix,
    ),
    Rule(
        "ST504", "late-system", "info", "a system message after the first turn is refused or dropped",
        "send such text in a user's message, or let the gateway move it", lint_history.late_system,
    ),
    Rule("ST601", "internals", "error", "it reaches for internals", _HOSTILE, lint_safety.dunder_access),
    Rule("ST602", "computed-attribute", "error", "it computes attribute names", _HOSTILE, lint_safety.attr_filter),
    Rule("ST603", "dangerous-name", "error", "names that injections start from", _HOSTILE, lint_safety.dangerous_names),
    Rule("ST604", "other-template", "error", "it loads other templates", _HOSTILE, lint_safety.other_templates),
    Rule(
        "ST605", "trigger", "error", "text that appears, vanishes or changes on a trigger",
        "look at the line: a template prints a conversation, it does not answer to it", lint_safety.triggers,
    ),
    Rule(
        "ST701", "copies-disagree", "error", "the copies of the template are not the same",
        "install one of them everywhere with `strata-pack template install`", _copies,
    ),
)  # fmt: skip
"""Every rule, by id: ST1 the text, ST2 whether it compiles, ST3 portability, ST4 llama-server, ST5 the history, ST6
safety, ST7 its copies."""

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

    ``source`` is the text as it lies in its file (line ends and byte order mark are looked at). ``copies`` maps the
    places of further copies of the template to their texts. ``select`` and ``ignore`` are ids or their beginnings;
    without ``select``, all rules. Raises ``WrongUse`` for one that fits no rule.
    """
    for prefix in (*select, *ignore):
        if not prefix or not any(rule.id.startswith(prefix) for rule in RULES):
            raise WrongUse(f"no lint rule starts with {prefix!r}", remedy="see docs/lint.md for the rules")
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
"""The rules on safety: who wrote a hostile template wrote its comments, too."""

Silenced = Mapping[int | None, tuple[str, ...]]
"""Line (None: the whole template) -> beginnings of the ids that are silenced there; "" silences all."""


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
