"""Properties of prompts: each planted defect is found by its rule; sound templates have no such finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.library import list_templates, load_shipped
from strata_pack.chat.lint.model import Finding
from strata_pack.chat.lint.rules import lint_template
from strata_pack.chat.lint.shapes import SHAPES

DATA = Path(__file__).parents[2] / "data/chat"
PLANTED = DATA / "properties"
DEFECTS: list[dict[str, Any]] = json.loads((PLANTED / "defects.json").read_text(encoding="utf-8"))
SOUND = sorted(path.stem for path in PLANTED.glob("*.jinja"))
CUTTING = "cuts_answers"
STOCK = sorted(path for path in (DATA / "stock").glob("*.jinja") if path.stem != CUTTING)


def planted(case: dict[str, Any]) -> str:
    source = (PLANTED / f"{case['base']}.jinja").read_text(encoding="utf-8")
    for old, new in case["replace"]:
        assert source.count(old) == 1
        source = source.replace(old, new)
    return source


def found(source: str, **options: Any) -> list[Finding]:
    return lint_template(source, select=["ST8"], **options)


def test_about_fifty_shapes_are_rendered_and_have_names_of_their_own() -> None:
    assert len(SHAPES) >= 50
    assert len({shape.name for shape in SHAPES}) == len(SHAPES)


def test_at_least_twenty_defects_are_planted() -> None:
    assert len(DEFECTS) >= 20
    assert {case["rule"] for case in DEFECTS} == {"ST801", "ST803", "ST804", "ST805", "ST806", "ST807"}


@pytest.mark.parametrize("case", DEFECTS, ids=lambda case: case["name"])
def test_a_planted_defect_is_found(case: dict[str, Any]) -> None:
    seen = {(one.rule.id, one.severity) for one in found(planted(case))}
    assert (case["rule"], case["severity"]) in seen


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_template_has_no_finding(name: str) -> None:
    assert found((PLANTED / f"{name}.jinja").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", [shipped.id for shipped in list_templates()])
def test_a_shipped_template_has_no_finding(name: str) -> None:
    assert found(load_shipped(name).source) == []


def test_the_stock_template_that_is_made_to_cut_texts_is_found() -> None:
    messages = [one.message for one in found((DATA / f"stock/{CUTTING}.jinja").read_text(encoding="utf-8"))]
    assert "leaves out a part of a user's text (in 'lines and code')" in messages


@pytest.mark.parametrize("path", STOCK, ids=lambda path: path.stem)
def test_a_stock_template_has_no_error(path: Path) -> None:
    assert [one.message for one in found(path.read_text(encoding="utf-8")) if one.severity == "error"] == []
