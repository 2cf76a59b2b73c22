"""Arguments, declarations and the open turn of a template that breaks them; the stock templates break none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata_pack.chat.render.template import ChatTemplate
from strata_pack.smoke import values
from strata_pack.smoke.context import SmokeContext, Target
from strata_pack.smoke.scenario import scenarios

STOCK = Path(__file__).parents[1] / "data/chat/stock"
(SCENARIO,) = [scenario for scenario in scenarios() if scenario.id == "canary"]


def _context(template: str) -> SmokeContext:
    """A context whose server renders with jinja2 and hands arguments over as text if the template asks for it."""
    as_text = "arguments is string" in template

    def render(messages: Any, tools: Any = None, chat_template_kwargs: Any = None) -> str:
        if chat_template_kwargs is not None:
            return ChatTemplate(template).render(messages, tools, add_generation_prompt=True, **chat_template_kwargs)
        prompt = values.rendered_by_jinja2(template, messages, tools, as_text=as_text)
        assert prompt is not None
        return prompt

    client: Any = SimpleNamespace(apply_template=render)
    return SmokeContext(client, Target("test", template=template), None)


def _check(kind: str, name: str, old: str = "", new: str = "") -> Any:
    stock = (STOCK / f"{name}.jinja").read_text(encoding="utf-8")
    assert old in stock
    return getattr(values, kind)(_context(stock.replace(old, new)), SCENARIO)


@pytest.mark.parametrize("name", ["qwen3_like", "coder_like", "qwen35_like", "qwen38_like"])
@pytest.mark.parametrize("kind", ["arguments", "declarations", "open_turn"])
def test_a_stock_template_passes(kind, name):
    check = _check(kind, name)
    assert check.status == "passed", check.detail


ARGUMENTS = {
    "JSON in Python's words": (
        ("qwen3_like", "call.arguments if call.arguments is string else call.arguments|tojson", "call.arguments"),
        "a call is not the JSON of a name and arguments",
    ),
    "JSON with escaped letters": (
        ("qwen3_like", "call.arguments|tojson", "call.arguments|tojson(ensure_ascii=True)"),
        "rendered by jinja2 with arguments as objects, the arguments of a call are written with escaped letters",
    ),
    "JSON text as JSON once more": (
        ("qwen3_like", "call.arguments if call.arguments is", "call.arguments|tojson if call.arguments is"),
        "the arguments of a call are a JSON string, not an object",
    ),
    "JSON under another name": (
        ("qwen3_like", '", "arguments": ', '", "parameters": '),
        "a call is not the JSON of a name and arguments",
    ),
    "an object in Python's words": (
        ("coder_like", "value|tojson", "value|string"),
        "the argument nested (object) is not JSON",
    ),
    "texts in quotes": (("qwen38_like", "value if value is string else value|tojson", "value|tojson"), "text (string)"),
    "arguments in the alphabet's order": (
        ("qwen38_like", "call.arguments|items", "call.arguments|dictsort"),
        "the arguments of a call are in another order: count, digits, lie",
    ),
    "only true arguments": (
        ("qwen38_like", "in call.arguments|items %}", "in call.arguments|items if value %}"),
        "the argument nothing (null) is lost",
    ),
    "a call without its name": (
        ("qwen38_like", "'<tool_call>\\n<function=' ~ call.name", "'<tool_call>\\n<function='"),
        "the 2 calls of a turn are read back as",
    ),
    "a content of None": (
        ("qwen38_like", "if content is string", "if content is string or content is none"),
        "a content of null next to a call is not rendered as an empty one",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_cannot_be_read_back_are_named(name):
    mutation, words = ARGUMENTS[name]
    check = _check("arguments", *mutation)
    assert check.status == "failed"
    assert words in check.detail


def test_python_s_words_between_tags_are_read_by_their_declared_types():
    check = _check(
        "arguments", "qwen38_like", "value if value is string", "value if value is string or value is boolean"
    )
    assert check.status == "passed", check.detail


@pytest.mark.parametrize(
    ("new", "lost"),
    [
        ("{'name': tool.function.name}|tojson", "types, enumerated values, required parameters, nested parameters"),
        ("dict(tool.function.parameters, required=1)|tojson", "required parameters"),
    ],
)
def test_facts_of_a_declaration_that_do_not_reach_the_prompt_are_named(new, lost):
    check = _check("declarations", "qwen38_like", "tool|tojson", new)
    assert check.status == "failed"
    assert check.detail.startswith(f"of a tool's declaration, the prompt lacks: {lost}")


OPEN = "{{- '<|im_start|>assistant\\n<think>\\n' }}"
OFF = "{{- '\\n</think>\\n\\n' }}"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            OPEN,
            f"{OPEN}{{{{- '<think>\\n' }}}}",
            "with enable_thinking true, the generation prompt has <think> 2 times",
        ),
        (OFF, "", "with enable_thinking false, the generation prompt leaves the thinking open"),
        ("enable_thinking is false", "enable_thinking is true", "true, the generation prompt closes the thinking"),
        ("{%- if add_generation_prompt %}", "{%- if true %}", "a turn is open for the model also where"),
    ],
)
def test_an_open_turn_that_misleads_the_model_is_named(old, new, words):
    check = _check("open_turn", "qwen38_like", old, new)
    assert check.status == "failed"
    assert words in check.detail
