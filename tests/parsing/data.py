"""Where the cases of the parser lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "data" / "parsing"


def read_lines(name: str) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file."""
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def read_object(name: str) -> dict[str, Any]:
    """Return the object of a JSON file."""
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return loaded


def tools_of(case: dict[str, Any]) -> list[Any] | None:
    """Return the ``tools`` argument for a case.

    The cases write an empty list both for "none were named" (None to the parser: calls are parsed) and for "the
    request has none"; the latter says so in its request (``tool_choice`` "none").
    """
    if (case.get("request") or {}).get("tool_choice") == "none":
        return []
    return case["tools"] or None
