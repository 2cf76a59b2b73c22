"""Golden files, changed: a case added, or recorded results replaced by what the template renders today.

The file keeps its form, its indentation and every key that is not ours. Nothing is written here that the caller has
not been given to look at first: ``plan_add`` and ``plan_update`` return the change, ``write`` carries it out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.cases import (
    FLAT_RESULTS,
    FLAT_VARIABLES,
    NESTED_VARIABLES,
    GoldenCase,
    case_name,
    cases_in,
    read_cases,
    read_json,
)
from strata_pack.chat.golden import CaseResult, GoldenReport
from strata_pack.chat.template import ChatTemplate, TemplateRefused
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import write_atomic

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character. JSON can hold one, as an escape; UTF-8, and so the file, cannot."""


@dataclass(frozen=True)
class Change:
    """A golden file as it will be: ``cases`` are the new or changed ones."""

    path: Path
    cases: tuple[GoldenCase, ...]
    text: str


def read_conversation(path: Path) -> tuple[list[Any], Any, dict[str, Any]]:
    """Return messages, tools (or ``None``) and the template's other variables of the conversation in ``path``.

    Read are a list of messages, a golden case, and the body of a chat request (``chat_template_kwargs``). A generation
    prompt is asked for unless the file says otherwise.
    """
    data = read_json(path)
    body: dict[str, Any] = {"messages": data} if isinstance(data, list) else data
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise BadInput('holds no conversation (a list of messages, or an object with "messages")', where=path)
    variables: dict[str, Any] = {"add_generation_prompt": True}
    for key in NESTED_VARIABLES:
        if isinstance(body.get(key), dict):
            variables |= body[key]
    variables |= {key: body[key] for key in FLAT_VARIABLES if key in body}
    if {"messages", "tools"} & set(variables):
        raise BadInput("sets messages or tools a second time, among the template's variables", where=path)
    return body["messages"], body.get("tools"), variables


def plan_add(suite: Path, conversation: Path, name: str, template: ChatTemplate) -> Change:
    """Return ``suite`` (a file, which need not exist) with the case ``name`` added as ``template`` renders it today.

    A conversation that the template refuses becomes a case with ``error``. Raises ``WrongUse`` if there is a case of
    that name, or if ``name`` is empty.
    """
    if not name:
        raise WrongUse("is empty", where="--name", remedy="state the fact that the case shows")
    if suite.is_dir():
        raise WrongUse("is a folder", where=suite, remedy="name the JSON file in it that shall hold the case")
    data: Any = read_json(suite) if suite.exists() else []
    if suite.exists() and any(case.name == name for case in read_cases(suite)):
        raise WrongUse(f"has a case called {name!r} already", where=suite, remedy="choose another --name")
    messages, tools, variables = read_conversation(conversation)
    expected = error = None
    try:
        expected = template.render(messages, tools, **variables)
    except TemplateRefused as refusal:
        error = refusal.message
    case = GoldenCase(name, messages, tools, variables, expected, error, file=suite.stem)
    cases_in(data, suite).append(case.to_dict())
    return Change(suite, (case,), _dump(data, suite))


def plan_update(files: Sequence[Path], report: GoldenReport) -> list[Change]:
    """Return the golden ``files`` in which the results that failed on the reference engine (jinja2) are replaced."""
    changes: list[Change] = []
    for path in files:
        failed = {
            result.case.name: result
            for result in report.failures
            if result.engine == "jinja2" and result.case.file == path.stem
        }
        if failed:
            data = read_json(path)
            for number, item in enumerate(cases_in(data, path), 1):
                if (result := failed.get(case_name(item, number))) is not None:
                    _record(item, result)
            changes.append(Change(path, tuple(result.case for result in failed.values()), _dump(data, path)))
    return changes


def _record(item: dict[str, Any], result: CaseResult) -> None:
    flat = next((key for key in FLAT_RESULTS if key in item), None)
    item.pop("error", None)
    if flat is not None:
        # The key stays, whatever the result is: by it the flat form is known.
        item[flat] = result.got if result.got_error is None else {"error": result.got_error}
    elif result.got_error is None:
        item["expected"] = result.got
    else:
        item.pop("expected", None)
        item["error"] = result.got_error


def write(change: Change) -> None:
    """Write the file of ``change``, whole or not at all."""
    write_atomic(change.path, change.text.encode("utf-8"))


def _dump(data: Any, path: Path) -> str:
    """Return ``data`` as JSON with the indentation that the file has, one space for a new one."""
    found = re.search(r"^[\[{]\r?\n([ \t]+)", path.read_text("utf-8-sig")) if path.exists() else None
    text = json.dumps(data, ensure_ascii=False, indent=found[1] if found else 1) + "\n"
    return SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
