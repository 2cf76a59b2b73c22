"""The manifest's own check of JSON Schema agrees with the library ``jsonschema``."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_pack.pack.manifest import schema
from strata_pack.pack.schema_check import KEYWORDS, problems

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(-2, 2).filter(lambda x: not x.is_integer())
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)
LEAVES = st.sampled_from(
    [
        {"type": "integer", "minimum": 0},
        {"type": ["number", "null"], "exclusiveMinimum": -1},
        {"type": "string", "minLength": 1, "maxLength": 2, "pattern": "^[a-z]"},
        {"const": "a"},
        {"enum": ["a", None, 2]},
        {"$ref": "#/$defs/short"},
        True,
    ]
).map(lambda rule: {} if rule is True else rule)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda rule: {"type": "array", "items": rule, "minItems": 1}),
        st.builds(
            lambda a, b, extra: {
                "type": "object",
                "properties": {"a": a},
                "required": ["a"],
                "additionalProperties": extra or b,
            },
            inner,
            inner,
            st.sampled_from([False, True]),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda rules: {"anyOf": rules}),
    ),
    max_leaves=5,
)


@given(value=JSON, rule=SCHEMAS)
def test_it_takes_and_refuses_what_the_library_does(value: Any, rule: dict[str, Any]) -> None:
    whole = {**rule, "$defs": {"short": {"type": "string", "maxLength": 1}}}
    assert (not list(problems(value, whole))) == jsonschema.Draft202012Validator(whole).is_valid(value)


def test_the_place_is_named() -> None:
    rule = {"properties": {"a": {"items": {"type": "string"}}}}
    assert list(problems({"a": ["x", 3]}, rule)) == [(("a", 1), "3 is not of type string")]


def test_an_unknown_keyword_is_not_passed_over() -> None:
    with pytest.raises(KeyError):
        list(problems({}, {"dependentRequired": {}}))


def test_every_keyword_of_the_manifest_is_known() -> None:
    def keywords(rule: Any) -> set[str]:
        if not isinstance(rule, dict):
            return set()
        inner = [*rule.get("properties", {}).values(), *rule.get("$defs", {}).values(), *rule.get("anyOf", [])]
        inner += [rule.get("items"), rule.get("additionalProperties")]
        return set(rule).union(*map(keywords, inner))

    assert keywords(schema()) <= KEYWORDS
