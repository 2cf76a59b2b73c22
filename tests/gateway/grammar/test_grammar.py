"""What a grammar lets a model write: what the schema allows, in a size that is bounded, whatever the schema."""

from __future__ import annotations

import json
import re
import time
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.grammar.convertible import convertible
from strata_pack.gateway.grammar.gbnf import MAX_COST, _Writer, answer_constraint, call_grammar, json_grammar
from strata_pack.gateway.grammar.schemas import SchemaReader
from strata_pack.parsing import DIALECTS, parse

NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}}}


def grammar(parameters: dict[str, Any], form: Any = "xml") -> str:
    return call_grammar([{"function": {"name": "f", "parameters": parameters}}], form)


def reader(root: dict[str, Any]) -> SchemaReader:
    return SchemaReader(root, lambda _: True)


def parameters_of(text: str) -> set[str]:
    """Return the parameters that a grammar of the XML form knows."""
    return set(re.findall(r"<parameter=(\w+)>", text))


def value_of(text: str, name: str) -> str:
    """Return the expression of a parameter's value."""
    found = re.search(rf'"<parameter={name}>\\x0a" (.*?) "\\x0a</parameter>', text)
    assert found is not None
    return found[1]


def pattern_of(text: str) -> re.Pattern[str]:
    """Return the regular expression of a grammar whose root refers to no rule that refers to itself."""
    rules = dict(line.split(" ::= ", 1) for line in text.splitlines())

    def written(body: str) -> str:
        tokens = re.findall(r'"(?:\\.|[^"])*"|\[(?:\\.|[^\]])*\]|[a-z][a-z0-9-]*|[()|?*+]', body)
        return "".join(map(one, tokens))

    def one(token: str) -> str:
        if token.startswith('"'):
            return f"(?:{re.escape(json.loads(token))})"
        return f"(?:{written(rules[token])})" if token[0].islower() else token

    return re.compile(written(rules["root"]))


@pytest.mark.parametrize("required", [[], ["b"], ["c", "a"], ["a", "b", "c", "d"]])
def test_an_object_has_its_required_properties_and_any_of_the_others(required: list[str]) -> None:
    names = ["a", "b", "c", "d"]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}, "required": required}
    pattern = pattern_of(json_grammar(schema))
    first = [name for name in names if name in required]
    others = [name for name in names if name not in required]
    for chosen in product([False, True], repeat=4):
        given = [name for name, is_given in zip(names, chosen, strict=True) if is_given]
        ordered = [name for name in (*first, *others) if name in given]
        text = json.dumps(dict.fromkeys(ordered))
        assert bool(pattern.fullmatch(text)) is (set(required) <= set(given)), text
        assert not ordered or not pattern.fullmatch(text.replace("}", ",}"))
    assert not pattern.fullmatch(json.dumps(dict.fromkeys([*first, *reversed(others)]))) or len(others) < 2


@pytest.mark.parametrize("required", [[], ["p0"]])
def test_the_grammar_of_an_object_grows_with_its_optional_properties_and_not_with_their_square(
    required: list[str],
) -> None:
    def of(count: int) -> str:
        properties = {f"p{i}": {"type": "integer"} for i in range(count)}
        return json_grammar({"type": "object", "properties": properties, "required": required})

    assert len(of(200)) < 2.2 * len(of(100))
    # llama-server counts the groups of a rule, and refuses it beyond a number.
    assert max(line.count("(") for line in of(200).splitlines()) < 10


def test_the_grammar_of_very_many_optional_properties_is_small() -> None:
    inner = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}
    assert len(grammar({"properties": {"a": inner}})) < 10_000
    assert len(grammar({"properties": {"a": inner}}, "json")) < 10_000


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
    found = reader({}).shape({key: [one, two]})
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


def test_a_schema_next_to_a_reference_has_precedence() -> None:
    root = {"$defs": {"S": {"type": "string", "format": "theirs"}}}
    assert reader(root).resolve({"$ref": "#/$defs/S", "format": "ours"})["format"] == "ours"


MANY = {f"a{i}": 1 for i in range(3000)}
LONG_ENUM = [f"v{i:03}{'x' * 100}" for i in range(500)]


def refers(target: str, count: int = 3000, **more: Any) -> dict[str, Any]:
    """Return properties that each refer to ``target``."""
    return {f"p{i}": {"$ref": target, **more} for i in range(count)}


