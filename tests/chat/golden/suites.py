"""Small golden suites and the template that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.golden.cases import load_suite
from strata_pack.chat.golden.check import GoldenReport, check_golden
from strata_pack.chat.library import load_shipped

SHIPPED = load_shipped("qwen3.8-flash-next")
ECHO = (
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('No bad role.') }}{% endif %}"
    "{{ m.content }}\n{% endfor %}"
)
USER = [{"role": "user", "content": "Hi"}]


def make_case(name: str = "hi", **changes: Any) -> dict[str, Any]:
    return {"name": name, "messages": USER, "kwargs": {}, "expected": "Hi\n", **changes}


def suite_file(folder: Path, *cases: Any, name: str = "golden.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(list(cases), ensure_ascii=False))
    return path


def check_file(path: Path, source: str = ECHO) -> GoldenReport:
    return check_golden(source, load_suite(path), [Jinja2Engine()])
