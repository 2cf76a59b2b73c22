"""Every engine renders the shipped template as its golden cases say, and differs only where they say why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_pack.chat.engines.engines import IN_PROCESS, Engine, Jinja2Engine, open_engines
from strata_pack.chat.engines.packages import MinijinjaEngine
from strata_pack.chat.engines.server import LlamaServerEngine, serve_template
from strata_pack.chat.golden.cases import GoldenCase, GoldenSuite, load_suite
from strata_pack.chat.golden.check import BOTH_REFUSE, CaseResult, check_golden
from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import TemplateError, TemplateRefused
from strata_pack.errors import WrongUse
from strata_pack.llama.server import LlamaServer
from strata_pack.llama.stub_model import write_stub_model

SHIPPED = load_shipped("qwen3.8-flash-next")
SUITE = load_suite(SHIPPED.golden_dir)
SERVER = pytest.mark.xdist_group("template-server")

USER = [{"role": "user", "content": "Hi"}]
REPAIR_CALL = "      {{- close_thinking(turn) -}}\n"
REFUSING = "{{ raise_exception('Not today: ' ~ messages[0].content) }}"


def _run(engine: Engine, case: GoldenCase) -> CaseResult:
    return check_golden(SHIPPED.source, GoldenSuite("one", (case,)), [engine]).results[0]


@pytest.fixture(scope="module", params=list(IN_PROCESS))
def engine(request: pytest.FixtureRequest) -> Engine:
    package, make = IN_PROCESS[request.param]
    pytest.importorskip(package)
    return make()


@pytest.fixture(scope="session")
def server() -> Iterator[LlamaServer]:
    with serve_template(SHIPPED.source) as running:
        yield running


@pytest.mark.parametrize("case", SUITE.cases, ids=lambda case: case.id)
def test_engine_renders_the_case_or_differs_as_recorded(case: GoldenCase, engine: Engine) -> None:
    result = _run(engine, case)
    assert result.status == ("known" if engine.name in case.differs_on else "passed"), result.to_dict()


@SERVER
@pytest.mark.parametrize("case", SUITE.cases, ids=lambda case: case.id)
def test_llama_server_renders_the_case_or_differs_as_recorded(case: GoldenCase, server: LlamaServer) -> None:
    result = _run(LlamaServerEngine(server), case)
    refused_by_both = result.reason == BOTH_REFUSE and case.error is not None
    expected = "known" if "llama-server" in case.differs_on or refused_by_both else "passed"
    assert result.status == expected, result.to_dict()


@pytest.mark.parametrize("case", [case for case in SUITE.cases if case.differs_on], ids=lambda case: case.id)
def test_known_difference_has_a_reason(case: GoldenCase) -> None:
    assert all(case.differs_on.values())


@SERVER
def test_llama_server_derives_the_recorded_capabilities(server: LlamaServer) -> None:
    assert server.client.props().template_caps == SHIPPED.llama_server_caps
    assert len(SHIPPED.llama_server_caps) == 9


@SERVER
def test_llama_server_derives_the_same_capabilities_without_the_repair() -> None:
    assert SHIPPED.source.count(REPAIR_CALL) == 1
    with serve_template(SHIPPED.source.replace(REPAIR_CALL, "")) as unrepaired:
        assert unrepaired.client.props().template_caps == SHIPPED.llama_server_caps


@SERVER
def test_server_engine_refuses_a_template_that_is_not_its_own(server: LlamaServer) -> None:
    with pytest.raises(WrongUse, match="another template"):
        LlamaServerEngine(server).render("{{ messages[0].content }}", {"messages": USER})


@SERVER
def test_template_that_llama_server_cannot_start_with_is_a_template_error() -> None:
    with pytest.raises(TemplateError, match="does not start"), serve_template("{% for x in %}"):
        pass


@SERVER
def test_llama_server_with_prefill_keeps_a_last_assistant_turn_from_the_template(tmp_path: Path) -> None:
    """What docs/golden.md says about continued turns: no template sees them, so none can repair them."""
    template = tmp_path / "chat_template.jinja"
    template.write_text(SHIPPED.source)
    stranded = "Need it.\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
    messages = [*USER, {"role": "assistant", "content": "", "reasoning_content": stranded}]
    model = write_stub_model(tmp_path / "stub.gguf")
    with LlamaServer.start(model, template_file=template, context=256, warmup=False) as prefilling:
        assert prefilling.client.apply_template(messages).endswith(f"<think>\n{stranded}")
    assert "Need it.\n</think>" in Jinja2Engine().render(SHIPPED.source, {"messages": messages})


def test_refusal_carries_the_exact_message(engine: Engine) -> None:
    with pytest.raises(TemplateRefused) as caught:
        engine.render(REFUSING, {"messages": USER})
    assert caught.value.message == "Not today: Hi"


@SERVER
def test_refusal_of_llama_server_carries_the_exact_message() -> None:
    source = "{% if messages[0].content == 'No' %}" + REFUSING + "{% endif %}{{ messages[0].content }}"
    with serve_template(source) as running, pytest.raises(TemplateRefused) as caught:
        LlamaServerEngine(running).render(source, {"messages": [{"role": "user", "content": "No"}]})
    assert caught.value.message == "Not today: No"


def test_template_that_does_not_compile_is_a_template_error(engine: Engine) -> None:
    with pytest.raises(TemplateError):
        engine.render("{% if %}", {"messages": USER})


def test_template_that_fails_is_a_template_error_and_no_refusal(engine: Engine) -> None:
    with pytest.raises(TemplateError) as caught:
        engine.render("{{ messages[0].content / 2 }}", {"messages": USER})
    assert not isinstance(caught.value, TemplateRefused)


def test_unknown_engine_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(WrongUse, match="jinja2, minijinja, transformers"), open_engines(["hf"], "x"):
        pass


def test_minijinja_knows_the_time_as_the_reference_does() -> None:
    pytest.importorskip("minijinja")
    assert MinijinjaEngine().render("{{ strftime_now('%Y')|length }}", {"messages": USER}) == "4"


def test_minijinja_indents_json_and_refuses_the_options_that_it_lacks() -> None:
    pytest.importorskip("minijinja")
    engine = MinijinjaEngine()
    indented = "{{ messages|tojson(indent=2) }}"
    assert engine.render(indented, {"messages": USER}) == Jinja2Engine().render(indented, {"messages": USER})
    with pytest.raises(TemplateError, match="ensure_ascii"):
        engine.render("{{ messages|tojson(ensure_ascii=false) }}", {"messages": USER})
