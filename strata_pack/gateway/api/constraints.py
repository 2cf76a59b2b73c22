"""Constraints on the format of an answer, under the field names of all supported servers' APIs.

Each field is either enforced, by a grammar that starts after the thinking, or refused with an error that names it: a
silently ignored constraint would break the reader of the answer now and then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import Field

from strata_pack.gateway.api.fields import Body, JsonSchema
from strata_pack.gateway.failures import bad_request
from strata_pack.gateway.grammar.gbnf import literal
from strata_pack.gateway.grammar.soundness import fault_of
from strata_pack.gateway.turn import AnswerForm, GrammarAnswer, JsonAnswer

MAX_GRAMMAR = 256 << 10
"""Most characters of a client's grammar."""

SchemaValue = dict[str, Any] | bool | str
Choices = Annotated[list[str], Field(min_length=1, max_length=1000)]


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    bare_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class StructuredOutputs(Body):
    """vLLM's ``structured_outputs``: one of these fields."""

    json_: SchemaValue | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    structural_tag: Any = None


class ConstraintFields(Body):
    """The fields of a request that constrain its answer.

    ``grammar`` and ``json_schema`` are llama.cpp's, ``guided_*`` and ``structured_outputs`` vLLM's, ``format`` is
    Ollama's, ``regex``, ``ebnf`` and ``structural_tag`` are SGLang's.
    """

    response_format: ResponseFormat | None = None
    grammar: str | None = None
    json_schema: SchemaValue | None = None
    guided_json: SchemaValue | None = None
    guided_json_object: bool | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: Any = None
    grammar_lazy: bool | None = None


def wanted_answer(request: ConstraintFields, other: tuple[str, AnswerForm] | None = None) -> AnswerForm | None:
    """Return the constraint of ``request``, ``None`` if it has none; ``other`` is an API-specific one with its field
    name.

    Raises ``ApiError`` 400 that names the field for a constraint that cannot be enforced, and for two constraints.
    """
    found = [] if other is None else [other]
    given = request.model_fields_set
    for field, read in READERS.items():
        if field not in given:
            continue
        value = getattr(request, field)
        if value is not None and (answer := read(field, value)) is not None:
            found.append((field, answer))
    if len(found) > 1:
        first, second = found[0][0], found[1][0]
        raise bad_request(f"{second}: cannot be combined with {first}, because both constrain the answer", second)
    if not found:
        return None
    field, wanted = found[0]
    fault = fault_of(wanted.schema) if isinstance(wanted, JsonAnswer) else None
    if fault is not None:
        path, problem = fault
        raise bad_request(f"{field}: the schema is not valid: {path.removeprefix('.') or 'it'} {problem}", field)
    return wanted


def _response_format(field: str, wanted: ResponseFormat) -> AnswerForm | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        schema = wanted.bare_schema
        return JsonAnswer({"type": "object"} if schema is None else schema)
    named = wanted.json_schema.json_schema if wanted.json_schema is not None else wanted.bare_schema
    if named is None:
        raise bad_request(f"{field}.json_schema.schema: is missing", f"{field}.json_schema.schema")
    return JsonAnswer(named)


def _schema(field: str, wanted: SchemaValue) -> AnswerForm | None:
    if isinstance(wanted, str):
        if not wanted.strip():
            return None
        try:
            wanted = json.loads(wanted)
        except (ValueError, RecursionError):
            raise bad_request(f"{field}: is neither a schema nor the JSON text of one", field) from None
    if wanted is False or not isinstance(wanted, (dict, bool)):
        raise bad_request(f"{field}: must be a JSON Schema that allows something", field)
    return JsonAnswer(wanted if isinstance(wanted, dict) else {})


def _grammar(field: str, wanted: str) -> AnswerForm | None:
    if not wanted.strip():
        return None
    if "::=" not in wanted:
        raise bad_request(f"{field}: is not a GBNF grammar (root ::= ...), the only supported notation", field)
    if len(wanted) > MAX_GRAMMAR:
        raise bad_request(f"{field}: has more than {MAX_GRAMMAR} characters", field)
    return GrammarAnswer(wanted, field)


def _choice(field: str, wanted: list[str]) -> AnswerForm:
    return GrammarAnswer(f"root ::= {' | '.join(map(literal, wanted))}\n", field)


def _object(_field: str, wanted: bool) -> AnswerForm | None:
    return JsonAnswer({"type": "object"}) if wanted else None


def _refused(field: str, wanted: Any) -> None:
    if wanted not in ("", None):
        raise bad_request(f"{field}: is not supported; use a grammar (GBNF) or a JSON Schema", field)


def _lazy(field: str, wanted: bool) -> None:
    if wanted:
        raise bad_request(
            f"{field}: is not supported: a grammar applies to the whole answer; require calls with tool_choice", field
        )


def _structured(field: str, wanted: StructuredOutputs) -> AnswerForm | None:
    found: list[tuple[str, AnswerForm]] = []
    for name, read in STRUCTURED_READERS.items():
        value = getattr(wanted, name)
        if value is not None and (answer := read(f"{field}.{name.rstrip('_')}", value)) is not None:
            found.append((name, answer))
    if len(found) > 1:
        raise bad_request(f"{field}: has more than one constraint", field)
    return found[0][1] if found else None


def _format(field: str, wanted: str | dict[str, Any]) -> AnswerForm | None:
    return _schema(field, wanted) if isinstance(wanted, dict) else _object(field, wanted == "json")


ConstraintReader = Callable[[str, Any], AnswerForm | None]
STRUCTURED_READERS: dict[str, ConstraintReader] = {
    "json_": _schema,
    "json_object": _object,
    "choice": _choice,
    "grammar": _grammar,
    "regex": _refused,
    "structural_tag": _refused,
}
READERS: dict[str, ConstraintReader] = {
    "response_format": _response_format,
    "grammar": _grammar,
    "json_schema": _schema,
    "guided_json": _schema,
    "guided_json_object": _object,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "guided_regex": _refused,
    "structured_outputs": _structured,
    "format": _format,
    "regex": _refused,
    "ebnf": _grammar,
    "structural_tag": _refused,
    "grammar_lazy": _lazy,
}
"""Reader of each field; it returns ``None`` if the value constrains nothing."""
