"""Templates of the whole family, each repaired by the tool, pass on a real server; unrepaired, each fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.render.template import read_template
from strata_pack.chat.repair.repair import prelude, repair_template
from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.source_code import fetch_source, unpack_source
from strata_pack.report import Report
from strata_pack.smoke.data_files import Form
from strata_pack.smoke.run import SmokeOptions, run_smoke
from strata_pack.smoke.scenario import scenarios
from tests.conftest import ROOT
from tests.smoke.test_scenarios import NOT_PLAYED
from tests.smoke.tiny import write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")

KINDS: dict[str, Form] = {"qwen3_like": "json", "coder_like": "xml", "qwen38_like": "xml"}
"""The stock templates, each with the form of its calls."""
ONCE = ("long-argument", "parallel", "mentions")
"""What is the parser's half of the repair, and the same whatever the template: played in full on one of them."""
UNREPAIRED_FAIL = ("repair-reasoning", "repair-content", "repair-adjacent", "repair-dropped-thinking", "repair-answer")
FAMILY = ("Qwen*.jinja", "StepFun3.5*.jinja")


def _repaired(template: str) -> str:
    result = repair_template(template, [Jinja2Engine()])
    assert result.changed
    return result.text


def _play(template: str, tmp_path: Path, only: tuple[str, ...] = ()) -> Report:
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=template)
    return run_smoke(model, options=SmokeOptions(only=only, threads=1, log_dir=tmp_path))


def _assert_passed(report: Report) -> None:
    wrong = [(check.id, check.status, check.detail) for check in report.checks if check.status != "passed"]
    assert [entry for entry in wrong if entry[0] not in ("golden", *NOT_PLAYED)] == []
    assert report.exit_code == 0


@pytest.fixture(scope="module")
def stock() -> dict[str, str]:
    return {name: read_template(ROOT / f"tests/data/chat/stock/{name}.jinja") for name in KINDS}


@pytest.mark.parametrize("name", KINDS)
def test_a_template_repaired_by_the_tool_passes(name, stock, tmp_path):
    # The template without thinking plays everything; that is what needs no thinking in it.
    left_out = () if name == "coder_like" else ONCE
    played = tuple(one.id for one in scenarios() if "native" in one.needs and one.id not in left_out)
    # What the tool makes of these three is this, by tests/chat/repair, which proves it.
    _assert_passed(_play(prelude(KINDS[name]) + stock[name], tmp_path, played))


@pytest.mark.parametrize("name", KINDS)
def test_a_template_that_is_not_repaired_fails(name, stock, tmp_path):
    report = _play(stock[name], tmp_path, UNREPAIRED_FAIL)
    assert {check.status for check in report.checks} == {"failed"}
    assert report.exit_code == 1


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> list[Path]:
    """The templates of the family that llama.cpp publishes, out of its pinned source archive."""
    try:
        archive = fetch_source(ROOT / ".cache")
    except EnvironmentFailure as error:
        pytest.skip(f"the source archive of llama.cpp cannot be fetched ({error})")
    folder = unpack_source(archive, tmp_path_factory.mktemp("source")) / "models/templates"
    return sorted(path for pattern in FAMILY for path in folder.glob(pattern))


@pytest.mark.slow
@pytest.mark.registry
@pytest.mark.timeout(2400)
def test_every_published_template_of_the_family_passes_repaired_and_fails_as_it_is(published, tmp_path):
    assert {"Qwen-Qwen3-0.6B", "Qwen-QwQ-32B", "Qwen3-Coder", "Qwen3.5-4B"} <= {path.stem for path in published}
    for path in published:
        template = read_template(path)
        _assert_passed(_play(_repaired(template), tmp_path))
        assert _play(template, tmp_path).exit_code == 1, path.name
