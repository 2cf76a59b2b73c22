"""The canary names what a template loses or moves, which no golden case is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.repair.repair import prelude
from strata_pack.smoke.canary import canaries, faults
from strata_pack.smoke.run import SmokeOptions, run_smoke
from strata_pack.smoke.values import rendered_by_jinja2
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
    "white space in questions is collapsed": (
        "'<|im_start|>user\\n' ~ said ~",
        "'<|im_start|>user\\n' ~ said.replace('\\n\\n', '\\n') ~",
        "the user message (whole05canary) is changed",
    ),
    "the descriptions of tools are cut": (
        "tool|tojson",
        "dict(tool.function, description=tool.function.description[:60])|tojson",
        "a tool's description (wholeabout0canary) is changed",
    ),
    "letters in declarations are escaped": (
        "tool|tojson",
        "tool|tojson(ensure_ascii=True)",
        "a tool's description (wholeabout0canary) is changed",
    ),
    "old turns have another role": (
        "{{- '<|im_start|>assistant\\n' }}\n        {%- if preserve",
        "{{- '<|im_start|>model\\n' }}\n        {%- if preserve",
        "the content next to a call (whole07canary) is in a turn of the role model",
    ),
    "results have no marks": (
        "'\\n<tool_response>\\n' ~ said ~ '\\n</tool_response>'",
        "'\\n' ~ said",
        "nothing marks the result of a call (whole09canary) as one",
    ),
    "a late system message is dropped": (
        "elif not loop.first",
        "elif false",
        "the system message (late03canary) is lost",
    ),
    "no line feed follows a question": (
        "said ~ '<|im_end|>\\n' }}\n    {%- elif message.role == 'assistant'",
        "said ~ '<|im_end|>' }}\n    {%- elif message.role == 'assistant'",
        "2 of 8 <|im_end|> are not followed by a line feed",
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


def _found(template: str) -> list[str]:
    """The faults of all canaries, rendered as by a server; a refused conversation has none."""
    found: list[str] = []
    for canary in canaries(thinks=True, calls=True):
        prompt = rendered_by_jinja2(template, canary.messages, canary.tools)
        assert prompt is not None or canary.may_refuse
        found += faults(canary, prompt) if prompt is not None else ()
    return found


def test_a_healthy_template_has_no_fault():
    assert _found(REPAIR + STOCK) == []


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_the_template_is_found_and_named(name):
    found = _found(_template(name))
    assert any(fault.startswith(DEFECTS[name][2]) for fault in found), found


def test_a_prompt_of_another_family_is_not_held_against_the_turn_marks_of_this_one():
    (canary,) = [one for one in canaries(thinks=True, calls=False) if one.name == "plain"]
    prompt = "".join(f"<|{message['role']}|>{message['content']}<|im_end|>" for message in canary.messages)
    assert list(faults(canary, f"{prompt}<|assistant|><think>\n")) == []


def test_a_defect_that_is_found_fails_the_run(tmp_path, options):
    report = _run(_template("results are emptied"), tmp_path, options, "canary")
    by_id = {check.id: check.status for check in report.checks}
    assert by_id == {
        "canary/whole": "failed",
        "canary/plain": "passed",
        "canary/toolless": "passed",
        "canary/bare": "failed",
        "canary/late": "passed",
        "canary/open-turn": "passed",
        "canary/arguments": "passed",
        "canary/declarations": "passed",
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
