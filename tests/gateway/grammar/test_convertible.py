"""A schema reaches the server only if it surely converts it: it drops any other without a word."""

from __future__ import annotations

from typing import Any

import pytest

from strata_pack.gateway.grammar.convertible import MAX_OPTIONAL, convertible
from tests.gateway.conftest import House
from tests.gateway.grammar.schemas import CONVERTIBLE, OTHERS


@pytest.mark.parametrize("schema", CONVERTIBLE.values(), ids=CONVERTIBLE)
def test_what_every_server_converts_is_left_to_it(schema: dict[str, Any]) -> None:
    assert convertible(schema)


@pytest.mark.parametrize("schema", OTHERS.values(), ids=OTHERS)
def test_what_a_server_may_drop_is_not(schema: dict[str, Any]) -> None:
    assert not convertible(schema)
    # Nor where it is only a part of another one.
    for around in (
        {"type": "array", "items": schema},
        {"type": "object", "properties": {"a": schema}},
        {"type": "object", "additionalProperties": schema},
        {"anyOf": [{"type": "null"}, schema]},
        {"type": "array", "prefixItems": [schema]},
        {"type": "array", "items": {"$ref": "#/$defs/s"}, "$defs": {"s": schema}},
    ):
        assert not convertible({**around, "$defs": {**schema.get("$defs", {}), **around.get("$defs", {})}})


@pytest.mark.parametrize(
    "pattern",
    ["^[a-z]+$", "^a|b$", "^.$", "^[^a]$", '^"$', "^\\\\$", "a", "^a", "^(a", "^a)$", "^(a{100}){100}$", "^[$", ""],
)
def test_only_anchored_plain_patterns_are_left_to_the_server(pattern: str) -> None:
    assert convertible({"type": "string", "pattern": pattern}) is (pattern == "^[a-z]+$")


def test_a_schema_without_end_is_checked_in_bounded_steps() -> None:
    enums = {"enum": list(range(10_000))}
    deep: dict[str, Any] = {"type": "integer"}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    optional = {f"p{i}": {"type": "integer"} for i in range(MAX_OPTIONAL + 1)}
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(300)}
    for schema in (
        enums,
        {"enum": ["x" * 1_000_000]},
        {"type": "object", "properties": {"x" * 1_000_000: {}}, "required": ["x" * 1_000_000]},
        deep,
        {"type": "object", "properties": optional},
        {"$defs": {**chain, "d300": {"type": "integer"}}, "$ref": "#/$defs/d0"},
    ):
        assert not convertible(schema)


def test_a_schema_that_the_server_would_drop_reaches_it_as_a_grammar(house: House) -> None:
    def asked(schema: dict[str, Any]) -> dict[str, Any]:
        wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        house.chat("5", response_format=wanted, enable_thinking=False)
        body: dict[str, Any] = house.replay.bodies[-1]
        return body

    served = asked({"type": "integer"})
    assert served["json_schema"] == {"type": "integer"}
    assert "grammar" not in served
    served = asked({"type": "integer", "not": {"const": 3}})
    assert served["grammar"].startswith("root ::= (integer)\n")
    assert "json_schema" not in served
