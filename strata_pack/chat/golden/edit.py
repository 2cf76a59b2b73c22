"""Adds a case to a golden file, or replaces recorded results by the template's current output.

The file keeps every character outside the changed results: order, indentation, escapes, line ends, a byte order mark.
``plan_add`` and ``plan_update`` return the change without writing, so that the caller can show it; ``write`` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.golden.cases import (
    FLAT_RESULTS,
    FLAT_VARIABLES,
    MAX_SUITE_BYTES,
    NESTED_VARIABLES,
    GoldenCase,
    case_name,
    cases_in,
    read_cases,
)
from strata_pack.chat.golden.check import CaseResult, GoldenReport
from strata_pack.chat.golden.json_text import Edit, Span, edited, items, members, whole
from strata_pack.chat.render.template import ChatTemplate, TemplateRefused
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import read_bytes, read_json, write_atomic

SURROGATE = re.compile("[\ud800-\udfff]")
"""A lone surrogate. JSON can contain one as an escape; UTF-8, and so the file, cannot."""
LINE = re.compile(r"\r?\n[ \t]*")
"""The end of a line with the indentation of the next one."""
INDENT = " "
"""The indentation of one level in a new file."""


@dataclass(frozen=True)
class SuiteChange:
    """The new content of a golden file; ``cases`` are the new or changed cases."""

    path: Path
    cases: tuple[GoldenCase, ...]
    text: str


def read_conversation(path: Path) -> tuple[list[Any], Any, dict[str, Any]]:
    """Return messages, tools (or ``None``) and the template's other variables of the conversation in ``path``.

    The file is a list of messages, a golden case, or the body of a chat request (``chat_template_kwargs``).
    ``add_generation_prompt`` is true unless the file sets it.
    """
    data = read_json(path, MAX_SUITE_BYTES)
    body: dict[str, Any] = {"messages": data} if isinstance(data, list) else data
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise BadInput('has no conversation (a list of messages, or an object with "messages")', where=path)
    variables: dict[str, Any] = {"add_generation_prompt": True}
    for key in NESTED_VARIABLES:
        if isinstance(body.get(key), dict):
            variables |= body[key]
    variables |= {key: body[key] for key in FLAT_VARIABLES if key in body}
    if {"messages", "tools"} & set(variables):
        raise BadInput("sets messages or tools a second time, among the template's variables", where=path)
    return body["messages"], body.get("tools"), variables


def plan_add(suite: Path, conversation: Path, name: str, template: ChatTemplate) -> SuiteChange:
    """Return ``suite`` (a file, which need not exist) with the case ``name`` added, as ``template`` renders it now.

    A conversation that the template refuses becomes a case with ``error``. Raises ``WrongUse`` if a case of that
    name exists, or if ``name`` is empty.
    """
    if not name:
        raise WrongUse("is empty", where="--name", remedy="state the fact that the case shows")
    if suite.is_dir():
        raise WrongUse("is a folder", where=suite, remedy="name the JSON file in it for the case")
    text = _read(suite) if suite.exists() else "[]\n"
    if suite.exists() and any(case.name == name for case in read_cases(suite)):
        raise WrongUse(f"has a case called {name!r} already", where=suite, remedy="choose another --name")
    messages, tools, variables = read_conversation(conversation)
    expected = error = None
    try:
        expected = template.render(messages, tools, **variables)
    except TemplateRefused as refusal:
        error = refusal.message
    case = GoldenCase(name, messages, tools, variables, expected, error, file=suite.stem)
    return SuiteChange(suite, (case,), edited(text, [_addition(text, case)]))


def plan_update(files: Sequence[Path], report: GoldenReport) -> list[SuiteChange]:
    """Return the golden ``files`` in which the results that failed on the reference engine (jinja2) are replaced."""
    changes: list[SuiteChange] = []
    for path in files:
        failed = {
            result.case.name: result
            for result in report.failures
            if result.engine == "jinja2" and result.case.file == path.stem
        }
        if failed:
            text = _read(path)
            edits = [
                edit
                for number, item in enumerate(items(text, _cases(text)), 1)
                if (result := failed.get(case_name(item.value, number))) is not None
                for edit in _record(members(text, item), result)
            ]
            changes.append(SuiteChange(path, tuple(result.case for result in failed.values()), edited(text, edits)))
    return changes


def _record(case: dict[str, Span], result: CaseResult) -> Iterator[Edit]:
    """Yield the edits that replace a case's recorded result by ``result``."""
    flat = next((key for key in FLAT_RESULTS if key in case), None)
    refused = result.got_error is not None
    if flat is not None:
        # The key is kept for any result, because it identifies the flat format.
        key, other, value = flat, "error", {"error": result.got_error} if refused else result.got
    elif refused:
        key, other, value = "error", "expected", result.got_error
    else:
        key, other, value = "expected", "error", result.got
    if key not in case:
        yield Edit(case[other].key_start, case[other].end, f"{_json(key)}: {_json(value)}")
        return
    yield Edit(case[key].start, case[key].end, _json(value))
    if other in case:
        yield Edit(case[other].start, case[other].end, "null")


def _addition(text: str, case: GoldenCase) -> Edit:
    """Return the edit that adds ``case`` after the last case, formatted like that one."""
    cases = _cases(text)
    there = list(items(text, cases))
    if not there:
        return Edit(cases.start, cases.end, _json([case.to_dict()], INDENT))
    last = there[-1].start, there[-1].end
    gap = text[len(text[: last[0]].rstrip()) : last[0]]
    lines = LINE.findall(text, *last)
    if not lines:
        return Edit(last[1], last[1], f",{gap}{_json(case.to_dict())}")
    level = LINE.search(text)
    written = _json(case.to_dict(), INDENT if level is None else level[0].lstrip("\r\n"))
    return Edit(last[1], last[1], f",{gap}" + written.replace("\n", lines[-1]))


def write(change: SuiteChange) -> None:
    """Write the file of ``change``, whole or not at all."""
    write_atomic(change.path, change.text.encode("utf-8"))


def _read(path: Path) -> str:
    """Return the unchanged text of a golden file; ``BadInput`` if it has no list of cases."""
    cases_in(read_json(path, MAX_SUITE_BYTES), path)
    return read_bytes(path, MAX_SUITE_BYTES).decode("utf-8")


def _cases(text: str) -> Span:
    """Return the span of the list of cases in the text of a golden file."""
    data = whole(text)
    return members(text, data)["cases"] if isinstance(data.value, dict) else data


def _json(value: Any, indent: str | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
