"""``strata-pack golden`` as a person or a script runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strata_pack.chat.library import load_shipped
from strata_pack.cli.app import app

SHIPPED = load_shipped("qwen3.8-flash-next")
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
USER = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "my.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "golden.json"
    path.write_text(json.dumps([{"name": "hi", "messages": USER, "kwargs": {}, "expected": "Hi \n"}]))
    return path


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["golden", *map(str, arguments)])


def test_check_without_a_target_checks_what_is_shipped() -> None:
    done = _run("check")
    assert done.exit_code == 0
    assert SHIPPED.id in done.stdout


def test_check_of_a_shipped_file_finds_its_own_cases() -> None:
    assert _run("check", SHIPPED.path).exit_code == 0


def test_check_in_json_is_one_object_on_stdout() -> None:
    result = json.loads(_run("check", SHIPPED.id, "--json").stdout)
    assert (result["ok"], result["targets"][0]["engines"][0]["failed"]) == (True, 0)


@pytest.mark.xdist_group("template-server")
def test_check_on_all_engines_is_a_matrix_of_results() -> None:
    result = json.loads(_run("check", SHIPPED.id, "-e", "all", "--json").stdout)
    engines = {engine["name"]: engine["failed"] for engine in result["targets"][0]["engines"]}
    assert {"jinja2", "llama.cpp"} <= set(engines)
    assert set(engines.values()) == {0}


def test_difference_leaves_with_1(template: Path, suite: Path) -> None:
    assert _run("check", template, "--golden", suite).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["check", "nothing.jinja"], "neither a file, a pack"),
        (["check", "{template}"], "name them with --golden"),
        (["check", "-e", "hf"], "no engine is called"),
        (["check", "{template}", "--golden", "nothing.json"], "no such file"),
        (["update", "{template}", "--golden", "{suite}"], "run again with --yes"),
    ],
)
def test_wrong_use_leaves_with_2_and_says_what_to_do(
    template: Path, suite: Path, arguments: list[str], said: str
) -> None:
    done = _run(*(text.format(template=template, suite=suite) for text in arguments))
    assert (done.exit_code, said in done.stderr) == (2, True), done.output


def test_faces_for_machines_are_written(template: Path, suite: Path, tmp_path: Path) -> None:
    junit, sarif = tmp_path / "out" / "j.xml", tmp_path / "out" / "s.sarif"
    _run("check", template, "--golden", suite, "--junit", junit, "--sarif", sarif)
    assert "<failure" in junit.read_text()
    assert len(json.loads(sarif.read_text())["runs"][0]["results"]) == 1


def test_github_annotations_are_printed_in_a_workflow_only(
    template: Path, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert "::error" not in _run("check", template, "--golden", suite).stdout
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert f"::error file={template}" in _run("check", template, "--golden", suite).stdout


def test_list_names_every_case() -> None:
    listed = json.loads(_run("list", SHIPPED.id, "--json").stdout)
    assert "golden: effort low" in listed["targets"][0]["cases"]


def test_add_shows_the_prompt_and_writes_it(template: Path, suite: Path, tmp_path: Path) -> None:
    talk = tmp_path / "talk.json"
    talk.write_text(json.dumps(USER))
    done = _run("add", suite, talk, "--name", "again", "-t", template, "--yes")
    assert (done.exit_code, "Hi↵" in done.stdout) == (0, True), done.output
    assert json.loads(suite.read_text())[1]["expected"] == "Hi\n"


def test_add_without_a_person_and_without_yes_shows_and_does_not_write(
    template: Path, suite: Path, tmp_path: Path
) -> None:
    talk, before = tmp_path / "talk.json", suite.read_text()
    talk.write_text(json.dumps(USER))
    done = _run("add", suite, talk, "--name", "again", "-t", template)
    assert (done.exit_code, "Hi↵" in done.stdout, suite.read_text()) == (2, True, before)


def test_update_shows_the_difference_before_it_writes(template: Path, suite: Path) -> None:
    done = _run("update", template, "--golden", suite, "--yes")
    assert (done.exit_code, "differs at character 2" in done.stdout) == (0, True)
    assert _run("check", template, "--golden", suite).exit_code == 0


def test_show_prints_the_template_as_it_is() -> None:
    done = CliRunner().invoke(app, ["template", "show", SHIPPED.id])
    assert done.stdout == SHIPPED.source
