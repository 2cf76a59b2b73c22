"""``ChatTemplate``: compiled once, rendered as transformers renders, its errors with line and cause."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest

from strata_pack.chat.golden.cases import GoldenCase, load_suite
from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import (
    ChatTemplate,
    RenderLimits,
    TemplateError,
    TemplateLimit,
    TemplateRefused,
    in_thinking,
    read_template,
)
from strata_pack.errors import BadInput

USER = [{"role": "user", "content": "Hi"}]
SHIPPED = load_shipped("qwen3.8-flash-next")
SUITE = load_suite(SHIPPED.golden_dir)
TEMPLATE = ChatTemplate(SHIPPED.source)


def _render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render(USER, **variables)


@pytest.fixture(scope="module")
def compile_by_transformers() -> Any:
    """transformers' own compiler of templates, to which a rendering hands the variables as they are."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    return utils._compile_jinja_template


def _outcome(render: Callable[[], str], refusal: type[Exception]) -> tuple[str, str]:
    try:
        return "prompt", render()
    except refusal as error:
        return "refused", getattr(error, "message", None) or str(error)


@pytest.mark.parametrize("case", SUITE.cases, ids=lambda case: case.id)
def test_renders_what_transformers_renders(case: GoldenCase, compile_by_transformers: Any) -> None:
    theirs = compile_by_transformers(SHIPPED.source)
    expected = _outcome(lambda: theirs.render(**case.inputs()), jinja2.TemplateError)
    assert _outcome(lambda: TEMPLATE.render(**case.inputs()), TemplateRefused) == expected


DATA = Path(__file__).parents[2] / "data" / "chat"
CONSTRUCTS = json.loads((DATA / "constructs.json").read_text())


@pytest.mark.parametrize("source", CONSTRUCTS.values(), ids=CONSTRUCTS.keys())
def test_construct_renders_as_in_transformers(source: str, compile_by_transformers: Any) -> None:
    theirs = compile_by_transformers(source).render(
        messages=USER, tools=None, documents=None, add_generation_prompt=False
    )
    assert _render(source) == theirs


def test_date_is_todays() -> None:
    from datetime import datetime

    assert _render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_syntax_error_says_its_line() -> None:
    with pytest.raises(TemplateError) as caught:
        ChatTemplate("a\nb\n{% if %}")
    assert caught.value.line == 3
    assert "line 3" in str(caught.value)


def test_error_in_a_macro_says_the_line_in_the_macro() -> None:
    with pytest.raises(TemplateError) as caught:
        _render("{% macro m(x) %}\n\n{{ x / 2 }}\n{% endmacro %}\n\n\n{{ m('a') }}")
    assert caught.value.line == 3
    assert "unsupported operand" in caught.value.cause


def test_missing_value_is_named() -> None:
    with pytest.raises(TemplateError, match="'nothing' is undefined"):
        _render("{{ nothing.more }}")


def test_unknown_filter_is_named_with_its_line() -> None:
    with pytest.raises(TemplateError, match="line 2: No filter named 'shout'"):
        ChatTemplate("\n{{ 'a'|shout }}")


def test_refusal_is_the_exact_message_with_its_line() -> None:
    with pytest.raises(TemplateRefused) as caught:
        _render("\n{{ raise_exception('Say  it\n<once>.') }}")
    assert (caught.value.message, caught.value.line) == ("Say  it\n<once>.", 2)


def test_template_errors_are_bad_input() -> None:
    assert issubclass(TemplateError, BadInput)
    assert issubclass(TemplateRefused, TemplateError)


@pytest.mark.parametrize(
    ("limits", "source", "said"),
    [
        (RenderLimits(source_bytes=10), "é" * 6, "larger than 10 bytes"),
        (RenderLimits(nodes=10), "{{ a }}" * 10, "more than 10 statements"),
        (RenderLimits(text_chars=10), "{% for i in [1, 2] %}abcdef{% endfor %}", "more than 10 characters"),
        (
            RenderLimits(steps=100),
            "{% for i in range(99) %}{% for j in range(9) %}{% endfor %}{% endfor %}",
            "100 steps",
        ),
        (RenderLimits(seconds=0.0), "{% for i in range(999) %}{% endfor %}", "0 seconds"),
        (
            RenderLimits(made_chars=100),
            "{% for i in range(99) %}{% set x = 'ab' * 2 %}{% endfor %}",
            "100 characters of text",
        ),
    ],
    ids=["source", "nodes", "text", "steps", "time", "text on the way"],
)
def test_limit_is_kept_and_named(limits: RenderLimits, source: str, said: str) -> None:
    with pytest.raises(TemplateLimit, match=said):
        ChatTemplate(source, limits=limits).render(USER)


def test_large_conversation_stays_within_the_limits() -> None:
    turns = [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "line\n" * 2000}] * 100
    prompt = TEMPLATE.render([*turns, *USER], add_generation_prompt=True)
    assert len(prompt) > 1_900_000


def test_inputs_may_be_heavier_than_what_a_template_may_build() -> None:
    heavy = [0] * 2_200_000
    assert ChatTemplate("{{ x == messages }}").render(USER, x=heavy) == "False"


def test_deeply_nested_template_is_refused() -> None:
    with pytest.raises(TemplateError):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_lists_that_hold_themselves_end_in_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TemplateError):
        ChatTemplate("{{ x|tojson }}").render(USER, x=endless)


def test_two_threads_render_at_the_same_time_with_a_budget_each() -> None:
    template = ChatTemplate("{% for i in range(20000) %}{% endfor %}ok", limits=RenderLimits(steps=30_000))
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(template.render(USER))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["ok"] * 4


@pytest.mark.parametrize(
    ("prompt", "thinking"),
    [
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>user\n<think><|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>user\n<think>", False),
        ("<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\n<think>\nso far", True),
        ("<|im_start|>assistant\n<think>\na\n</think>\n\nThe tag <think> opens", False),
        ("<s>[INST] Hi [/INST]<think>\n", True),
        ("<s>[INST] Hi [/INST]", False),
        ("", False),
    ],
)
def test_in_thinking_is_what_the_open_turn_says(prompt: str, thinking: bool) -> None:
    assert in_thinking(prompt) is thinking
    assert TEMPLATE.in_thinking(prompt) is thinking


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"\xef\xbb\xbfa\r\nb\rc\n", "a\nb\nc\n"), ("é{{ 1 }}".encode(), "é{{ 1 }}")],
    ids=["BOM and CR", "plain"],
)
def test_template_file_is_read_with_lf_and_without_bom(tmp_path: Path, data: bytes, text: str) -> None:
    path = tmp_path / "t.jinja"
    path.write_bytes(data)
    assert read_template(path) == text


@pytest.mark.parametrize(("data", "said"), [(b"\xff\xfe", "not UTF-8"), (b"x" * 200_000, "larger than")])
def test_template_file_that_is_none_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "t.jinja"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=said):
        read_template(path)


PORTABLE_WORDS = ("namespace", "raise_exception", "loop.previtem", "loop.nextitem", "split('\\n')")
FORBIDDEN = (
    ".find(", ".index(", ".rfind(", ".count(", "splitlines", "partition", "rsplit", "removeprefix", ".join(", "split()",
    "//", "**", "{% with", "{% raw", "recursive", "cycle", ".append(", "dict(", "sameas", "|list", "default(",
)  # fmt: skip


def test_shipped_template_keeps_to_the_portable_subset() -> None:
    assert [word for word in FORBIDDEN if word in SHIPPED.source] == []
    assert [word for word in PORTABLE_WORDS if word not in SHIPPED.source] == []
