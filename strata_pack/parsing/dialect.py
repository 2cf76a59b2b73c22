"""Defines a dialect: the tags of one model family, as data. The same state machine reads all dialects.

``docs/parsing.md`` explains how to add one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

DialectName = Literal["qwen", "seed-oss", "minimax-m2", "glm"]
"""The known dialects."""

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
"""Qwen's tags, which most families use: the defaults of a ``Dialect``."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family writes its thinking and its calls.

    Every tag begins with ``<``. A function's header is ``function_open``, the name and ``function_opened``; likewise
    for a parameter. ``function_open`` may be empty: then the name directly follows ``call_open``. If ``function_close``
    equals ``call_close``, that one tag ends both.

    - ``type_attribute``: an attribute after a parameter's name that says whether its value is a string
      (``string="true"``), empty if the family has none.
    - ``value_on_lines``: whether a value is on separate lines between its opening and closing tags.
    - ``generation_mark``: the beginning of the generation prompt; empty if the family has none.
    - ``signs``: strings, at least one of which is in every chat template of this dialect.
    """

    name: str
    think_open: str = THINK_OPEN
    think_close: str = THINK_CLOSE
    call_open: str = CALL_OPEN
    call_close: str = CALL_CLOSE
    function_open: str = "<function="
    function_opened: str = ">"
    function_close: str = "</function>"
    parameter_open: str = "<parameter="
    parameter_opened: str = ">"
    parameter_close: str = "</parameter>"
    type_attribute: str = ""
    value_on_lines: bool = True
    generation_mark: str = "<|im_start|>assistant"
    signs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tags = [self.think_open, self.think_close, self.call_open, self.call_close, self.function_close]
        tags += [self.function_open or "<", self.parameter_open, self.parameter_close]
        wrong = [tag for tag in tags if not re.fullmatch("<[^<]*", tag)]
        if wrong:
            raise ValueError(f"a tag of the dialect {self.name!r} does not begin with its only '<': {wrong[0]!r}")

    @property
    def tags(self) -> tuple[str, ...]:
        """The four tags of the thinking and of a call, which are special tokens in vocabularies that have them."""
        return (self.think_open, self.think_close, self.call_open, self.call_close)

    @property
    def all_tags(self) -> tuple[str, ...]:
        """All tags that a vocabulary may have as tokens."""
        others = (self.function_open, self.function_close, self.parameter_open, self.parameter_close)
        return tuple(dict.fromkeys((*self.tags, *filter(None, others), *re.findall("<[^<>]*>", self.parameter_opened))))

    @property
    def wrapped(self) -> bool:
        """Whether a function has its own closing tag before the call's."""
        return self.function_close != self.call_close


QWEN = Dialect("qwen", signs=("<function=", "<tool_call>"))
SEED_OSS = Dialect(
    "seed-oss",
    think_open="<seed:think>",
    think_close="</seed:think>",
    call_open="<seed:tool_call>",
    call_close="</seed:tool_call>",
    value_on_lines=False,
    generation_mark="<seed:bos>assistant",
    signs=("<seed:tool_call>", "<seed:think>"),
)
MINIMAX_M2 = Dialect(
    "minimax-m2",
    call_open="<minimax:tool_call>",
    call_close="</minimax:tool_call>",
    function_open='<invoke name="',
    function_opened='">',
    function_close="</invoke>",
    parameter_open='<parameter name="',
    parameter_opened='">',
    value_on_lines=False,
    generation_mark="]~b]ai",
    signs=("<minimax:tool_call>",),
)
GLM = Dialect(
    "glm",
    function_open="",
    function_opened="\n",
    function_close="</tool_call>",
    parameter_open="<arg_key>",
    parameter_opened="</arg_key>\n<arg_value>",
    parameter_close="</arg_value>",
    value_on_lines=False,
    generation_mark="<|assistant|>",
    signs=("<arg_key>",),
)

DIALECTS: dict[str, Dialect] = {each.name: each for each in (SEED_OSS, MINIMAX_M2, GLM, QWEN)}
"""The known dialects by name, those with ``signs`` first."""


def dialect_of(template: str) -> Dialect:
    """Return the dialect whose tags are in the chat template ``template``; Qwen's if no other matches."""
    return next((each for each in DIALECTS.values() if any(sign in template for sign in each.signs)), QWEN)


def read_dialect(dialect: Dialect | str) -> Dialect:
    """Return ``dialect``, or the dialect of that name; ``ValueError`` for an unknown name."""
    if isinstance(dialect, Dialect):
        return dialect
    if dialect not in DIALECTS:
        raise ValueError(f"dialect must be one of {tuple(DIALECTS)}, not {dialect!r}")
    return DIALECTS[dialect]
