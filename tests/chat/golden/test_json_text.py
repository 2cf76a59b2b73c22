"""Where the values of a JSON text stand, and what an edit leaves as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.chat.golden.json_text import Edit, edited, items, members, whole

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)
LAYOUTS = st.sampled_from([None, 0, 1, "\t"])


@settings(max_examples=40)
@given(st.lists(VALUES, max_size=6), LAYOUTS, st.booleans())
def test_every_item_of_a_list_is_at_its_reported_place(values: list[Any], indent: Any, escaped: bool) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=escaped)
    found = list(items(text, whole(text)))
    assert [item.value for item in found] == values
    assert [json.loads(text[item.start : item.end]) for item in found] == values


@settings(max_examples=40)
@given(st.dictionaries(st.text(), VALUES, max_size=6), LAYOUTS, st.booleans())
def test_every_member_of_an_object_is_at_its_reported_place(values: dict[str, Any], indent: Any, escaped: bool) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=escaped)
    found = members(text, whole(text))
    assert {key: json.loads(text[member.start : member.end]) for key, member in found.items()} == values
    assert [json.loads("{" + text[member.key_start : member.end] + "}") for member in found.values()] == [
        {key: value} for key, value in values.items()
    ]


@pytest.mark.parametrize("text", ["[]", " [ ] ", "\ufeff[\r\n]"])
def test_an_empty_list_has_no_items(text: str) -> None:
    assert list(items(text, whole(text))) == []


def test_of_two_members_with_one_key_the_last_counts() -> None:
    text = '{"a": 1, "a": 2}'
    assert members(text, whole(text))["a"].value == json.loads(text)["a"]


def test_edits_change_their_own_characters_and_no_others() -> None:
    assert edited("0123456789", [Edit(7, 8, "seven"), Edit(0, 2, ""), Edit(10, 10, "!")]) == "23456seven89!"
