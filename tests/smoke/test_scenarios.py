"""Every scenario on a real llama.cpp server with a tiny random model: it passes, and it can fail."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.report import schema
from strata_pack.smoke.data_files import read_text
from strata_pack.smoke.run import SmokeOptions, run_smoke
from strata_pack.smoke.scenario import scenarios
from tests.smoke.conftest import TEMPLATE
from tests.smoke.tiny import write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")

STOCK = Path(__file__).parents[1] / "data/chat/stock"
NOT_PLAYED = ("source-shape", "projector", "perplexity", "images", "draft-head")
"""What a tiny model alone lacks: a source, a projector, a vocabulary that reads, a draft head."""

NATIVE = [scenario.id for scenario in scenarios() if "native" in scenario.needs]


def _of(report, scenario):
    return [check for check in report.checks if check.id.split("/")[0] == scenario]


@pytest.mark.parametrize("scenario", NATIVE)
def test_a_random_tiny_model_passes(whole, scenario):
    checks = _of(whole, scenario)
    assert checks
    wanted = "skipped" if scenario in NOT_PLAYED else "passed"
    assert {check.status for check in checks} == {wanted}, [check.detail for check in checks]


def test_the_report_is_good_and_fits_its_schema(whole):
    assert (whole.status, whole.exit_code) == ("passed", 0)
    jsonschema.validate(whole.to_dict(), schema())


def test_the_report_says_on_what_it_was_made(whole):
    assert whole.facts["compute"] == "CPU"
    assert TEMPLATE in whole.facts["template"]
    assert "of weights" in whole.facts["memory"]
    assert whole.facts["runtime"].startswith("embedded")
    assert whole.facts["runtime"].endswith("the CPU")


def test_the_ids_of_the_checks_are_unique(whole):
    ids = [check.id for check in whole.checks]
    assert len(set(ids)) == len(ids)


def test_the_prefix_cache_table_has_a_row_for_each_turn_and_the_chart_a_bar_after_the_first(whole):
    (check,) = _of(whole, "prefix-cache")
    assert len(check.table.rows) == 6
    assert {len(values) for values in check.chart.series.values()} == {5}


def test_echoing_the_thinking_reads_less_again_than_stripping_it(whole):
    (check,) = _of(whole, "prefix-cache")
    echoed = sum(row[2] for row in check.table.rows[1:])
    stripped = sum(row[4] for row in check.table.rows[1:])
    assert echoed < stripped


def test_the_server_s_own_parser_is_recorded_on_every_replay(whole):
    recorded = {check.id: check.data["replies"] for check in whole.checks if check.id.endswith("/server-parser")}
    assert {id_: len(replies) for id_, replies in recorded.items()} == {
        "stranded-call/server-parser": 4,
        "mentions/server-parser": 10,
    }


def test_the_control_s_turn_is_in_the_report(whole):
    (check,) = _of(whole, "repair-reasoning")
    assert "inside the thinking" in check.data["control_faults"][0]


REPAIRS = ("repair-reasoning", "repair-content", "repair-adjacent", "repair-dropped-thinking", "repair-answer")


@pytest.fixture(scope="module")
def stock(tmp_path_factory, options):
    """The same with the stock-like template in the model: what the smoke test is there to find."""
    folder = tmp_path_factory.mktemp("stock")
    model = write_tiny_model(folder / "stock.gguf", chat_template=read_text("stock.xml.jinja"))
    wanted = (*REPAIRS, "repair-shapes", "round-trip")
    return run_smoke(model, options=SmokeOptions(only=wanted, threads=1, log_dir=options.log_dir))


@pytest.mark.parametrize(
    "check",
    [
        *REPAIRS,
        *("repair-shapes", "round-trip/reasoning_content", "round-trip/inline"),
    ],
)
def test_an_unrepaired_template_fails(stock, check):
    (found,) = [one for one in stock.checks if one.id == check]
    assert found.status == "failed"
    assert stock.exit_code == 1


def test_a_failure_carries_prompt_texts_and_the_server_s_log(stock):
    (found,) = [one for one in stock.checks if one.id == "repair-reasoning"]
    assert found.prompt.startswith("<|im_start|>user")
    assert "</think>\n\n<tool_call>" in found.expected
    assert found.expected != found.got
    assert found.log


def test_a_template_file_other_than_the_model_s_own_is_what_the_server_uses(tmp_path, options):
    model = write_tiny_model(tmp_path / "m.gguf", chat_template="{{- messages[0].content -}}")
    chosen = SmokeOptions(only=("template-loaded", "repair-content"), threads=1, log_dir=options.log_dir)
    report = run_smoke(model, template=TEMPLATE, options=chosen)
    assert [check.id for check in report.checks if check.status == "passed"] == [
        "template-loaded/given",
        "template-loaded/file",
        "template-loaded/capabilities",
        "repair-content",
    ]


def test_a_model_without_a_template_skips_what_needs_one(tmp_path, options):
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=None)
    wanted = ("chat-template", "golden", "repair-content")
    report = run_smoke(model, options=SmokeOptions(only=wanted, log_dir=options.log_dir))
    assert [(check.id, check.status) for check in report.checks] == [
        *(("chat-template", "failed"), ("golden", "skipped"), ("repair-content", "skipped"))
    ]
    assert report.checks[0].detail == "the model has no chat template: no client can talk to it"
    assert report.exit_code == 1


def test_a_run_in_which_nothing_was_played_is_not_in_order(tmp_path, options):
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=None)
    report = run_smoke(model, options=SmokeOptions(only=("golden",), log_dir=options.log_dir))
    assert (report.checks[0].id, report.status, report.exit_code) == ("played", "error", 3)
    assert report.checks[0].detail == "no scenario was run, so nothing is proved: the model has no chat template"


@pytest.mark.parametrize("name", ["no_calls", "other_calls"])
def test_a_template_that_cannot_call_tools_is_reported_first(name, tmp_path, options):
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=(STOCK / f"{name}.jinja").read_text())
    wanted = ("repair-content", "round-trip", "chat-template")
    report = run_smoke(model, options=SmokeOptions(only=wanted, threads=1, log_dir=options.log_dir))
    assert (report.checks[0].id, report.checks[0].status, report.exit_code) == ("chat-template", "failed", 1)
    assert report.checks[0].detail.startswith("the template cannot call tools: it ")
    assert {check.status for check in report.checks[1:]} == {"skipped"}


def test_a_golden_case_that_renders_differently_fails_by_name(tmp_path, tiny, options):
    cases = json.loads((load_shipped(TEMPLATE).golden_dir / "golden.json").read_text(encoding="utf-8"))[:3]
    cases[1]["expected"] = cases[1]["expected"].replace("assistant", "helper")
    file = tmp_path / "golden.json"
    file.write_text(json.dumps(cases), encoding="utf-8")
    report = run_smoke(tiny, suite=file, options=SmokeOptions(only=("golden",), threads=1, log_dir=options.log_dir))
    statuses = [check.status for check in report.checks]
    assert statuses == ["failed", "failed"]
    assert "2 of 3 identical" in report.checks[0].detail
    assert "helper" in report.checks[1].expected


JSON_TEMPLATE = """{#- A thinking template of the JSON form with the history repaired, for this test alone. -#}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- set r = (m.reasoning_content or '')|trim -%}{%- set t = (m.content or '')|trim -%}
{%- if t.startswith('<think>') -%}{%- set r = t[7:]|trim -%}{%- set t = '' -%}{%- endif -%}
{%- set parts = r.split('<tool_call>\\n{') -%}
{%- if parts|length > 1 and r.endswith('</tool_call>') -%}
{%- set t = r[parts[0]|length:] -%}{%- set r = parts[0]|trim -%}
{%- endif -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if preserve_thinking is not defined or preserve_thinking -%}
{{- '<think>\\n' + r + '\\n</think>\\n\\n' -}}{%- endif -%}
{{- t -}}
{%- if m.tool_calls -%}{%- for c in m.tool_calls -%}
{{- '<tool_call>\\n{"name": ' -}}{{- c.function.name|tojson -}}{{- ', "arguments": ' -}}
{{- c.function.arguments|tojson -}}{{- '}\\n</tool_call>' -}}{%- endfor -%}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- else -%}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}"""


def test_a_family_of_the_json_form_is_played_in_its_own_form(tmp_path, options):
    ChatTemplate(JSON_TEMPLATE)
    model = write_tiny_model(tmp_path / "json.gguf", chat_template=JSON_TEMPLATE)
    wanted = ("repair-reasoning", "repair-content", "round-trip", "stranded-call", "mentions")
    report = run_smoke(model, options=SmokeOptions(only=wanted, threads=1, log_dir=options.log_dir))
    assert report.ok, [(check.id, check.detail, check.got) for check in report.checks if check.status != "passed"]