def alternatives(**more: Any) -> dict[str, Any]:
    """Return definitions of which each is fifty times the next one."""
    levels = {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}", **more}] * 50} for i in range(10)}
    return {**levels, "10": {"type": "integer"}}


BOMBS: dict[str, dict[str, Any]] = {
    "an enum in many places": {"$defs": {"e": {"enum": LONG_ENUM}}, "properties": refers("#/$defs/e", 6000)},
    "the same, each with more": {"$defs": {"e": {"enum": LONG_ENUM}}, "properties": refers("#/$defs/e", 6000, x=1)},
    "many properties in many places": {"d": {"properties": MANY}, "properties": refers("#/d")},
    "the same, each with more.": {"d": {"properties": MANY}, "properties": refers("#/d", x=1)},
    "allOf in many places": {
        "d": {"allOf": [{"$ref": "#/e"}] * 60},
        "e": {"properties": MANY},
        "properties": refers("#/d"),
    },
    "the same, each with more..": {
        "d": {"allOf": [{"$ref": "#/e"}] * 60},
        "e": {"properties": MANY},
        "properties": refers("#/d", x=1),
    },
    "keywords in many places": {"d": MANY, "properties": refers("#/d", x=1)},
    "types in many places": {"d": {"type": ["array"] * 30_000}, "properties": refers("#/d", x=1)},
    "alternatives of many properties": {
        "d": {"properties": MANY},
        "properties": {f"p{i}": {"properties": {"z": {}}, "anyOf": [{"$ref": "#/d"}] * 50} for i in range(500)},
    },
    "alternatives in alternatives": {"$defs": alternatives(), "properties": refers("#/$defs/0", 100)},
    "the same, each with more...": {"$defs": alternatives(x=1), "properties": refers("#/$defs/0", 100, x=1)},
    "references of references": {
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(5000)},
        "properties": {f"p{i}": {"$ref": f"#/$defs/{i}"} for i in range(5000)},
    },
    "a merge with itself": {"allOf": [{"$ref": "#"}] * 50},
    "a name of megabytes": {"properties": {"x" * 5_000_000: {}}},
    "objects of many properties": {
        "properties": {
            f"p{i}": {"type": "object", "properties": {f"q{j}": {"type": "integer"} for j in range(200)}}
            for i in range(300)
        }
    },
}


@pytest.mark.parametrize("form", ["xml", "json"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_costs_no_more_than_its_limit(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []
    afford = _Writer.afford

    def counted(writer: _Writer, cost: int) -> bool:
        affordable = afford(writer, cost)
        spent.append(cost if affordable else 0)
        return affordable

    monkeypatch.setattr(_Writer, "afford", counted)
    text = grammar(BOMBS[name], form)
    assert sum(spent) <= MAX_COST
    assert len(spent) < 100_000
    assert len(text) < 500_000  # one of 330 MB came from the first


def test_what_many_properties_refer_to_is_merged_once() -> None:
    costs: list[int] = []
    root = {"d": {"allOf": [{"$ref": "#/e"}] * 20}, "e": {"properties": MANY}}
    reader = SchemaReader(root, lambda cost: costs.append(cost) is None)
    for _ in range(3000):
        assert reader.resolve({"$ref": "#/d"})["properties"] == MANY
    assert sum(costs) < 20 * 2 * len(MANY)


def test_where_a_schema_costs_too_much_the_parameters_keep_their_names() -> None:
    text = grammar(BOMBS["objects of many properties"])
    assert len(parameters_of(text)) == 300
    assert value_of(text, "p0") != value_of(text, "p299") == "value"


def test_parameters_without_number_are_not_named() -> None:
    text = grammar({"properties": {f"p{i}": {"type": "integer"} for i in range(50_000)}})
    assert parameters_of(text) == set()
    assert '"<parameter=" key' in text


def test_tools_without_number_are_refused() -> None:
    tools = [{"function": {"name": f"function_{i}", "parameters": {}}} for i in range(60_000)]
    with pytest.raises(ApiError, match="60000 are too many") as caught:
        call_grammar(tools, "xml")
    assert (caught.value.status, caught.value.param) == (400, "tools")


@pytest.mark.parametrize(
    "endless",
    [
        {"$ref": "#/$defs/a"},
        {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]},
        {"anyOf": [{"type": "null"}, {"oneOf": [{"$ref": "#/$defs/b"}]}]},
        {"allOf": [{"$ref": "#/$defs/a"}]},
    ],
)
def test_a_schema_that_is_itself_again_is_any_value(endless: dict[str, Any]) -> None:
    schema = {"$defs": {"a": endless, "b": {"$ref": "#/$defs/a"}}, "type": "array", "items": {"$ref": "#/$defs/a"}}
    rules = dict(line.split(" ::= ", 1) for line in json_grammar(schema).splitlines())
    waiting, seen = ["root"], set[str]()
    while waiting:  # no rule begins with itself
        name = waiting.pop()
        assert name not in seen
        seen.add(name)
        waiting += re.findall(r"\b[rs]\d+\b", rules[name].split('"')[0])
    assert "value" in str(rules)


def test_a_schema_in_itself_is_a_rule_that_refers_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}, "v": {"type": "null"}}, "required": ["v"]}
    text = json_grammar({"$defs": {"n": node}, "$ref": "#/$defs/n"})
    assert "root ::= s0\n" in text
    assert '"\\"next\\"" ":" ws s0 ws' in text


