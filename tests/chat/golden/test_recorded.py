"""Recorded golden cases say what a template printed, and where engines differed."""

from __future__ import annotations

from functools import cache

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine, available_engines
from strata_pack.chat.golden import recorded
from strata_pack.chat.golden.check import GoldenSuite, check_golden
from strata_pack.chat.golden.recorded import DIFFERS, record_suite
from strata_pack.chat.library import load_shipped
from strata_pack.chat.repair.suite import generate

TEMPLATE = load_shipped("qwen3.8-flash-next").source


@cache
def suite(form: str) -> GoldenSuite:
    return record_suite(TEMPLATE, form, [Jinja2Engine()])  # type: ignore[arg-type]


class Upper(Jinja2Engine):
    """An engine that is not the reference."""

    name = "upper"
    known_as = ("upper",)

    def render(self, source: str, inputs: object) -> str:
        return super().render(source, inputs).upper()  # type: ignore[arg-type]


def test_the_recorded_cases_pass_on_every_engine_here() -> None:
    engines = available_engines()
    assert check_golden(TEMPLATE, record_suite(TEMPLATE, "xml", engines), engines).ok


def test_a_changed_template_fails_on_the_recorded_cases() -> None:
    assert not check_golden(TEMPLATE.replace("</think>", "</thinking>"), suite("xml"), [Jinja2Engine()]).ok


@pytest.mark.parametrize("form", ["xml", "json"])
def test_conversations_of_both_call_forms_are_recorded(form: str) -> None:
    assert len(suite(form).cases) > 100


def test_an_engine_that_differs_is_named_in_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    few = generate("xml")[:2]
    monkeypatch.setattr(recorded, "generate", lambda _form: few)
    case = record_suite(TEMPLATE, "xml", [Jinja2Engine(), Upper()]).cases[0]
    assert case.differs_on == {"upper": DIFFERS}
