"""Golden suites: read in two forms and checked."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.golden.cases import GoldenSuite, load_suite, read_cases
from strata_pack.chat.golden.check import check_golden
from strata_pack.errors import BadInput
from tests.chat.golden.suites import SHIPPED, USER, check_file, make_case, suite_file

# Reading


def test_shipped_suite_holds_all_cases() -> None:
    names = [path.name for path in sorted(SHIPPED.golden_dir.glob("*.json"))]
    assert names == ["edges.json", "golden.json", "repair.json"]
    assert [len(read_cases(SHIPPED.golden_dir / name)) for name in names] == [6, 90, 76]


@pytest.mark.parametrize(
    ("case", "expected", "error"),
    [
        ({"messages": USER, "add_generation_prompt": True, "enable_thinking": False, "rendered": "Hi\n"}, "Hi\n", None),
        ({"id": "a", "messages": USER, "tools": None, "hf": "Hi\n", "llamacpp": "Hi"}, "Hi\n", None),
        ({"messages": USER, "hf": {"error": "No."}}, None, "No."),
        ({"messages": USER, "hf": None, "error": "No."}, None, "No."),
        ({"name": "a", "messages": USER, "chat_template_kwargs": {"x": 1}, "rendered": "Hi\n"}, "Hi\n", None),
    ],
    ids=["rendered", "hf", "hf with an error", "error beside hf", "nested variables"],
)
def test_flat_form_is_read(tmp_path: Path, case: dict[str, Any], expected: str | None, error: str | None) -> None:
    read = read_cases(suite_file(tmp_path, case))[0]
    assert (read.expected, read.error) == (expected, error)


def test_flat_form_has_the_variables_next_to_the_messages(tmp_path: Path) -> None:
    flat = {"messages": USER, "add_generation_prompt": True, "enable_thinking": False, "rendered": "x", "comment": 1}
    assert read_cases(suite_file(tmp_path, flat))[0].variables == {
        "add_generation_prompt": True,
        "enable_thinking": False,
    }


def test_flat_form_without_a_generation_prompt_means_with_one(tmp_path: Path) -> None:
    assert read_cases(suite_file(tmp_path, {"messages": USER, "rendered": "x"}))[0].variables == {
        "add_generation_prompt": True
    }
    nested = {"messages": USER, "kwargs": {"add_generation_prompt": False}, "hf": "x"}
    assert read_cases(suite_file(tmp_path, nested))[0].variables == {"add_generation_prompt": False}


def test_cases_may_stand_in_an_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"name": "mine", "cases": [make_case()]}))
    assert [case.name for case in read_cases(path)] == ["hi"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("3", "neither a list of cases"),
        ("[3]", "case 1: is not an object"),
        ('[{"name": "a"}]', "'a': has no \"messages\" list"),
        ('[{"name": "", "messages": []}]', '"name" is not a text'),
        ('[{"messages": []}]', 'exactly one text in "expected" or "error"'),
        ('[{"messages": [], "expected": "", "error": ""}]', "exactly one"),
        ('[{"messages": [], "expectd": ""}]', "unknown keys expectd"),
        ('[{"messages": [], "expected": "", "kwargs": {"tools": []}}]', '"kwargs" is not an object'),
        ('[{"messages": [], "expected": "", "differs_on": 3}]', '"differs_on" is neither'),
        ('[{"name": "a", "messages": [], "expected": ""}, {"name": "a", "messages": [], "expected": ""}]', "two cases"),
    ],
)
def test_file_that_holds_no_cases_is_refused_with_the_place(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=path.name) as caught:
        load_suite(path)
    assert said in str(caught.value)


def test_name_is_unique_over_all_files_of_a_suite(tmp_path: Path) -> None:
    suite_file(tmp_path, make_case("a"), name="1.json")
    suite_file(tmp_path, make_case("a"), name="2.json")
    with pytest.raises(BadInput, match="two cases are called 'a'"):
        load_suite(tmp_path)


def test_empty_folder_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no golden cases"):
        load_suite(tmp_path)


def test_hash_of_a_suite_is_that_of_its_content_alone(tmp_path: Path) -> None:
    path = suite_file(tmp_path, make_case("a"), make_case("b"))
    before = load_suite(path).sha256
    path.write_text(json.dumps(json.loads(path.read_text()), indent=8))
    assert load_suite(path).sha256 == before
    suite_file(tmp_path, make_case("a"), make_case("b", expected="Hi"))
    assert load_suite(path).sha256 != before


# Checking


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (make_case(), "passed"),
        (make_case(expected="Hi"), "failed"),
        (make_case(expected="Hi", differs_on=["jinja2"]), "known"),
        (make_case(expected="Hi", differs_on={"jinja2": "because"}), "known"),
        (make_case(expected="Hi", differs_on=["minijinja"]), "failed"),
        (make_case(differs_on=["jinja2"]), "passed"),
        ({"name": "e", "messages": [{"role": "bad"}], "error": "No bad role."}, "passed"),
        ({"name": "e", "messages": [{"role": "bad"}], "error": "No bad role"}, "failed"),
        ({"name": "e", "messages": USER, "error": "No bad role."}, "failed"),
        (make_case(messages=[{"role": "bad"}]), "failed"),
    ],
)
def test_status_of_a_case(tmp_path: Path, case: dict[str, Any], status: str) -> None:
    report = check_file(suite_file(tmp_path, case))
    assert report.results[0].status == status
    assert report.ok is (status != "failed")


def test_template_that_fails_is_a_failure_with_its_line(tmp_path: Path) -> None:
    result = check_file(suite_file(tmp_path, make_case()), "\n{{ messages / 2 }}").results[0]
    assert result.status == "failed"
    assert "line 2" in (result.got_error or "")


def test_all_shipped_cases_take_well_under_a_second_of_processor_time() -> None:
    start = time.process_time()
    assert check_file(SHIPPED.golden_dir, SHIPPED.source).ok
    assert time.process_time() - start < 1.0


def test_report_is_the_same_for_the_same_results() -> None:
    suite = load_suite(SHIPPED.golden_dir)
    first, second = (check_golden(SHIPPED.source, suite, [Jinja2Engine()]).to_dict() for _ in range(2))
    assert first == second
    assert first["engines"][0]["passed"] == len(suite.cases)


@pytest.mark.parametrize(
    "change",
    [
        ("trim -%}", "  -%}"),
        ("'\\n</think>\\n\\n'", "'\\n</think>\\n'"),
        ("scan.depth == 0", "true"),
        ("indented.startswith(scan.fence)", "false"),
        ("line == '<tool_call>'", "indented == '<tool_call>'"),
        ("and not message.tool_calls", ""),
        ("not continuing and", ""),
        ("'</think>' not in turn.reasoning", "true"),
        ("'</think>' not in turn.text", "true"),
        ("{%- set scan.running = false -%}", ""),
        ("scan.depth + 1", "1"),
        ("message.role == 'developer'", "false"),
        ("loop.index0 > query.index", "loop.index0 >= query.index"),
        ("value if value is string else value|tojson", "value|tojson"),
        ("seen.images + 1", "seen.images + 2"),
    ],
)
def test_suite_notices_a_broken_template(change: tuple[str, str]) -> None:
    broken = SHIPPED.source.replace(*change)
    assert broken != SHIPPED.source
    assert not check_golden(broken, load_suite(SHIPPED.golden_dir), [Jinja2Engine()]).ok


def test_a_suite_without_cases_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no golden cases"):
        load_suite(suite_file(tmp_path))


def test_a_variable_may_be_called_self(tmp_path: Path) -> None:
    assert check_file(suite_file(tmp_path, make_case(kwargs={"self": 1}))).ok


def test_suites_of_one_case_have_a_name(tmp_path: Path) -> None:
    assert load_suite(suite_file(tmp_path, make_case())) == GoldenSuite(
        "golden", tuple(read_cases(tmp_path / "golden.json"))
    )
