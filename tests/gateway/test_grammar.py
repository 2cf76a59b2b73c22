"""What a grammar lets a model write: what the schema allows, in a size that is bounded, whatever the schema."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from strata_pack.gateway.grammar import call_grammar
from strata_pack.gateway.schemas import resolve, shape

NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}


def grammar(parameters: dict[str, Any], form: Any = "xml") -> str:
    return call_grammar([{"function": {"name": "f", "parameters": parameters}}], form)


def parameters_of(text: str) -> set[str]:
    """Return the parameters that a grammar of the XML form knows."""
    return set(re.findall(r"<parameter=(\w+)>", text))


def value_of(text: str, name: str) -> str:
    """Return the expression of a parameter's value."""
    found = re.search(rf'"<parameter={name}>\\x0a" (.*?) "\\n</parameter>', text)
    assert found is not None
    return found[1]


def test_the_grammar_of_very_many_optional_properties_is_small() -> None:
    inner = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}
    assert len(grammar({"properties": {"a": inner}})) < 100_000
    assert len(grammar({"properties": {"a": inner}}, "json")) < 100_000


@pytest.mark.parametrize(
    "parameters",
    [
        {"$defs": {"Node": {**NODE, "required": ["value"]}}, "$ref": "#/$defs/Node"},
        {"$defs": {"Node": {**NODE, "required": ["value"]}}, "allOf": [{"$ref": "#/$defs/Node"}], "title": "Node"},
        {
            "$defs": {"Node": {}},
            "allOf": [{"properties": {"next": {}}}, {"properties": {"value": {"type": "integer"}}}],
            "required": ["value"],
        },
        {"definitions": {"a/b": [{**NODE, "required": ["value"]}]}, "$ref": "#/definitions/a~1b/0", "$defs": {}},
    ],
    ids=["a reference", "allOf of a reference", "allOf", "a pointer with an escape and a number"],
)
def test_the_parameters_of_a_schema_that_refers_to_them_can_be_written(parameters: dict[str, Any]) -> None:
    text = grammar(parameters)
    assert parameters_of(text) == {"value", "next"}
    assert value_of(text, "value") == "(integer)"
    assert '("<parameter=value>' not in text
    assert '("<parameter=next>' in text


def test_arguments_in_json_follow_the_reference_too() -> None:
    text = grammar({"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"}, "json")
    assert '"\\"value\\""' in text
    assert '"arguments\\": " object' not in text


@pytest.mark.parametrize("key", ["anyOf", "oneOf"])
def test_alternatives_may_each_be_written(key: str) -> None:
    one = {
        "type": "object",
        "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}},
        "required": ["kind", "x"],
    }
    two = {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "integer"}}, "required": ["kind"]}
    found = shape({key: [one, two]}, {})
    assert set(found.properties) == {"kind", "x", "y"}
    assert found.required == {"kind"}
    assert parameters_of(grammar({key: [one, two]})) == {"kind", "x", "y"}


def test_alternatives_that_only_demand_leave_the_properties_as_they_are() -> None:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert parameters_of(grammar(parameters)) == {"a", "b"}
    assert '"\\"a\\""' in grammar(parameters, "json")


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"allOf": [5]},
        {"anyOf": [{"type": "object"}, {"$ref": "#/nowhere"}]},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^x": {}}},
    ],
)
def test_where_the_parameters_are_not_known_any_may_be_written(parameters: dict[str, Any]) -> None:
    assert '"<parameter=" key' in grammar(parameters)


@pytest.mark.parametrize("parameters", [{}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_function_without_parameters_gets_none(parameters: dict[str, Any]) -> None:
    assert "<parameter=" not in grammar(parameters)


@pytest.mark.parametrize(
    ("wanted", "expression"),
    [
        ({"anyOf": [{"type": "integer"}, {}]}, "text"),
        ({"anyOf": [{"type": "integer"}, {"enum": ["a"]}]}, "text"),
        ({"anyOf": [{"anyOf": [{"$ref": "#/$defs/S"}, {"type": "integer"}]}, {"type": "null"}]}, "text"),
        ({"allOf": [{"$ref": "#/$defs/S"}], "description": "x"}, "text"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, '((integer) | ("null"))'),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "(integer)"),
    ],
)
def test_a_value_may_be_all_that_one_of_its_alternatives_allows(wanted: dict[str, Any], expression: str) -> None:
    text = grammar({"properties": {"a": wanted}, "$defs": {"S": {"type": "string"}}})
    assert value_of(text, "a") == expression


def test_a_schema_beside_a_reference_counts_before_it() -> None:
    root = {"$defs": {"S": {"type": "string", "description": "theirs"}}}
    assert resolve({"$ref": "#/$defs/S", "description": "ours"}, root)["description"] == "ours"


def test_alternatives_in_alternatives_without_end_are_quick() -> None:
    levels = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}] * 50} for i in range(10)}
    merged = {"allOf": [{"$ref": "#"}] * 50}
    properties: dict[str, Any] = {f"p{i}": {"$ref": "#/$defs/0"} for i in range(100)}
    began = time.process_time()
    text = grammar({"$defs": {**levels, "10": {"type": "integer"}}, "properties": properties})
    grammar(merged)
    assert time.process_time() - began < 2
    assert len(text) < 1_000_000


def test_the_grammar_of_thousands_of_tools_is_quick() -> None:
    parameters = {"properties": {f"p{i}": {"type": "string"} for i in range(5)}}
    tools = [{"function": {"name": f"tool_{i}", "parameters": parameters}} for i in range(3000)]
    began = time.process_time()
    call_grammar(tools, "xml")
    assert time.process_time() - began < 2
