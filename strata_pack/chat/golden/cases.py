"""Reads golden suites: files of cases, each with a conversation and the exact prompt (or error) that it must give.

Two formats are read. Ours: ``name``, ``messages``, ``tools``, ``kwargs`` (the template's other variables), ``expected``
or ``error``, and ``differs_on`` (engines known to differ, as a list or as engine -> reason). The common flat format: a
list of cases with ``add_generation_prompt`` (true where it is missing), ``enable_thinking`` ... next to ``rendered`` or
``hf``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.files import read_json

MAX_SUITE_BYTES = 64 << 20
MAX_CASES = 20_000

OWN_KEYS = frozenset({"name", "messages", "tools", "kwargs", "variables", "expected", "error", "differs_on"})
REMARKS = frozenset({"note", "kind", "why", "source"})
FLAT_RESULTS = ("rendered", "hf")
NESTED_VARIABLES = ("kwargs", "variables", "chat_template_kwargs")
FLAT_VARIABLES = (
    "add_generation_prompt",
    "enable_thinking",
    "reasoning_effort",
    "preserve_thinking",
    "add_vision_id",
    "continue_final_message",
)


@dataclass(frozen=True)
class GoldenCase:
    """One conversation and its required result: ``expected`` (a prompt) or ``error`` (the template's exact message).

    ``variables`` are the template's inputs other than ``messages`` and ``tools``; ``tools`` is ``None`` if the case
    has none. ``differs_on`` maps an engine's name to the reason of its known difference ("" if none is recorded).
    """

    name: str
    messages: list[Any]
    tools: Any = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    expected: str | None = None
    error: str | None = None
    differs_on: Mapping[str, str] = field(default_factory=dict)
    file: str = ""

    @property
    def id(self) -> str:
        """The name together with the file; unique in a suite."""
        return f"{self.file}: {self.name}" if self.file else self.name

    def inputs(self) -> dict[str, Any]:
        """Return every variable that the template sees."""
        given: dict[str, Any] = {**self.variables, "messages": self.messages}
        if self.tools is not None:
            given["tools"] = self.tools
        return given

    def to_dict(self) -> dict[str, Any]:
        """Return the case in our own format, without empty keys."""
        data: dict[str, Any] = {"name": self.name, "messages": self.messages}
        if self.tools is not None:
            data["tools"] = self.tools
        data["kwargs"] = dict(self.variables)
        data |= {"expected": self.expected} if self.error is None else {"error": self.error}
        if self.differs_on:
            bare = not any(self.differs_on.values())
            data["differs_on"] = list(self.differs_on) if bare else dict(self.differs_on)
        return data


@dataclass(frozen=True)
class GoldenSuite:
    """The cases of one template. ``sha256`` depends on their content, not on the layout of the files."""

    name: str
    cases: tuple[GoldenCase, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 of the cases as compact JSON, in order."""
        digest = hashlib.sha256()
        for case in self.cases:
            text = json.dumps(case.to_dict(), ensure_ascii=False, separators=(",", ":"))
            digest.update(text.encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()


def load_suite(path: Path) -> GoldenSuite:
    """Return the suite in ``path``: one JSON file, or every ``*.json`` of a folder, in the order of their names.

    Raises ``BadInput``, which names file and case, for an invalid case and for two cases with the same name.
    """
    files = suite_files(path)
    cases = [case for file in files for case in read_cases(file)]
    names = Counter(case.name for case in cases)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise BadInput(f"two cases are called {twice!r}", where=path, remedy="rename one")
    if not cases:
        raise BadInput("has no golden cases", where=path)
    if len(cases) > MAX_CASES:
        raise BadInput(f"holds {len(cases)} cases; {MAX_CASES} is the limit", where=path)
    return GoldenSuite(name=path.name if path.is_dir() else path.stem, cases=tuple(cases))


def suite_files(path: Path) -> list[Path]:
    """Return the files of the suite ``path``: itself, or every ``*.json`` of the folder in the order of their names."""
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise BadInput("has no golden cases (*.json)", where=path)
    return files


def read_cases(path: Path) -> list[GoldenCase]:
    """Return the cases in the JSON file ``path``, in either format."""
    items = cases_in(read_json(path, MAX_SUITE_BYTES), path)
    return [_read_case(item, number, path) for number, item in enumerate(items, 1)]


def cases_in(data: Any, path: Path) -> list[Any]:
    """Return the list of cases in the content of a golden file: the list itself, or that under ``cases``."""
    found = data.get("cases") if isinstance(data, dict) else data
    if not isinstance(found, list):
        raise BadInput('is neither a list of cases nor an object with "cases"', where=path)
    return found


def case_name(item: dict[str, Any], number: int) -> Any:
    """Return the name of a case, or one made of its ``number`` in the file: some formats have no names."""
    name = item.get("name", item.get("id", f"case {number}"))
    return str(name) if type(name) is int else name


def _read_case(item: Any, number: int, path: Path) -> GoldenCase:
    where = f"{path}: case {number}"
    if not isinstance(item, dict):
        raise BadInput("is not an object", where=where)
    name = case_name(item, number)
    if not isinstance(name, str) or not name:
        raise BadInput('"name" is not a text', where=where)
    where = f"{path}: {name!r}"
    if not isinstance(item.get("messages"), list):
        raise BadInput('has no "messages" list', where=where)
    flat = next((key for key in FLAT_RESULTS if key in item), None)
    variables, result = _own_form(item, where) if flat is None else _flat_form(item, flat)
    expected, error = result
    if (expected is None) == (error is None):
        wanted = '"expected" or "error"' if flat is None else f'"{flat}"'
        raise BadInput(f"needs exactly one text in {wanted}", where=where)
    return GoldenCase(
        name=name,
        messages=item["messages"],
        tools=item.get("tools"),
        variables=variables,
        expected=expected,
        error=error,
        differs_on=_differs_on(item.get("differs_on"), where),
        file=path.stem,
    )


def _own_form(item: dict[str, Any], where: str) -> tuple[dict[str, Any], tuple[str | None, str | None]]:
    unknown = sorted(set(item) - OWN_KEYS - REMARKS)
    if unknown:
        raise BadInput(f"has unknown keys {', '.join(unknown)}", where=where, remedy="check their spelling")
    variables = item.get("kwargs", item.get("variables", {}))
    if not isinstance(variables, dict) or {"messages", "tools"} & set(variables):
        raise BadInput('"kwargs" is not an object of the other variables', where=where)
    return variables, (_text_in(item, "expected"), _text_in(item, "error"))


def _flat_form(item: dict[str, Any], result_key: str) -> tuple[dict[str, Any], tuple[str | None, str | None]]:
    nested: dict[str, Any] = next((item[key] for key in NESTED_VARIABLES if isinstance(item.get(key), dict)), {})
    flat = {name: item[name] for name in FLAT_VARIABLES if name in item}
    variables = {"add_generation_prompt": True, **nested, **flat}
    result = item[result_key]
    if isinstance(result, dict):
        return variables, (None, _text_in(result, "error"))
    return variables, (_text_in(item, result_key), _text_in(item, "error"))


def _text_in(item: dict[str, Any], key: str) -> str | None:
    value = item.get(key)
    return value if isinstance(value, str) else None


def _differs_on(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, list) and all(isinstance(engine, str) for engine in value):
        return dict.fromkeys(value, "")
    if isinstance(value, dict) and all(isinstance(reason, str) for reason in value.values()):
        return value
    raise BadInput('"differs_on" is neither a list of engines nor an object of engine and reason', where=where)
