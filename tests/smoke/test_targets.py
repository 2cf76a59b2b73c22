"""What a smoke test can be pointed at: a pack, a real model, and the command line around both."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strata_pack.cli.app import app
from strata_pack.cli.output import Out
from strata_pack.cli.report_files import ReportFiles
from strata_pack.errors import BadInput
from strata_pack.pack.build import build_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.report import Report
from strata_pack.smoke.data_files import read_text
from strata_pack.smoke.run import SmokeOptions, run_smoke
from strata_pack.smoke.target import open_target
from strata_pack.weights.quantize.recipes import make_recipe
from tests.smoke.tiny import write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def pack(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "tiny"
    request = BuildRequest(source=str(tiny), out=out, recipe=make_recipe("Q8_0"), template="qwen3.8-flash-next")
    build_pack(request)
    return out


def test_a_pack_brings_template_hash_and_golden_cases(pack):
    target = open_target(pack)
    assert target.pinned_sha256 is not None
    assert target.suite is not None
    assert target.template_file is None


def test_a_pack_passes(pack, options):
    chosen = replace(options, only=("template-loaded", "golden", "round-trip"))
    report = run_smoke(pack, options=chosen)
    assert report.ok, [(check.id, check.detail) for check in report.checks if check.status != "passed"]
    assert "the manifest's" in report.checks[0].detail


def test_a_pack_whose_gguf_holds_another_template_fails(pack, options, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(pack, broken)
    (model,) = (broken / "model").glob("*.gguf")
    write_tiny_model(model, chat_template="{{- messages[0].content -}}")
    report = run_smoke(broken, options=replace(options, only=("template-loaded",)))
    assert report.checks[0].id == "template-loaded/gguf"
    assert report.checks[0].status == "failed"
    assert report.exit_code == 1


def test_a_pack_takes_no_other_template(pack):
    with pytest.raises(BadInput, match="has its own template"):
        open_target(pack, "qwen3.8-flash-next")


def test_a_vocabulary_without_the_format_s_tags_is_skipped_not_failed(smollm2, options):
    chosen = SmokeOptions(only=("special-tokens",), log_dir=options.log_dir)
    report = run_smoke(smollm2, template="qwen3.8-flash-next", options=chosen)
    assert report.ok, [(check.id, check.detail) for check in report.checks]
    assert {check.id for check in report.checks if check.status == "skipped"} == {"special-tokens/tags"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_smollm2_passes_every_scenario(smollm2):
    report = run_smoke(smollm2, template="qwen3.8-flash-next")
    assert report.ok, [(check.id, check.detail) for check in report.checks if check.status not in ("passed", "skipped")]


def test_the_command_writes_every_face_and_one_json_object(tiny, tmp_path):
    files = [tmp_path / name for name in ("r.html", "r.xml", "r.sarif")]
    options = [
        item for flag, path in zip(("--html", "--junit", "--sarif"), files, strict=True) for item in (flag, path)
    ]
    done = _run("smoke", str(tiny), "--only", "repair-content", "--json", *map(str, options))
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["passed"] == 1
    assert files[0].read_text().startswith("<!doctype html>")
    assert ET.parse(files[1]).getroot().get("tests") == "1"
    assert json.loads(files[2].read_text())["version"] == "2.1.0"


@pytest.mark.parametrize("flag", ["--html", "--junit", "--sarif"])
def test_a_report_s_path_is_tried_before_the_run(tiny, tmp_path, flag):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = _run("smoke", str(tiny), "--only", "repair-content", flag, str(blocked / "report"))
    assert done.exit_code == 2
    assert str(blocked / "report") in done.stderr
    assert done.stdout == ""


def test_a_report_that_cannot_be_written_costs_no_result_and_quiet_mode_says_why(tmp_path, capsys):
    out = Out("quiet")
    (tmp_path / "r.html").mkdir()
    code = ReportFiles(html=tmp_path / "r.html", junit=tmp_path / "r.xml").write(Report("t", ()), out)
    assert code == 3
    assert (tmp_path / "r.xml").is_file()
    assert capsys.readouterr().err.startswith("strata-pack: the report could not be written: ")


def test_a_failure_names_the_command_that_repeats_it(tmp_path, options):
    model = write_tiny_model(tmp_path / "a stock.gguf", chat_template=read_text("stock.xml.jinja"))
    report = run_smoke(model, options=replace(options, only=("round-trip",)))
    assert report.checks[0].repeat == f"strata-pack smoke '{model}' --only round-trip"


def test_the_command_fails_with_1_and_shows_the_difference(tmp_path):
    model = write_tiny_model(tmp_path / "stock.gguf", chat_template=read_text("stock.xml.jinja"))
    done = _run("smoke", str(model), "--only", "repair-reasoning", "--junit", str(tmp_path / "r.xml"))
    assert done.exit_code == 1
    assert "expected (red) and got (green)" in done.stdout
    assert "the call of list_jobs is inside the thinking" in (tmp_path / "r.xml").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("runtime", "list"), 0, "* embedded"),
        (("runtime", "check"), 0, "devices: CPU"),
        (("runtime", "check", "--llama-server", "/nowhere/llama-server"), 2, "not an executable llama-server"),
        (("runtime", "use", "cuda-nothing"), 2, "no runtime is called 'cuda-nothing'"),
        (("runtime", "build", "--backend", "cpu", "--arch", "90"), 2, "has no architectures"),
    ],
)
def test_the_runtime_command_answers(arguments, code, words):
    done = _run(*arguments)
    assert done.exit_code == code, done.stderr
    assert words in done.stdout + done.stderr


def test_runtime_check_says_whether_a_model_fits(tiny):
    assert _run("runtime", "check", "--model", str(tiny)).exit_code == 0
    done = _run("runtime", "check", "--model", str(tiny), "--context", "2000000000", "--json")
    assert done.exit_code == 1
    fit = json.loads(done.stdout)["fit"]
    assert fit["fits"] is False
    assert fit["kv_cache"] == 2_000_000_000 * 2 * (32 + 32)
