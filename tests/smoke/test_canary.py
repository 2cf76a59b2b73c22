"""The canary names what a template loses or moves: seven defects that no golden case is there to find."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.render.template import ChatTemplate
from strata_pack.chat.repair.repair import prelude
from strata_pack.smoke.canary import Canary, canaries, faults
from strata_pack.smoke.run import SmokeOptions, run_smoke
from tests.smoke.tiny import write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")

STOCK = (Path(__file__).parents[1] / "data/chat/stock/qwen38_like.jinja").read_text(encoding="utf-8")
REPAIR = prelude("xml")

DEFECTS = {
    "tools are never rendered": ("opening or tools", "opening", "the name of a tool (wholetool0canary) is there"),
    "calls of the history are dropped": ("turn_calls", "", "the argument of a call (whole"),
    "results are emptied": ("~ said ~ '\\n</tool_response>'", "~ '\\n</tool_response>'", "the result of a call (whole"),
    "content next to calls is dropped": (
        "{{- said }}",
        "{{- '' if message.tool_calls else said }}",
        "the content next to a call (whole",
    ),
    "the parameters of tools are dropped": (
        "tool|tojson",
        "{'name': tool.function.name, 'description': tool.function.description}|tojson",
        "a parameter's name (wholekey0canary) is lost",
    ),
    "arguments lose their names": (
        "'<parameter=' ~ name ~",
        "'<parameter=it' ~",
        "a parameter's name (wholekey0canary) is",
    ),
    "a call is not closed": (
        "'</function>\\n</tool_call>'",
        "'</function>\\n'",
        "<tool_call> is there 3 times and </tool_call> 0 times",
    ),
    "a result is not closed": ("~ said ~ '\\n</tool_response>'", "~ said", "<tool_response> is there 3 times"),
    "thinking is not closed": ("~ thought ~ '\\n</think>\\n\\n'", "~ thought ~ '\\n'", "<think> is there 3 times"),
    "questions are written in lower case": (
        "'<|im_start|>user\\n' ~ said ~",
        "'<|im_start|>user\\n' ~ said|lower ~",
        "the user message (whole",
    ),
    "questions are cut": (
        "'<|im_start|>user\\n' ~ said ~",
        "'<|im_start|>user\\n' ~ said[:90] ~",
        "the user message (whole",
    ),
    "questions are escaped": (
        "'<|im_start|>user\\n' ~ said ~",
        "'<|im_start|>user\\n' ~ said|e ~",
        "the user message (whole",
    ),
    "a role stands in the line of its text": (
        "'<|im_start|>user\\n' ~ said",
        "'<|im_start|>user ' ~ said",
        "no line feed",
    ),
    "a turn is not closed": (
        "{%- endfor %}\n        {{- '<|im_end|>\\n' }}",
        "{%- endfor %}\n        {{- '\\n' if message.tool_calls else '<|im_end|>\\n' }}",
        "a turn of the role assistant has no <|im_end|>",
    ),
}


def _with(source: str, old: str, new: str) -> str:
    assert old in source
    return source.replace(old, new)


def _run(template: str, tmp_path: Path, options: SmokeOptions, *only: str):
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=template)
    return run_smoke(model, options=SmokeOptions(only=only, threads=1, log_dir=options.log_dir))


def _template(name: str) -> str:
    old, new, _ = DEFECTS[name]
    if old == "turn_calls":
        return REPAIR + _with(STOCK, "for call in message.tool_calls or []", "for call in []")
    if old == "opening or tools":
        return REPAIR + _with(_with(STOCK, old, new), "{%- if tools %}", "{%- if false %}")
    return REPAIR + _with(STOCK, old, new)


def _read(canary: Canary) -> list[dict[str, Any]]:
    """The messages with arguments as objects, as a server hands them to a template."""
    messages = copy.deepcopy(canary.messages)
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def test_a_healthy_template_has_no_fault():
    template = ChatTemplate(REPAIR + STOCK)
    for canary in canaries(thinks=True, calls=True):
        prompt = template.render(_read(canary), canary.tools, add_generation_prompt=True)
        assert list(faults(canary, prompt)) == []


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_the_template_is_found_and_named(name):
    template = ChatTemplate(_template(name))
    found = [
        fault
        for canary in canaries(thinks=True, calls=True)
        for fault in faults(canary, template.render(_read(canary), canary.tools, add_generation_prompt=True))
    ]
    assert any(fault.startswith(DEFECTS[name][2]) for fault in found), found


def test_a_defect_that_is_found_fails_the_run(tmp_path, options):
    report = _run(_template("results are emptied"), tmp_path, options, "canary")
    by_id = {check.id: check.status for check in report.checks}
    assert by_id == {
        "canary/whole": "failed",
        "canary/plain": "passed",
        "canary/toolless": "passed",
        "canary/bare": "failed",
        "canary/mentions": "passed",
    }


def test_a_repair_that_moves_mentions_fails(tmp_path, options):
    careless = _with(REPAIR, "strata_bare.startswith('```')", "strata_bare.startswith('no fence')")
    careless = _with(careless, "strata_bare.startswith('~~~')", "strata_bare.startswith('no fence')")
    report = _run(careless + STOCK, tmp_path, options, "canary")
    (check,) = [one for one in report.checks if one.status == "failed"]
    assert check.id == "canary/mentions"
    assert "open-fence" in check.detail


def test_a_repair_only_for_empty_content_fails(tmp_path, options):
    careless = _with(REPAIR, "not strata_turn.tool_calls", "not strata_turn.tool_calls and not strata_turn.content")
    report = _run(careless + STOCK, tmp_path, options, "repair-reasoning", "repair-answer", "repair-shapes")
    assert [(check.id, check.status) for check in report.checks] == [
        *(("repair-reasoning", "passed"), ("repair-answer", "failed"), ("repair-shapes", "failed"))
    ]


def test_a_template_that_refuses_the_conversation_fails(tmp_path, options):
    refusing = "{%- if messages|length > 2 %}{{- raise_exception('too long') }}{%- endif %}" + REPAIR + STOCK
    report = _run(refusing, tmp_path, options, "canary")
    assert "too long" in report.checks[0].detail
