"""Strict decoding of request bodies; every error names its field.

Unknown fields are ignored, because clients send fields of newer servers; a known field of the wrong type is a 400.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from strata_pack.gateway.failures import ApiError, bad_request


class Body(BaseModel):
    """A request or a part of one."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False, protected_namespaces=())


class Kept(Body):
    """A part whose unknown fields are kept, because a template may read them. Its fields are JSON, or ``Kept``."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())

    def given(self) -> dict[str, Any]:
        """Return the fields that the client sent."""
        sent = self.model_fields_set
        fields = {name: value for name, value in self.__dict__.items() if name in sent}
        return {
            name: value.given() if isinstance(value, Kept) else value
            for name, value in (fields | (self.__pydantic_extra__ or {})).items()
        }


B = TypeVar("B", bound=Body)

MAX_DIGITS = 1000

NO_NUMBERS = (b"NaN", b"Infinity")
LARGE_NUMBERS = (b"0e000", b"0e+000", b"0" * 200)
"""Every number above 1e300 contains one of these when all its digits are replaced by 0."""

ALIKE = bytes.maketrans(b"123456789E", b"000000000e")


def _nothing_if(*values: Any) -> BeforeValidator:
    """Return a validator that treats the given values as a missing field."""
    return BeforeValidator(lambda value: None if any(value is one or _same(value, one) for one in values) else value)


def _without_empty(value: Any) -> Any:
    return [one for one in value if one != ""] if isinstance(value, list) else value


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


Name = Annotated[str, Field(min_length=1, max_length=256)]
StopText = Annotated[str, Field(max_length=1024)]
Probability = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
MOST_TOKENS = 1 << 30


def _at_most(limit: int) -> BeforeValidator:
    """Return a validator that lowers larger whole numbers: clients write 2147483647 or more for "no limit"."""
    return BeforeValidator(lambda value: limit if type(value) is int and value > limit else value)


Count = Annotated[int, Field(ge=1, le=MOST_TOKENS), _at_most(MOST_TOKENS)]
TokenLimit = Annotated[
    Count | None,
    _nothing_if(-1),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}, {"enum": [-1, None]}]}),
]
"""A number of tokens; -1 (llama.cpp, LM Studio) means no limit."""

Predict = Annotated[
    Annotated[int, Field(ge=0, le=MOST_TOKENS), _at_most(MOST_TOKENS)] | None,
    _nothing_if(-1, -2),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": -2, "maximum": MOST_TOKENS}, {"type": "null"}]}),
]
"""llama.cpp's ``n_predict``: like ``TokenLimit``; 0 fills the cache with the prompt and generates nothing."""

StopTexts = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=16)] | None,
    BeforeValidator(lambda value: _without_empty(value) or None),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": 1024},
                {"type": "array", "items": {"type": "string", "maxLength": 1024}, "maxItems": 16},
                {"type": "null"},
            ]
        }
    ),
]
"""One stop string or several; empty ones are ignored."""

StopList = Annotated[
    Annotated[list[StopText], Field(max_length=16)] | None, BeforeValidator(lambda value: _without_empty(value) or None)
]
"""Several stop strings; empty ones are ignored."""

Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)]
TopK = Annotated[int, Field(ge=-1, le=1 << 30), AfterValidator(lambda value: max(value, 0))]
"""Tokens to choose from; 0 and -1 mean all."""
Temperature = Annotated[float, Field(ge=0, le=100)]
Budget = Annotated[
    Annotated[int, Field(ge=0, le=MOST_TOKENS), _at_most(MOST_TOKENS)] | None,
    _nothing_if(-1),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": -1, "maximum": MOST_TOKENS}, {"type": "null"}]}),
]
"""Tokens of thinking; -1 (llama.cpp, Gemini's API) means no limit."""

Effort = Annotated[str, Field(max_length=64)]


class ToolFunction(Kept):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None


class JsonSchema(Body):
    """``{"name": ..., "schema": {...}}``."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    name: str | None = None
    strict: bool | None = None


def text_field(where: str, fields: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """Return a string field of the object at path ``where``. Raises ``ApiError`` 400 unless it is a string, or is
    missing and there is a ``default``."""
    value = fields.get(name, default)
    if value is None and name not in fields:
        raise bad_request(f"{where}.{name}: is missing", f"{where}.{name}")
    if not isinstance(value, str):
        raise bad_request(f"{where}.{name}: must be a string", f"{where}.{name}")
    return value


SURROGATE = re.compile(
    rb"\\(?:"
    rb"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|.)",
    re.DOTALL,
)
"""An escape in JSON; the group ``half`` matches an unpaired surrogate."""

RAW_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
BOM = b"\xef\xbb\xbf"


def sound_json(data: bytes) -> bytes:
    """Return a body with U+FFFD for every unpaired surrogate, and without a byte order mark.

    Agents cut texts in the middle of an emoji; the unpaired surrogate then stays in their history and all later
    requests.
    """
    data = data.removeprefix(BOM)
    if b"\\ud" in data or b"\\uD" in data:
        data = SURROGATE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)
    if b"\xed" in data:
        data = RAW_SURROGATE.sub("\N{REPLACEMENT CHARACTER}".encode(), data)
    return data


def read_body(kind: type[B], data: bytes) -> B:
    """Return the body as ``kind``. Raises ``ApiError`` 400 that names the first wrong field."""
    try:
        if _may_hold_odd_numbers(data):
            with suppress(ValueError):  # a body that is not JSON at all gets the better complaint below
                json.loads(data, parse_constant=_refuse_number, parse_float=_finite, parse_int=_short)
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise _complaint(error) from None
    except RecursionError:
        raise bad_request("the body is nested too deeply") from None


def read_part(kind: type[B], where: str, value: Any) -> B:
    """Return the part of a body at path ``where`` as ``kind``. Raises ``ApiError`` 400 as ``read_body``."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _complaint(error, where) from None


def _may_hold_odd_numbers(data: bytes) -> bool:
    """Return whether a body may contain NaN, an infinity or a number too large for a float.

    Plain searches, because they are fast for any body, and the event loop is blocked meanwhile.
    """
    if any(word in data for word in NO_NUMBERS):
        return True
    alike = data.translate(ALIKE)
    return any(form in alike for form in LARGE_NUMBERS)


def _refuse_number(text: str) -> NoReturn:
    raise bad_request(f"the body is not JSON (it contains the number {text[:40]})")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse_number(text)


def _short(text: str) -> int:
    return int(text) if len(text) <= MAX_DIGITS else _refuse_number(text)


def _complaint(error: ValidationError, where: str = "") -> ApiError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    # A union reports one error per member: the member that was meant has the deepest path, or the right type.
    worst = max(found, key=lambda one: (len(one["loc"]), not one["type"].endswith("_type")))
    if worst["type"] == "json_invalid":
        return bad_request(f"the body is not JSON ({worst['msg'].removeprefix('Invalid JSON: ')})")
    steps = [str(part) for part in worst["loc"] if not _is_member(part)]
    path = ".".join([where, *steps] if where else steps)
    message = worst["msg"][:300]
    return bad_request(f"{path}: {message}" if path else f"the body: {message}", path or None)


def _is_member(part: int | str) -> bool:
    """Return whether a step of a path names a union's member (``list[...]``, ``str``, a class) instead of a field."""
    return isinstance(part, str) and (
        part in ("str", "dict", "bool", "float", "int") or "[" in part or "-" in part or part[:1].isupper()
    )
