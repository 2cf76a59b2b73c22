"""Prefix stability: where a prompt leaves what the cache holds, why, and what must be read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.chat.prefix.measure import check_prefix, tag_start
from strata_pack.chat.prefix.output import screen
from strata_pack.chat.prefix.report import PrefixReport, Run
from strata_pack.chat.prefix.session import Session, bundled_session, load_session
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.errors import BadInput
from strata_pack.prefixes import common_length

STOCK = Path(__file__).parents[2] / "data/chat/stock"


def template(name: str) -> ChatTemplate:
    if name == "shipped":
        return ChatTemplate(load_shipped("qwen3.8-flash-next").source)
    return ChatTemplate((STOCK / f"{name}.jinja").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shipped() -> PrefixReport:
    return check_prefix(template("shipped"), bundled_session())


def causes(run: Run) -> list[str]:
    return [step.broken.cause.id for step in run.steps if step.broken is not None]


def test_with_thinking_kept_every_prompt_continues_the_one_before(shipped: PrefixReport) -> None:
    run = shipped.run("kept")
    assert run.stable
    assert (run.again, run.whole) == (0, 0)
    assert len(run.steps) == 10


def test_with_thinking_dropped_each_new_question_breaks_the_prefix(shipped: PrefixReport) -> None:
    run = shipped.run("dropped")
    assert [step.turn for step in run.steps if step.broken] == [5, 9]
    assert causes(run) == ["thinking-dropped-by-query"] * 2
    assert [step.broken.turn for step in run.steps if step.broken] == [1, 6]


def test_with_thinking_stripped_by_the_client_every_turn_breaks_the_prefix(shipped: PrefixReport) -> None:
    run = shipped.run("stripped")
    assert causes(run) == ["thinking-not-sent"] * 10
    assert [step.broken.turn for step in run.steps if step.broken] == list(range(1, 11))


def test_what_is_read_again_is_less_than_all_that_was_known(shipped: PrefixReport) -> None:
    for mode in ("dropped", "stripped"):
        run = shipped.run(mode)
        assert 0 < run.again < run.whole
        assert run.fresh == shipped.run("kept").fresh


@pytest.mark.parametrize("name", ["shipped", "qwen3_like", "qwen35_like", "qwen38_like", "coder_like"])
def test_the_parts_of_each_prompt_add_up(name: str) -> None:
    for run in check_prefix(template(name), bundled_session()).runs:
        for step in run.steps:
            assert step.fresh >= 0
            assert step.again >= 0
            assert step.fresh + step.again <= step.prompt
            if step.broken is None:
                assert step.again == 0


def test_a_break_shows_both_texts_from_the_same_place(shipped: PrefixReport) -> None:
    first = shipped.run("stripped").steps[0].broken
    assert first is not None
    assert first.before.endswith("<|im_start|>assistant\n<think>\n")
    assert first.cached.startswith("The import fails on an empty amount.")
    assert first.sent.startswith("\n</think>\n\n<tool_call>\n")
    assert first.why == "the client sent turn 1 back without its thinking"
    assert "reasoning_content" in first.cause.remedy


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("qwen3_like", "kept", ["thinking-dropped-by-query"] * 2),
        ("qwen35_like", "kept", ["thinking-dropped-by-query"] * 2),
        ("qwen38_like", "kept", []),
        ("coder_like", "kept", []),
        ("coder_like", "stripped", []),
        ("qwen3_like", "stripped", ["thinking-not-sent"] * 10),
        (
            "qwen35_like",
            "stripped",
            ["thinking-dropped-by-query" if turn in (5, 9) else "thinking-not-sent" for turn in range(1, 11)],
        ),
    ],
)
def test_each_shape_breaks_for_its_own_reason(name: str, mode: Any, expected: list[str]) -> None:
    assert causes(check_prefix(template(name), bundled_session(), [mode]).run(mode)) == expected


@pytest.mark.parametrize(("name", "honours"), [("shipped", True), ("qwen38_like", True), ("qwen35_like", False)])
def test_it_says_whether_the_template_reads_preserve_thinking(name: str, honours: bool) -> None:
    assert check_prefix(template(name), bundled_session(), ["kept"]).honours_preserve is honours


def turn(content: str, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "reasoning_content": "Thought.", **keys}


def asked(*messages: dict[str, Any], **variables: Any) -> Session:
    return Session(
        "here", [{"role": "user", "content": "One."}, *messages, {"role": "user", "content": "Two."}], None, variables
    )


def only_break(name: str, session: Session) -> Any:
    steps = check_prefix(template(name), session, ["kept"]).run("kept").steps
    return next((step.broken for step in steps if step.broken), None)


def test_a_text_that_the_template_trims_is_a_rewritten_turn() -> None:
    broken = only_break("shipped", asked(turn("Done.", generated="Thought.\n</think>\n\nDone.  \n")))
    assert (broken.cause.id, broken.turn, broken.cached) == ("turn-rewritten", 1, "  \n")


def test_the_recorded_text_of_the_model_counts_if_there_is_one() -> None:
    assert only_break("shipped", asked(turn("Done.", generated="Thought.\n</think>\n\nDone."))) is None


def test_an_empty_think_block_of_the_generation_prompt_that_the_history_lacks_is_named() -> None:
    broken = only_break("qwen35_like", asked(turn("Done.", reasoning_content=""), enable_thinking=False))
    assert broken.turn == 1
    assert broken.cause.id == "generation-prompt"
    assert broken.cached.startswith("<think>\n\n</think>")


def test_a_prompt_whose_beginning_changes_is_named() -> None:
    moving = ChatTemplate(
        "{{ messages|length }} turns\n{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    broken = check_prefix(moving, asked(turn("Done."))).run("kept").steps[0].broken
    assert broken is not None
    assert (broken.cause.id, broken.turn, broken.at) == ("prompt-start", None, 0)


def test_a_template_that_opens_a_thinking_it_never_writes_loses_it() -> None:
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    )
    broken = check_prefix(ChatTemplate(source), asked(turn("Done."))).run("kept").steps[0].broken
    assert broken is not None
    assert broken.cached == "<think>\nThought.\n</think>\n\nDone."


def test_a_session_without_a_turn_that_goes_on_is_refused() -> None:
    with pytest.raises(BadInput, match="no assistant turn"):
        check_prefix(template("shipped"), Session("x", [{"role": "user", "content": "One."}]))


def test_the_tokens_of_a_real_tokenizer_are_counted() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    texts = [json.dumps(bundled_session().messages)]
    model.train_from_iterator(texts, tokenizers.trainers.WordLevelTrainer(special_tokens=["[UNK]"]))
    report = check_prefix(
        template("shipped"), bundled_session(), tokenizer=lambda text: model.encode(text, add_special_tokens=False).ids
    )
    kept, stripped = report.run("kept"), report.run("stripped")
    assert kept.again_tokens == 0
    assert stripped.again_tokens is not None
    assert stripped.fresh_tokens is not None
    assert 0 < stripped.again_tokens < stripped.again


def test_json_holds_every_step_and_why() -> None:
    data = json.loads(json.dumps(check_prefix(template("qwen35_like"), bundled_session()).to_dict()))
    assert [run["mode"] for run in data["runs"]] == ["kept", "dropped", "stripped"]
    step = data["runs"][0]["steps"][4]
    assert (step["turn"], step["break"]["cause"]) == (5, "thinking-dropped-by-query")
    assert data["honours_preserve_thinking"] is False


def test_the_terminal_shows_turns_reasons_and_costs() -> None:
    from rich.console import Console

    report = check_prefix(template("qwen35_like"), bundled_session())
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(screen(report, "qwen35_like"))
    text = console.export_text()
    assert "✗ thinking kept" in text
    assert "a new user message makes the template drop the thinking" in text
    assert "help   send reasoning_content back" in text
    assert "+167%" in text
    assert "does not read preserve_thinking" in text
    assert max(len(line) for line in text.splitlines()) <= 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("5", "neither a list of messages"),
        ('{"messages": 1}', "neither a list of messages"),
        ("[1]", "message 1 is not an object with a role"),
        ('[{"role": "user"}, {"role": 1}]', "message 2 is not an object with a role"),
        ('[{"role": "assistant", "tool_calls": [1]}]', '"tool_calls" is not a list of objects'),
        ('{"messages": [], "tools": 1}', '"tools" is not a list'),
    ],
)
def test_a_file_that_is_no_session_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "session.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=message) as refused:
        load_session(file)
    assert refused.value.where == str(file)


def test_the_body_of_a_chat_request_is_a_session(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "ping", "arguments": '{"host": "a"}'}}
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "One."}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        "tools": [],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body), encoding="utf-8")
    session = load_session(file)
    assert session.messages[1]["tool_calls"][0]["function"]["arguments"] == {"host": "a"}
    assert session.variables == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("a", "b", "length"), [("", "", 0), ("abc", "abd", 2), ("abc", "abcd", 3), ("x", "y", 0), ("same", "same", 4)]
)
def test_the_common_length_is_that_of_the_common_beginning(a: str, b: str, length: int) -> None:
    assert common_length(a, b) == length


@pytest.mark.parametrize(
    ("text", "at", "start"), [("a<think>", 3, 1), ("a<b>c", 5, 5), ("a < b", 5, 2), ("<\nx", 3, 3), ("abc", 2, 2)]
)
def test_a_place_inside_a_tag_moves_to_its_start(text: str, at: int, start: int) -> None:
    assert tag_start(text, at) == start


@pytest.mark.parametrize("mode", ["kept", "dropped", "stripped"])
def test_the_figures_in_the_documentation_are_the_ones_it_gives(mode: Any, shipped: PrefixReport) -> None:
    text = (STOCK.parent.parent.parent.parent / "docs/agent-clients.md").read_text(encoding="utf-8")
    run = shipped.run(mode)
    row = next(line for line in text.splitlines() if line.startswith(f"| thinking {mode}"))
    assert row.endswith(f"| {run.fresh:,} | {run.again:,} | +{run.again / run.fresh:.0%} | {run.whole:,} |")


def test_the_documented_cost_of_a_template_that_always_drops_is_the_real_one() -> None:
    text = (STOCK.parent.parent.parent.parent / "docs/agent-clients.md").read_text(encoding="utf-8")
    report = check_prefix(template("qwen35_like"), bundled_session())
    shares = {run.mode.name: f"+{run.again / run.fresh:.0%}" for run in report.runs}
    assert f"kept and dropped both cost {shares['kept']}" in text
    assert f"stripped {shares['stripped']}" in " ".join(text.split())


THINKS_WHEN_ASKED = """{%- set last = namespace(query=0) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.query = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{{ '<|im_start|>' ~ m.role ~ '\n' }}
{%- if m.role == 'assistant' and enable_thinking is defined and enable_thinking is true and loop.index0 > last.query -%}
{{ '<think>\n' ~ (m.reasoning_content or '') ~ '\n</think>\n\n' }}
{%- endif -%}
{{ m.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is true -%}
{{ '<think>\n' }}
{%- else -%}
{{ '<think>\n\n</think>\n\n' }}
{%- endif -%}
{%- endif -%}"""


def test_a_template_that_closes_the_thinking_by_default_is_measured_with_thinking_on() -> None:
    report = check_prefix(ChatTemplate(THINKS_WHEN_ASKED), bundled_session(), ["kept"])
    assert [step.turn for step in report.run("kept").steps if step.broken] == [5, 9]
    assert all("does not write the thinking" not in step.broken.why for step in report.run("kept").steps if step.broken)


def test_a_template_that_can_only_close_the_thinking_is_measured_with_a_session_without_it() -> None:
    closed = THINKS_WHEN_ASKED.replace("enable_thinking is defined and enable_thinking is true", "false")
    report = check_prefix(ChatTemplate(closed), bundled_session(), ["kept"])
    causes_seen = set(causes(report.run("kept")))
    assert causes_seen <= {"generation-prompt"}


def test_a_session_that_says_whether_to_think_is_not_changed() -> None:
    session = Session("here", bundled_session().messages, None, {"enable_thinking": False})
    assert check_prefix(ChatTemplate(THINKS_WHEN_ASKED), session, ["kept"]).session is session
