"""JSON Schemas by name: those that every llama-server converts to a grammar, and others that clients may send too."""

from __future__ import annotations

from typing import Any

Named = dict[str, dict[str, Any]]


def an_object(_required: bool = True, /, **properties: Any) -> dict[str, Any]:
    """Return the schema of an object, closed, with all its properties or none of them required."""
    required = list(properties) if _required else []
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def levels(count: int) -> dict[str, Any]:
    return an_object(a=levels(count - 1)) if count else INTEGER


INTEGER = {"type": "integer"}
NODE = an_object(False, value=INTEGER, next={"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]})
KINDS = {
    "Cat": an_object(kind=text(const="cat"), lives=INTEGER),
    "Dog": an_object(kind=text(const="dog", enum=["dog"]), name=text()),
}

CONVERTIBLE: Named = {
    "an object": an_object(a=INTEGER, b=text()),
    "any object": {"type": "object"},
    "no restriction": {},
    "annotations": {"type": "integer", "title": "T", "description": "d", "examples": [1], "default": 5},
    "more annotations": {"type": "integer", "deprecated": True, "readOnly": True, "$comment": "x"},
    "annotations alone, inside": an_object(a={"description": "anything"}),
    "what zod writes": {"$schema": "http://json-schema.org/draft-07/schema#", **an_object(a=INTEGER)},
    "what zod writes now": {"$schema": "https://json-schema.org/draft/2020-12/schema", **an_object(a=INTEGER)},
    "optional properties": an_object(False, a=INTEGER, b=text(), c={"type": "boolean"}),
    "many optional properties": an_object(False, **{f"p{i}": text() for i in range(100)}),
    "many required properties": an_object(**{f"p{i}": text() for i in range(300)}),
    "an open object": {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": True},
    "a map": {"type": "object", "additionalProperties": {"type": "number"}},
    "an object that says no more": {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]},
    "an odd name": an_object(**{'a"]\\-^': INTEGER}),
    "an array": {"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3},
    "any array": {"type": "array"},
    "a tuple": {"type": "array", "prefixItems": [INTEGER, text()], "minItems": 2, "maxItems": 2},
    "an enum": {"enum": ["a", 1, None, True, {"x": [1.5]}]},
    "an enum of texts": text(enum=["a", 'q"\n', "é"]),
    "an enum of 1,000": text(enum=[f"value-{i}" for i in range(1000)]),
    "a constant": {"const": {"a": 1}},
    "a number": {"type": "number", "minimum": 0, "maximum": 1, "title": "Ratio"},
    "a number above": {"type": "number", "exclusiveMinimum": 0},
    "an integer between": {"type": "integer", "minimum": -5, "maximum": 10},
    "an integer above": {"type": "integer", "exclusiveMinimum": 0},
    "a large integer": {"type": "integer", "minimum": -(10**12), "maximum": 10**12},
    "lengths": text(minLength=2, maxLength=5),
    "long texts": an_object(**{f"p{i}": text(minLength=1, maxLength=1000) for i in range(20)}),
    "a pattern": text(pattern="^[a-z0-9_-]+$"),
    "a pattern with groups": text(pattern=r"^(?:v\.)?(\d+|x)(-(a|b){1,3})*$"),
    "a date": text(format="date"),
    "a time": text(format="date-time"),
    "a uuid": text(format="uuid"),
    "an address": text(format="email"),
    "two types": {"type": ["string", "null"], "maxLength": 5},
    "null": {"type": "null"},
    "alternatives": {"anyOf": [INTEGER, {"type": "null"}, an_object(a=text())]},
    "one of two types": {"oneOf": [INTEGER, text()]},
    "all of two objects": {
        "allOf": [{"type": "object", "properties": {"a": INTEGER}}, {"type": "object", "properties": {"b": text()}}]
    },
    "a reference": {**an_object(a={"$ref": "#/$defs/A", "description": "an a"}), "$defs": {"A": {"enum": ["x"]}}},
    "an older reference": {**an_object(a={"$ref": "#/definitions/A"}), "definitions": {"A": INTEGER}},
    "a schema in itself": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "an unread definition": {"type": "integer", "$defs": {"A": {"not": {}}}},
    "many levels": levels(40),
}

OTHERS: Named = {
    "a look-ahead": text(pattern="^(?=.*x).*$"),
    "a broken pattern": text(pattern="^(a|b"),
    "a pattern that is not anchored": text(pattern="ab"),
    "a pattern that may match a quote": text(pattern="^.*$"),
    "a pattern with a length": text(pattern="^a+$", maxLength=3),
    "a pattern of thousands": text(pattern="^a{3000}$"),
    "an unknown format": text(format="x-unknown"),
    "an address of the web": text(format="uri"),
    "a reference to nothing": {"$ref": "#/$defs/Missing"},
    "a reference into the web": {"$ref": "https://example.com/s.json"},
    "a reference to the whole": {"$ref": "#"},
    "a reference with more": {"$ref": "#/$defs/A", "minimum": 3, "$defs": {"A": INTEGER}},
    "a reference without end": {"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
    "two names that the server reads as one": {
        **an_object(a={"$ref": "#/$defs/A_b"}, b={"$ref": "#/$defs/A.b"}),
        "$defs": {"A_b": INTEGER, "A.b": text()},
    },
    "not": {"not": {"type": "null"}},
    "not, beside a type": {"type": "integer", "not": {"const": 5}},
    "not, inside": an_object(a={"not": {"type": "null"}}),
    "if": {"type": "object", "properties": {"a": INTEGER}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "unique items": {"type": "array", "items": INTEGER, "uniqueItems": True, "maxItems": 3},
    "very many items": {"type": "array", "items": INTEGER, "minItems": 3000},
    "no room for items": {"type": "array", "items": INTEGER, "minItems": 3, "maxItems": 2},
    "a tuple with more": {"type": "array", "prefixItems": [INTEGER], "items": False},
    "very long texts": text(minLength=5000),
    "no room for lengths": text(minLength=3, maxLength=2),
    "no room for a number": {"type": "integer", "minimum": 10, "maximum": 5},
    "a huge bound": {"type": "integer", "minimum": 10**18},
    "an empty enum": {"enum": []},
    "an enum of another type": text(enum=[1]),
    "no type": {"type": []},
    "an unknown type": {"type": "zzz"},
    "an odd type": {"type": 5},
    "odd properties": {"type": "object", "properties": 5},
    "properties without a type": {"properties": {"a": INTEGER}},
    "names by pattern": {"type": "object", "propertyNames": {"pattern": "^x"}},
    "a number of properties": {"type": "object", "properties": {"a": INTEGER}, "minProperties": 1},
    "properties that are true": {"type": "object", "properties": {"a": True}},
    "a requirement that is no property": {"type": "object", "properties": {"a": INTEGER}, "required": ["z"]},
    "an odd name in an open object": {"type": "object", "properties": {"a]^": INTEGER}, "additionalProperties": True},
    "one of two that overlap": {"oneOf": [INTEGER, {"type": "number"}]},
    "one of two objects that overlap": {"oneOf": [an_object(a=INTEGER), {"type": "object"}]},
    "one of tagged objects": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "$defs": KINDS},
    "what pydantic writes for a tagged union": an_object(
        pet={
            "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        }
    )
    | {"$defs": KINDS},
    "no alternative": {"anyOf": []},
    "alternatives beside a type": {"type": "object", "properties": {"a": INTEGER}, "anyOf": [{"required": ["a"]}]},
    "all of two texts": {"allOf": [text(), text(maxLength=3)]},
    "all of two objects that share a property": {
        "allOf": [{"type": "object", "properties": {"a": INTEGER}}, {"type": "object", "properties": {"a": INTEGER}}]
    },
    "very many levels": levels(60),
    "very many optional properties": an_object(False, **{f"p{i}": text() for i in range(150)}),
    "an unknown keyword": {"type": "integer", "x-new": 1},
}
