"""Lint: each rule on the least template that breaks it, and on one that does not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.engines.engines import MinijinjaEngine
from strata_pack.chat.library import load_shipped
from strata_pack.chat.lint.output import sarif, terminal, to_dict
from strata_pack.chat.lint.rules import RULES, lint_template, worst
from strata_pack.chat.repair.prelude import prelude
from strata_pack.chat.repair.repair import repair_template
from strata_pack.errors import WrongUse

ROOT = Path(__file__).parents[3]
CASES: list[dict[str, Any]] = json.loads((ROOT / "tests/data/chat/lint.json").read_text(encoding="utf-8"))
STOCK = ROOT / "tests/data/chat/stock"

pytestmark = pytest.mark.xdist_group("lint")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_has_the_findings_that_it_should(case: dict[str, Any]) -> None:
    found = lint_template(case["source"], select=[case["select"]])
    assert [[one.rule.id, one.line, one.severity] for one in found] == case["expect"]


@pytest.mark.parametrize(
    "source",
    [
        "{% if a %}" * 200 + "{% endif %}" * 200,
        "{% break %}",
        "{% block a %}{% endblock %}{% block a %}{% endblock %}",
    ],
    ids=["nested too deeply", "break outside of a loop", "a block twice"],
)
def test_what_parses_but_does_not_compile_is_found(source: str) -> None:
    assert [one.rule.id for one in lint_template(source, select=["ST2"])] == ["ST201"]


def test_every_rule_has_a_case() -> None:
    covered = {expected[0] for case in CASES for expected in case["expect"]}
    elsewhere = {"ST501", "ST503", "ST605", "ST701"}
    assert covered | elsewhere == {rule.id for rule in RULES if not rule.id.startswith("ST8")}


def test_the_ids_and_names_of_rules_are_unique_and_ordered() -> None:
    ids = [rule.id for rule in RULES]
    assert ids == sorted(set(ids))
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_shipped_template_is_clean() -> None:
    assert lint_template(load_shipped("qwen3.8-flash-next").source) == []


@pytest.mark.parametrize("form", ["xml", "json"])
def test_the_prelude_of_the_repair_is_portable(form: Any) -> None:
    assert lint_template(prelude(form) + "{{ messages|length }}", select=["ST1", "ST2", "ST3", "ST6"]) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3_like", ["ST501", "ST502", "ST503"]),
        ("coder_like", ["ST501"]),
        ("qwen35_like", ["ST501", "ST502", "ST503"]),
        ("qwen38_like", ["ST501"]),
        ("other_calls", []),
        ("no_calls", []),
    ],
)
def test_what_a_template_does_to_the_history_is_found(name: str, expected: list[str]) -> None:
    source = (STOCK / f"{name}.jinja").read_text(encoding="utf-8")
    assert [one.rule.id for one in lint_template(source, select=["ST5"], ignore=["ST504"])] == expected


def test_a_repaired_template_leaves_no_call_stranded() -> None:
    repaired = repair_template((STOCK / "qwen38_like.jinja").read_text(encoding="utf-8"), [MinijinjaEngine()]).text
    assert lint_template(repaired, ignore=["ST504", "ST8"]) == []


def test_a_finding_names_the_engines_the_line_and_the_column() -> None:
    finding = lint_template("a\nb {{ x.find('a') }}", path="t.jinja", select=["ST301"])[0]
    assert finding.engines == ("llama.cpp", "hf.js")
    assert (finding.path, finding.line, finding.column) == ("t.jinja", 2, 7)
    assert finding.message == "the method find() fails on llama.cpp, hf.js"
    assert finding.excerpt == "b {{ x.find('a') }}"


def test_copies_that_disagree_are_named() -> None:
    copies = {"tokenizer_config.json": "{{ 1 }}", "model.gguf": "{{ 2 }}\n"}
    found = lint_template("{{ 1 }}\n", copies=copies, select=["ST7"])
    assert [(one.rule.id, "model.gguf" in one.message) for one in found] == [("ST701", True)]


def test_ignore_wins_over_select() -> None:
    source = "{{ x.find('a') }}{{ x.split() }}"
    assert [one.rule.id for one in lint_template(source, select=["ST3"], ignore=["ST301"])] == ["ST302"]


@pytest.mark.parametrize("wrong", ["ST9", "E501", ""])
def test_an_id_that_fits_no_rule_is_wrong_use(wrong: str) -> None:
    with pytest.raises(WrongUse, match="no lint rule"):
        lint_template("", select=[wrong])


def test_the_worst_severity_is_found() -> None:
    assert worst(lint_template("{{ x is float }}{{ x.find('a') }}", select=["ST3"])) == "error"
    assert worst(lint_template("{{ x is float }}", select=["ST3"])) == "info"
    assert worst([]) is None


def test_sarif_points_at_lines_and_describes_every_rule() -> None:
    findings = lint_template("a\n{{ x.find('a') }}{{ x is float }}", path="my templates/t.jinja", select=["ST3"])
    log = json.loads(sarif(findings))
    run = log["runs"][0]
    assert (log["version"], run["tool"]["driver"]["name"]) == ("2.1.0", "strata-pack")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [rule.id for rule in RULES]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "my%20templates/t.jinja"
        assert place["region"]["startLine"] == 2
    assert [result["level"] for result in run["results"]] == ["error", "note"]


def test_json_counts_by_severity() -> None:
    data = to_dict(lint_template("{{ x.find('a') }}{{ x is float }}", select=["ST3"]), "t.jinja")
    assert data["counts"] == {"error": 1, "warning": 0, "info": 1}
    assert json.loads(json.dumps(data))["findings"][0]["rule"] == "ST301"


def test_the_terminal_shows_no_control_character_of_the_template() -> None:
    from rich.console import Console

    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(terminal(lint_template("{{ 'a\x1b[31m\u202eb' }}", select=["ST1"]), "t.jinja"))
    text = console.export_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\u202e" in text


@pytest.mark.parametrize("source", ["", "{{", "{% for %}", "\x00", "{#", "{{ x }" * 1000, "{% if a %}" * 400])
def test_no_text_stops_lint(source: str) -> None:
    lint_template(source)


def test_the_documentation_lists_every_rule_as_it_is() -> None:
    text = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (ST\d+) \| ([a-z-]+) \| (\w+) \| (.*?) \|", text, re.MULTILINE)
    assert rows == [(rule.id, rule.name, rule.severity, rule.summary) for rule in RULES]
