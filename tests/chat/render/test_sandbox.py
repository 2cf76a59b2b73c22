"""A hostile template ends in a ``TemplateError`` without taking the memory of the machine.

Each of them takes hours where no limit stops it, so that the suite's own time limit fails the test.
"""

from __future__ import annotations

import contextlib
import gc
import json
import resource
import weakref
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata_pack.chat.render.template import ChatTemplate, RenderLimits, TemplateError

DATA = Path(__file__).parents[2] / "data" / "chat"
HOSTILE = json.loads((DATA / "hostile.json").read_text())

SHORT = RenderLimits(seconds=0.3, made_chars=64 << 20)
MEMORY = 512 << 20


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_template_is_stopped(source: str) -> None:
    peak = _peak_bytes()
    with pytest.raises(TemplateError):
        ChatTemplate(source, limits=SHORT).render([{"role": "user", "content": "Hi"}], data=b"abc")
    assert _peak_bytes() - peak < MEMORY


GROWTH = (
    "{% set n.s = n.s + n.s %}", "{% set n.s = n.s ~ n.s %}", "{% set n.s = [n.s, n.s] %}",
    "{% set n.s = (n.s, n.s) %}",
    "{% set n.s = {'a': n.s, 'b': n.s} %}", "{% set n.s = n.s * 9 %}", "{% set n.s = n.s|string %}",
    "{% set n.s = n.s|tojson %}", "{% set n.s = n.s|list %}", "{% set n.s = n.s|join(n.t) %}",
    "{% set n.s = n.s.replace('a', n.t) %}", "{% set n.s = n.t.join(n.s) %}", "{% set n.s = n.s.split(n.t) %}",
    "{% set n.s = n.s.items() %}", "{% set n.s = n.s|items|list %}", "{% set n.s = n.s|map('string')|list %}",
    "{% set n.s = '%s%s' % (n.s, n.s) %}", "{% set n.s = '{0}{0}'.format(n.s) %}", "{% set n.s = n.s|safe %}",
    "{% set n.s = n.s|e %}", "{% set n.s = n.s|indent(9) %}", "{% set n.s = n.s|sort %}", "{% set n.s = n.s[::-1] %}",
    "{% set n.t = n.s %}", "{{ n.s }}", "{% if n.s == n.t %}{% endif %}", "{% set n.s = 'a' %}", "{% set n.s = [1] %}",
    "{% set n.s = {'a': 1}[n.t] %}", "{% set n.s = n.s|batch(3)|list %}", "{% set n.s = n.s|unique|list %}",
)  # fmt: skip


@given(st.lists(st.sampled_from(GROWTH), min_size=1, max_size=6), st.sampled_from(["'a'", "[1]", "{'a': 1}", "7"]))
@settings(max_examples=80, derandomize=True, deadline=None)
def test_any_mixture_of_growing_statements_ends_soon(statements: list[str], first: str) -> None:
    body = "".join(statements)
    source = f"{{% set n = namespace(s={first}, t='a') %}}{{% for i in range(60) %}}{body}{{% endfor %}}"
    peak = _peak_bytes()
    with contextlib.suppress(TemplateError):
        ChatTemplate(source, limits=SHORT).render([{"role": "user", "content": "Hi"}])
    assert _peak_bytes() - peak < MEMORY


@pytest.mark.parametrize(
    "expression",
    [
        "m.role", "m.nothing is defined", "m.items is callable", "m.get('role')", "m._x", "m.__class__ is defined",
        "n.a", "n.b", "n.none is none", "n.nothing is defined", "n._a is defined", "n.items is defined",
        "'Ab'.lower()", "'ab'.nothing is defined", "'ab'.__class__ is defined", "'a b'.split(' ')[1]",
        "'{}'.format(7)", "'ab'.split(sep='b')[0]", "f(1)", "f(a=2)", "loop is defined",
    ],
)  # fmt: skip
def test_an_expression_means_what_it_means_in_jinja2s_sandbox(expression: str) -> None:
    """Attributes and calls have short cuts, which change nothing."""
    head = "{% macro f(a) %}<{{ a }}>{% endmacro %}{% set n = namespace(a=1, b='x', none=none, _a=3, items=4) %}"
    source = (
        f"{head}{{% for m in messages %}}{{{{ {expression} }}}}|{{{{ loop.index }}}}{{{{ loop.last }}}}{{% endfor %}}"
    )
    messages = [{"role": "user", "items": 1, "_x": 2}]
    plain = ImmutableSandboxedEnvironment().from_string(source).render(messages=messages)
    assert ChatTemplate(source).render(messages) == plain


class Messages(list[dict[str, str]]):
    """A list that can have weak references."""


def test_a_rendering_leaves_nothing_to_the_garbage_collector() -> None:
    template = ChatTemplate("{% macro f(a) %}{{ a }}{{ messages }}{% endmacro %}{% set x = messages %}{{ f(1) }}")
    messages = Messages([{"role": "user"}])
    left = weakref.ref(messages)
    gc.disable()
    try:
        template.render(messages)
        del messages
        assert left() is None
    finally:
        gc.enable()
