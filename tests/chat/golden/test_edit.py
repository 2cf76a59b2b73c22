"""Adding cases to golden files and updating them, without another byte changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.golden.cases import read_cases
from strata_pack.chat.golden.edit import plan_add, plan_update, write
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import BadInput, WrongUse
from tests.chat.golden.suites import ECHO, SHIPPED, USER, check_file, make_case, suite_file

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
        plan_add(suite_file(tmp_path, make_case()), _conversation(tmp_path, USER), "hi", ChatTemplate(ECHO))


def test_file_that_is_no_conversation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no conversation"):
        plan_add(tmp_path / "a.json", _conversation(tmp_path, {"a": 1}), "hi", ChatTemplate(ECHO))


def test_update_changes_the_failing_results_and_nothing_else(tmp_path: Path) -> None:
    cases = [
        make_case("good", note="kept"),
        make_case("was a prompt", messages=[{"role": "bad"}]),
        {"name": "was an error", "messages": USER, "error": "No.", "why": "kept"},
        {"messages": USER, "hf": "old", "extra": 1},
    ]
    path = tmp_path / "golden.json"
    path.write_text(json.dumps({"title": "kept", "cases": cases}, indent=3))
    (change,) = plan_update([path], check_file(path))
    write(change)
    assert check_file(path).ok
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
    (change,) = plan_update([path], check_file(path))
    write(change)
    assert path.read_bytes() == _replaced(HAND_WRITTEN, UPDATES).encode()
    assert check_file(path).ok


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
    path.write_bytes(text(make_case("one"), make_case("two")))
    write(plan_add(path, _conversation(tmp_path, {"messages": USER}), "three", ChatTemplate(ECHO)))
    assert path.read_bytes() == text(
        make_case("one"), make_case("two"), make_case("three", kwargs={"add_generation_prompt": True})
    )


def test_a_case_is_added_to_an_object_without_cases(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_bytes(b'\xef\xbb\xbf{"cases": [ ], "title": "kept"}\r\n')
    write(plan_add(path, _conversation(tmp_path, USER), "hi", ChatTemplate(ECHO)))
    assert [case.name for case in read_cases(path)] == ["hi"]
    assert path.read_bytes().endswith(b', "title": "kept"}\r\n')


def test_update_of_a_suite_that_holds_plans_nothing(tmp_path: Path) -> None:
    path = suite_file(tmp_path, make_case())
    assert plan_update([path], check_file(path)) == []


def test_update_of_the_flat_form_records_a_refusal_that_can_be_read(tmp_path: Path) -> None:
    flat = {"messages": [{"role": "bad"}], "add_generation_prompt": True, "rendered": "old"}
    path = suite_file(tmp_path, flat)
    (change,) = plan_update([path], check_file(path))
    write(change)
    assert check_file(path).ok
    assert json.loads(path.read_text()) == [{**flat, "rendered": {"error": "No bad role."}}]


def test_half_a_character_is_written_so_that_it_can_be_read(tmp_path: Path) -> None:
    path = suite_file(tmp_path, make_case())
    talk = tmp_path / "talk.json"
    talk.write_text('[{"role": "user", "content": "a \\ud83d b"}]')
    write(plan_add(path, talk, "half", ChatTemplate(ECHO)))
    assert [case.expected for case in read_cases(path)] == ["Hi\n", "a \ud83d b\n"]


def test_update_keeps_an_indentation_by_tabs(tmp_path: Path) -> None:
    path = tmp_path / "golden.json"
    path.write_text(json.dumps([make_case(expected="old")], indent="\t"))
    (change,) = plan_update([path], check_file(path))
    assert change.text == json.dumps([make_case()], indent="\t")


def test_a_number_may_be_the_id_of_a_case(tmp_path: Path) -> None:
    path = suite_file(tmp_path, {"id": 7, "messages": USER, "rendered": "old"})
    (change,) = plan_update([path], check_file(path))
    assert [case.name for case in change.cases] == ["7"]
    assert '"rendered": "Hi' in change.text


def test_a_case_without_a_name_is_not_added(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="--name"):
        plan_add(tmp_path / "golden.json", _conversation(tmp_path, USER), "", ChatTemplate(ECHO))


def test_a_conversation_that_sets_messages_twice_is_refused(tmp_path: Path) -> None:
    talk = _conversation(tmp_path, {"messages": USER, "chat_template_kwargs": {"messages": []}})
    with pytest.raises(BadInput, match="second time"):
        plan_add(tmp_path / "golden.json", talk, "twice", ChatTemplate(ECHO))


def test_shipped_suite_is_written_back_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "repair.json"
    path.write_bytes((SHIPPED.golden_dir / "repair.json").read_bytes())
    change = plan_add(path, _conversation(tmp_path, USER), "one more", ChatTemplate(SHIPPED.source))
    assert change.text.startswith(path.read_text().rstrip().removesuffix("]").rstrip())