@pytest.mark.parametrize("reference", [f"#/x/{'9' * 5000}", "#/x/\u0663", "#/x/1", "#/x/-1", "#/x/y", "x/0", ""])
def test_a_reference_to_nothing_allows_all(reference: str) -> None:
    schema = {"x": [{"type": "integer"}], "properties": {"a": {"$ref": reference}}}
    assert reader(schema).target(reference) is None
    assert value_of(grammar(schema), "a") == "text"


def test_the_grammar_of_thousands_of_tools_is_quick() -> None:
    parameters = {"properties": {f"p{i}": {"type": "string"} for i in range(5)}}
    tools = [{"function": {"name": f"tool_{i}", "parameters": parameters}} for i in range(3000)]
    began = time.process_time()
    call_grammar(tools, "xml")
    assert time.process_time() - began < 2


WORDS = [
    *("$ref", "$defs", "allOf", "anyOf", "oneOf", "not", "type", "properties", "required", "additionalProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "enum", "const", "pattern", "format", "minimum", "maximum", "a"),
]
WORDS_IN_THEM = [
    *("", "a", "#", "#/a", "#/$defs/a", "#/properties/a", "#/allOf/0", "^a$", "^(a", "date"),
    *("object", "array", "string", "integer", "number", "null"),
]
LEAVES = st.sampled_from([None, True, 0, -1.5, *WORDS_IN_THEM])
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=25,
)
SCHEMAS = st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=6)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(SCHEMAS)
def test_whatever_a_schema_says_there_is_a_grammar(schema: dict[str, Any]) -> None:
    for text in (grammar(schema), grammar(schema, "json"), json_grammar(schema)):
        rules = dict(line.split(" ::= ", 1) for line in text.splitlines())
        for body in rules.values():
            names = re.findall(r"\b[rs]\d+\b", re.sub(r'"(?:\\.|[^"])*"', "", body))
            assert rules.keys() >= set(names)
    if convertible(schema):
        assert answer_constraint(schema) == {"json_schema": schema}


CALLS = {
    "qwen": "<tool_call>\n<function=f>\n<parameter=mode>\non\n</parameter>\n</function>\n</tool_call>",
    "seed-oss": "<seed:tool_call>\n<function=f>\n<parameter=mode>on</parameter>\n</function>\n</seed:tool_call>",
    "minimax-m2": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="mode">on</parameter>\n</invoke>\n'
    "</minimax:tool_call>",
    "glm": "<tool_call>f\n<arg_key>mode</arg_key>\n<arg_value>on</arg_value>\n</tool_call>",
}
MODE = {"type": "object", "properties": {"mode": {"enum": ["on", "off"]}}, "required": ["mode"]}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("count", [1, 2])
def test_the_calls_of_a_dialect_s_grammar_are_its_own_and_are_read(dialect: Any, count: int) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": MODE}}
    pattern = pattern_of(call_grammar([tool], "xml", dialect=dialect).replace("\\x0a", "\\n"))
    text = "\n".join([CALLS[dialect.name]] * count)
    assert pattern.fullmatch(text)
    reply = parse(text, thinking=False, tools=[tool], dialect=dialect)
    assert [(call.name, call.arguments) for call in reply.calls] == [("f", {"mode": "on"})] * count


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_json_calls_stand_in_a_dialect_s_wrapper(dialect: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": MODE}}
    pattern = pattern_of(call_grammar([tool], "json", dialect=dialect).replace("\\x0a", "\\n"))
    call = '{"name": "f", "arguments": {"mode": "on"}}'
    assert pattern.fullmatch(f"{dialect.call_open}\n{call}\n{dialect.call_close}")
