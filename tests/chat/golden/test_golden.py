"""Golden suites: read in two forms, checked, shown, changed."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.golden.cases import GoldenSuite, load_suite, read_cases
from strata_pack.chat.golden.check import GoldenReport, check_golden
from strata_pack.chat.golden.edit import plan_add, plan_update, write
from strata_pack.chat.golden.output import github_annotations, terminal, to_report
from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import BadInput, WrongUse
from strata_pack.report import junit, sarif

SHIPPED = load_shipped("qwen3.8-flash-next")
ECHO = (
    "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('No bad role.') }}{% endif %}"
    "{{ m.content }}\n{% endfor %}"
)
USER = [{"role": "user", "content": "Hi"}]


def _case(name: str = "hi", **changes: Any) -> dict[str, Any]:
    return {"name": name, "messages": USER, "kwargs": {}, "expected": "Hi\n", **changes}


def _file(folder: Path, *cases: Any, name: str = "golden.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(list(cases), ensure_ascii=False))
    return path


def _check(path: Path, source: str = ECHO) -> GoldenReport:
    return check_golden(source, load_suite(path), [Jinja2Engine()])


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
    read = read_cases(_file(tmp_path, case))[0]
    assert (read.expected, read.error) == (expected, error)


def test_flat_form_gives_the_variables_beside_the_messages(tmp_path: Path) -> None:
    flat = {"messages": USER, "add_generation_prompt": True, "enable_thinking": False, "rendered": "x", "comment": 1}
    assert read_cases(_file(tmp_path, flat))[0].variables == {"add_generation_prompt": True, "enable_thinking": False}


def test_flat_form_without_a_generation_prompt_means_with_one(tmp_path: Path) -> None:
    assert read_cases(_file(tmp_path, {"messages": USER, "rendered": "x"}))[0].variables == {
        "add_generation_prompt": True
    }
    nested = {"messages": USER, "kwargs": {"add_generation_prompt": False}, "hf": "x"}
    assert read_cases(_file(tmp_path, nested))[0].variables == {"add_generation_prompt": False}


def test_cases_may_stand_in_an_object(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"name": "mine", "cases": [_case()]}))
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
    _file(tmp_path, _case("a"), name="1.json")
    _file(tmp_path, _case("a"), name="2.json")
    with pytest.raises(BadInput, match="two cases are called 'a'"):
        load_suite(tmp_path)


def test_empty_folder_is_no_suite(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no golden cases"):
        load_suite(tmp_path)


def test_hash_of_a_suite_is_that_of_its_content_alone(tmp_path: Path) -> None:
    path = _file(tmp_path, _case("a"), _case("b"))
    before = load_suite(path).sha256
    path.write_text(json.dumps(json.loads(path.read_text()), indent=8))
    assert load_suite(path).sha256 == before
    _file(tmp_path, _case("a"), _case("b", expected="Hi"))
    assert load_suite(path).sha256 != before


# Checking


@pytest.mark.parametrize(
    ("case", "status"),
    [
        (_case(), "passed"),
        (_case(expected="Hi"), "failed"),
        (_case(expected="Hi", differs_on=["jinja2"]), "known"),
        (_case(expected="Hi", differs_on={"jinja2": "because"}), "known"),
        (_case(expected="Hi", differs_on=["minijinja"]), "failed"),
        (_case(differs_on=["jinja2"]), "passed"),
        ({"name": "e", "messages": [{"role": "bad"}], "error": "No bad role."}, "passed"),
        ({"name": "e", "messages": [{"role": "bad"}], "error": "No bad role"}, "failed"),
        ({"name": "e", "messages": USER, "error": "No bad role."}, "failed"),
        (_case(messages=[{"role": "bad"}]), "failed"),
    ],
)
def test_status_of_a_case(tmp_path: Path, case: dict[str, Any], status: str) -> None:
    report = _check(_file(tmp_path, case))
    assert report.results[0].status == status
    assert report.ok is (status != "failed")


def test_template_that_fails_is_a_failure_with_its_line(tmp_path: Path) -> None:
    result = _check(_file(tmp_path, _case()), "\n{{ messages / 2 }}").results[0]
    assert result.status == "failed"
    assert "line 2" in (result.got_error or "")


def test_all_shipped_cases_take_well_under_a_second_of_processor_time() -> None:
    start = time.process_time()
    assert _check(SHIPPED.golden_dir, SHIPPED.source).ok
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


# Faces


@pytest.fixture
def report(tmp_path: Path) -> GoldenReport:
    cases = [
        _case("good"),
        _case("bad", expected="Hi \n\tyou"),
        _case("odd", expected="Ho", differs_on={"jinja2": "it is old"}),
    ]
    return _check(_file(tmp_path, *cases))


def _shown(report: GoldenReport) -> str:
    stream = StringIO()
    Console(file=stream, width=120).print(terminal(report, "my.jinja"))
    return stream.getvalue()


def test_terminal_shows_white_space_of_the_difference(report: GoldenReport) -> None:
    assert "[-·-]↵\n" in _shown(report).replace("[-·-]\n", "[-·-]↵\n")
    assert "⇥" in _shown(report)


def test_terminal_says_where_the_texts_part(report: GoldenReport) -> None:
    assert "differs at character 2 (line 1)" in _shown(report)


def test_terminal_names_known_differences_with_their_reason(report: GoldenReport) -> None:
    assert "jinja2: it is old: odd" in _shown(report)


def test_junit_holds_every_case_once(report: GoldenReport) -> None:
    suite = ET.fromstring(junit(to_report([("my.jinja", report)])))[0]
    found = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert found == {
        "golden/jinja2/golden: good": [],
        "golden/jinja2/golden: bad": ["failure"],
        "golden/jinja2/golden: odd": ["skipped"],
    }


def test_sarif_holds_the_failures_at_the_template(report: GoldenReport) -> None:
    results = json.loads(sarif(to_report([("my.jinja", report)])))["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["golden/jinja2/golden: bad"]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "my.jinja"


def test_github_annotation_is_one_escaped_line(tmp_path: Path) -> None:
    report = _check(_file(tmp_path, _case("100%\nsure", expected="x")))
    (line,) = github_annotations(report, "a,b:c.jinja")
    assert line.startswith("::error file=a%2Cb%3Ac.jinja,title=golden jinja2::golden: 100%25%0Asure: differs at")


# Changing


def _conversation(folder: Path, content: Any) -> Path:
    path = folder / "talk.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "content",
    [
        USER,
        {"model": "m", "messages": USER, "temperature": 1},
        {"messages": USER, "chat_template_kwargs": {"add_generation_prompt": True}},
    ],
    ids=["messages", "request body", "with variables"],
)
def test_added_case_holds_what_the_template_renders(tmp_path: Path, content: Any) -> None:
    suite = tmp_path / "golden.json"
    write(plan_add(suite, _conversation(tmp_path, content), "hi", ChatTemplate(ECHO)))
    (case,) = read_cases(suite)
    assert (case.name, case.expected, case.variables) == ("hi", "Hi\n", {"add_generation_prompt": True})


def test_added_conversation_that_is_refused_becomes_an_error_case(tmp_path: Path) -> None:
    change = plan_add(tmp_path / "a.json", _conversation(tmp_path, [{"role": "bad"}]), "bad", ChatTemplate(ECHO))
    assert change.cases[0].error == "No bad role."


def test_planning_writes_nothing(tmp_path: Path) -> None:
    plan_add(tmp_path / "a.json", _conversation(tmp_path, USER), "hi", ChatTemplate(ECHO))
    assert not (tmp_path / "a.json").exists()


def test_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="a case called 'hi' already"):
        plan_add(_file(tmp_path, _case()), _conversation(tmp_path, USER), "hi", ChatTemplate(ECHO))


def test_file_that_is_no_conversation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no conversation"):
        plan_add(tmp_path / "a.json", _conversation(tmp_path, {"a": 1}), "hi", ChatTemplate(ECHO))


def test_update_changes_the_failing_results_and_nothing_else(tmp_path: Path) -> None:
    cases = [
        _case("good", note="kept"),
        _case("was a prompt", messages=[{"role": "bad"}]),
        {"name": "was an error", "messages": USER, "error": "No.", "why": "kept"},
        {"messages": USER, "hf": "old", "extra": 1},
    ]
    path = tmp_path / "golden.json"
    path.write_text(json.dumps({"title": "kept", "cases": cases}, indent=3))
    (change,) = plan_update([path], _check(path))
    write(change)
    assert _check(path).ok
    data = json.loads(path.read_text())
    assert data["title"] == "kept"
    assert data["cases"][0] == cases[0]
    assert data["cases"][2] == {"name": "was an error", "messages": USER, "why": "kept", "expected": "Hi\n"}
    assert data["cases"][3] == {**cases[3], "hf": "Hi\n"}
    assert path.read_text().startswith('{\n   "title"')


HAND_WRITTEN = (
    "\ufeff"
    '{"title": "k\\u00e9pt", "number": 1.50, "cases": [\r\n'
    '  {"name": "good", "messages": [ {"role":"user","content":"Hi"} ], "expected": "Hi\\n"},\n'
    '\t{ "messages" : [{"role": "user", "content": "Hi"}], "name":"stale" , "expected" : "old" },\r\n'
    '  {"name": "was an error", "error": "No.", "messages": [{"role": "user", "content": "Hi"}]},\r\n'
    '  {"name": "both", "error": "No.", "expected": null, "messages": [{"role": "user", "content": "Hi"}]}]}\r\n'
    "\r\n"
)
"""A byte order mark, line ends of two kinds, escapes, and no indentation that a program would write."""
UPDATES = {
    '"expected" : "old"': '"expected" : "Hi\\n"',
    '"was an error", "error": "No."': '"was an error", "expected": "Hi\\n"',
    '"error": "No.", "expected": null': '"error": null, "expected": "Hi\\n"',
}


def _replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_update_keeps_every_other_byte_of_a_file_written_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_bytes(HAND_WRITTEN.encode())
    (change,) = plan_update([path], _check(path))
    write(change)
    assert path.read_bytes() == _replaced(HAND_WRITTEN, UPDATES).encode()
    assert _check(path).ok


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["no mark", "byte order mark"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("indent", [None, 1, 2, "\t"])
@pytest.mark.parametrize("within", [False, True], ids=["a list", "an object"])
def test_an_added_case_is_written_as_the_one_before_it(
    tmp_path: Path, mark: str, line_end: str, indent: int | str | None, within: bool
) -> None:
    def text(*cases: Any) -> bytes:
        data = {"title": "t", "cases": list(cases)} if within else list(cases)
        return (mark + json.dumps(data, indent=indent) + "\n").replace("\n", line_end).encode()

    path = tmp_path / "golden.json"
    path.write_bytes(text(_case("one"), _case("two")))
    write(plan_add(path, _conversation(tmp_path, {"messages": USER}), "three", ChatTemplate(ECHO)))
    assert path.read_bytes() == text(_case("one"), _case("two"), _case("three", kwargs={"add_generation_prompt": True}))


def test_a_case_is_added_to_an_object_without_cases(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_bytes(b'\xef\xbb\xbf{"cases": [ ], "title": "kept"}\r\n')
    write(plan_add(path, _conversation(tmp_path, USER), "hi", ChatTemplate(ECHO)))
    assert [case.name for case in read_cases(path)] == ["hi"]
    assert path.read_bytes().endswith(b', "title": "kept"}\r\n')


def test_update_of_a_suite_that_holds_plans_nothing(tmp_path: Path) -> None:
    path = _file(tmp_path, _case())
    assert plan_update([path], _check(path)) == []


def test_update_of_the_flat_form_records_a_refusal_that_can_be_read(tmp_path: Path) -> None:
    flat = {"messages": [{"role": "bad"}], "add_generation_prompt": True, "rendered": "old"}
    path = _file(tmp_path, flat)
    (change,) = plan_update([path], _check(path))
    write(change)
    assert _check(path).ok
    assert json.loads(path.read_text()) == [{**flat, "rendered": {"error": "No bad role."}}]


def test_half_a_character_is_written_so_that_it_can_be_read(tmp_path: Path) -> None:
    path = _file(tmp_path, _case())
    talk = tmp_path / "talk.json"
    talk.write_text('[{"role": "user", "content": "a \\ud83d b"}]')
    write(plan_add(path, talk, "half", ChatTemplate(ECHO)))
    assert [case.expected for case in read_cases(path)] == ["Hi\n", "a \ud83d b\n"]


def test_update_keeps_an_indentation_by_tabs(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_text(json.dumps([_case(expected="old")], indent="\t"))
    (change,) = plan_update([path], _check(path))
    assert change.text == json.dumps([_case()], indent="\t")


def test_a_suite_without_cases_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no golden cases"):
        load_suite(_file(tmp_path))


def test_a_number_may_be_the_id_of_a_case(tmp_path: Path) -> None:
    path = _file(tmp_path, {"id": 7, "messages": USER, "rendered": "old"})
    (change,) = plan_update([path], _check(path))
    assert [case.name for case in change.cases] == ["7"]
    assert '"rendered": "Hi' in change.text


def test_a_case_without_a_name_is_not_added(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="--name"):
        plan_add(tmp_path / "golden.json", _conversation(tmp_path, USER), "", ChatTemplate(ECHO))


def test_a_conversation_that_sets_messages_twice_is_refused(tmp_path: Path) -> None:
    talk = _conversation(tmp_path, {"messages": USER, "chat_template_kwargs": {"messages": []}})
    with pytest.raises(BadInput, match="second time"):
        plan_add(tmp_path / "golden.json", talk, "twice", ChatTemplate(ECHO))


def test_a_variable_may_be_called_self(tmp_path: Path) -> None:
    assert _check(_file(tmp_path, _case(kwargs={"self": 1}))).ok


def test_shipped_suite_is_written_back_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "repair.json"
    path.write_bytes((SHIPPED.golden_dir / "repair.json").read_bytes())
    change = plan_add(path, _conversation(tmp_path, USER), "one more", ChatTemplate(SHIPPED.source))
    assert change.text.startswith(path.read_text().rstrip().removesuffix("]").rstrip())


def test_suites_of_one_case_have_a_name(tmp_path: Path) -> None:
    assert load_suite(_file(tmp_path, _case())) == GoldenSuite("golden", tuple(read_cases(tmp_path / "golden.json")))
