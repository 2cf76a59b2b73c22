"""The size of a grammar is bounded, whatever the schema."""

from __future__ import annotations

from strata_pack.gateway.grammar import call_grammar


def test_the_grammar_of_very_many_optional_properties_is_small() -> None:
    inner = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}
    tool = {"function": {"name": "f", "parameters": {"properties": {"a": inner}}}}
    assert len(call_grammar([tool], "xml")) < 100_000
    assert len(call_grammar([tool], "json")) < 100_000
