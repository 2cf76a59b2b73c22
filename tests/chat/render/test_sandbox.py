"""A hostile template ends in a ``TemplateError`` without taking the memory of the machine.

Each of them takes hours where no limit stops it, so that the suite's own time limit fails the test.
"""

from __future__ import annotations

import contextlib
import json
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
