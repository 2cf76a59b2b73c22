"""No output is an input, another output, or a part of a finished pack, however it is spelled."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import WrongUse
from strata_pack.outputs import check_file_output, check_outputs, is_same_file, pack_around
from tests.pack.tiny_gguf import STOCK
from tests.pack.tiny_pack import hashes, write_pack
from tests.tiny_models import write_model

CASES = {"cases": [{"name": "one", "messages": [{"role": "user", "content": "Hi"}], "expected": "user: Hi\n"}]}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a template, golden cases and a pack; ``link``, ``hard`` and ``here`` are other names."""
    (tmp_path / "mine.jinja").write_text(STOCK)
    (tmp_path / "golden.json").write_text(json.dumps(CASES))
    (tmp_path / "link").symlink_to("mine.jinja")
    (tmp_path / "here").symlink_to(".")
    os.link(tmp_path / "mine.jinja", tmp_path / "hard")
    write_pack(tmp_path / "pack", golden=CASES["cases"])
    return tmp_path


@pytest.mark.parametrize("output", ["mine.jinja", "link", "hard", "here/mine.jinja", "pack/../mine.jinja"])
def test_an_output_that_is_an_input_is_refused_by_any_name(place: Path, output: str) -> None:
    with pytest.raises(WrongUse, match="which this command reads"):
        check_outputs([place / output], [place / "mine.jinja"])


@pytest.mark.parametrize("inside", ["pack/model/tiny.gguf", "pack/model"])
def test_an_output_folder_that_holds_an_input_is_refused(place: Path, inside: str) -> None:
    with pytest.raises(WrongUse, match=r"would be replaced, and .* in it is read by this command"):
        check_outputs([place / "here/pack"], [place / inside])


def test_a_file_of_a_folder_that_is_read_is_refused(place: Path) -> None:
    with pytest.raises(WrongUse, match="is a file of"):
        check_outputs([place / "golden.json"], [place])


def test_a_new_file_in_a_folder_that_is_read_is_fine(place: Path) -> None:
    check_outputs([place / "report.json", place / "page.html"], [place])


def test_one_place_for_two_outputs_is_refused(place: Path) -> None:
    with pytest.raises(WrongUse, match="two outputs"):
        check_outputs([place / "new", place / "here/new"], [])


@pytest.mark.parametrize(
    "output",
    [
        *("pack/model/tiny.gguf", "pack/model/new.gguf", "pack/manifest.json", "pack/golden/x", "pack/tokenizer/x"),
        *("pack/new.gguf", "here/pack/deep/new.gguf"),
    ],
)
def test_an_output_inside_a_pack_is_refused(place: Path, output: str) -> None:
    with pytest.raises(WrongUse, match="belongs to the pack"):
        check_outputs([place / output], [])


@pytest.mark.parametrize("arguments", ["build {0}/pack --template keep", "publish {0}/pack --accept-licence --to"])
def test_no_pack_and_no_release_is_written_into_a_pack(place: Path, arguments: str) -> None:
    words = [*arguments.format(place).split(), *(["--out"] if "build" in arguments else []), str(place / "pack/inner")]
    before = sorted((place / "pack").rglob("*"))
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, "lies in" in done.stderr, sorted((place / "pack").rglob("*"))) == (2, True, before)


@pytest.mark.parametrize("output", ["pack/page.html", "pack/deep/page.html", "here/pack/template.jinja"])
def test_a_file_that_no_manifest_lists_is_refused_in_a_pack(place: Path, output: str) -> None:
    with pytest.raises(WrongUse, match=r"lies in the pack .* or into its folder reports"):
        check_outputs([place / output], [])


def test_a_report_may_lie_in_a_pack(place: Path) -> None:
    check_outputs([place / "pack/reports/page.html"], [place / "pack"])


def test_a_folder_called_model_is_no_pack(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert pack_around(tmp_path / "model/x.gguf") is None


def test_names_of_files_that_are_not_there_are_compared(place: Path) -> None:
    assert is_same_file(place / "new", place / "here/new")
    assert not is_same_file(place / "new", place / "newer")


@pytest.mark.parametrize("text", ["org/name", "auto", "a\0b", None])
def test_an_input_that_is_no_path_is_passed_over(place: Path, text: str | None) -> None:
    check_outputs([place / "new"], [text])


def test_a_file_that_is_there_is_refused_without_force(place: Path) -> None:
    with pytest.raises(WrongUse, match="exists already"):
        check_file_output(place / "golden.json", force=False)
    check_file_output(place / "golden.json", force=True)


def test_a_dangling_link_is_there(tmp_path: Path) -> None:
    (tmp_path / "q.gguf").symlink_to("nowhere")
    with pytest.raises(WrongUse, match="exists already"):
        check_file_output(tmp_path / "q.gguf", force=False)


COMMANDS = {
    "lint a template into itself": "template lint {place}/mine.jinja --sarif {place}/hard",
    "lint a pack into its manifest": "template lint {place}/pack --sarif {place}/pack/manifest.json",
    "check golden cases into themselves": "golden check {place}/mine.jinja --golden {place}/golden.json "
    "--junit {place}/here/golden.json",
    "check a template into itself": "golden check {place}/link --golden {place}/golden.json --sarif {place}/mine.jinja",
    "two reports in one place": "golden check {place}/mine.jinja --golden {place}/golden.json --junit {place}/a "
    "--sarif {place}/here/a",
    "smoke into its target": "smoke {place}/pack/model/tiny.gguf --html {place}/pack/model/tiny.gguf",
    "smoke into a pack": "smoke {place}/pack --junit {place}/pack/tokenizer/chat_template.jinja",
    "repair over a pack's template": "template repair {place}/pack -o {place}/pack/tokenizer/chat_template.jinja",
    "repair over the source": "template repair {place}/mine.jinja -o {place}/link",
    "add a case to a pack's cases": "golden add {place}/pack/golden/chat_golden.json {place}/golden.json --name x "
    "-t {place}/mine.jinja --yes",
    "add a conversation to itself": "golden add {place}/golden.json {place}/golden.json --name x -t {place}/mine.jinja",
    "fetch into a pack": "fetch org/name --out {place}/pack/model",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_writes_over_what_it_reads(place: Path, name: str) -> None:
    before = hashes(place)
    result = CliRunner().invoke(app, COMMANDS[name].format(place=place).split())
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    assert hashes(place) == before


def test_the_cases_of_a_pack_are_not_updated_in_it(place: Path) -> None:
    (place / "mine.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    before = hashes(place / "pack")
    arguments = ["golden", "update", str(place / "mine.jinja"), "--golden", str(place / "pack/golden"), "--yes"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    assert hashes(place / "pack") == before


@pytest.mark.parametrize("output", ["link.gguf", "Model/../Model/weights.gguf"])
def test_a_checkpoint_is_never_converted_onto_its_weights(tmp_path: Path, output: str) -> None:
    folder = write_model("qwen3", tmp_path / "Model")
    (weights,) = sorted(folder.glob("*.safetensors"))[:1]
    os.link(weights, folder / "weights.gguf")
    (tmp_path / "link.gguf").symlink_to(weights)
    before = hashes(folder)
    result = CliRunner().invoke(app, ["convert", str(folder), "--out", str(tmp_path / output), "--force"])
    assert (result.exit_code, "which this command reads" in result.stderr) == (2, True)
    assert hashes(folder) == before
