"""Argument texts become JSON values by their schema, and never raise."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.parsing import json_text, parse
from strata_pack.parsing.literals import read_literal
from strata_pack.parsing.schema import UNTYPED, FunctionSchema, read_tools
from strata_pack.parsing.values import read_value
from tests.parsing.data import read_object
from tests.parsing.invariants import strict_json

DATA = read_object("values.json")


def same(left: Any, right: Any) -> bool:
    """Whether two values are one JSON value (True is not 1)."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


@pytest.mark.parametrize(
    "case", DATA["values"], ids=lambda case: f"{json.dumps(case['schema'])[:50]}-{case['text'][:20]}"
)
def test_value(case: dict[str, Any]) -> None:
    function = FunctionSchema({"properties": {"v": case["schema"]}, "$defs": DATA["$defs"]})
    value, fits = read_value(case["text"], function.type_of("v"))
    assert same(value, case["value"])
    assert fits is case["fits"]


def test_an_integer_longer_than_python_prints_stays_text() -> None:
    text = "9" * 5000
    assert read_value(text, FunctionSchema({"properties": {"v": {"type": "integer"}}}).type_of("v")) == (text, False)


def test_half_a_surrogate_pair_is_written_so_that_it_can_be_encoded() -> None:
    value, fits = read_value(r'{"t": "\ud83d"}', UNTYPED)
    assert fits
    json_text(value).encode("utf-8")


def test_a_stray_backslash_in_a_python_literal_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_literal(r"['\d']") == ["\\d"]


@pytest.mark.parametrize("tools", [[None, 5, {}, {"function": None}, {"name": 3}], [{"name": "f", "parameters": 7}]])
def test_malformed_tools_are_skipped_or_have_no_schema(tools: list[Any]) -> None:
    assert list(read_tools(tools)) in ([], ["f"])
    text = "<tool_call>\n<function=f>\n<parameter=v>\n5\n</parameter>\n</function>\n</tool_call>"
    assert parse(text, thinking=False, tools=tools).calls[0].arguments == {"v": 5}


@pytest.mark.parametrize("word", ["allOf", "anyOf"])
def test_references_that_name_billions_of_schemas_cost_little(word: str) -> None:
    definitions = {f"d{i}": {word: [{"$ref": f"#/$defs/d{i + 1}"}] * 8} for i in range(20)}
    function = FunctionSchema({"properties": {"v": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    assert read_value("5", function.type_of("v")) == (5, True)


def test_a_failed_coercion_is_counted() -> None:
    tools = [{"name": "f", "parameters": {"properties": {"v": {"type": "integer"}}}}]
    text = "<tool_call>\n<function=f>\n<parameter=v>\nfive\n</parameter>\n</function>\n</tool_call>"
    assert parse(text, thinking=False, tools=tools).counters.coercion_failures == 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.lists(JSON_VALUES, max_size=3) | st.dictionaries(st.text(), JSON_VALUES, max_size=3))
def test_what_python_prints_is_read_back(value: Any) -> None:
    assert same(read_literal(repr(value)), value)


SCHEMAS = st.recursive(
    st.sampled_from([{"type": name} for name in ("string", "integer", "number", "boolean", "null", "array", "object")])
    | st.just({})
    | st.lists(st.none() | st.booleans() | st.integers() | st.text(max_size=3), max_size=3).map(lambda v: {"enum": v}),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda parts: {"anyOf": parts})
        | st.lists(inner, max_size=2).map(lambda parts: {"allOf": parts})
    ),
    max_leaves=5,
)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(SCHEMAS, st.text(max_size=12) | JSON_VALUES.map(json.dumps) | JSON_VALUES.map(repr))
def test_every_text_is_a_strict_json_value_of_every_schema(schema: dict[str, Any], text: str) -> None:
    value, fits = read_value(text, FunctionSchema({"properties": {"v": schema}}).type_of("v"))
    assert same(strict_json(json_text(value)), value)
    assert fits or value == text
