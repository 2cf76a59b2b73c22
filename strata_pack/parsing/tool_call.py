"""Reads one call in XML form incrementally: header, parameters, end, and all known drift.

The reader is a table: the position reached (a ``Place``) and the next tag (a ``Token``) determine the action. The
well-formed grammar and each tolerated drift are rows; a combination without a row means: not a call. The hard part is
the end of a value, because a value may contain any tag: ``docs/parsing.md`` has a diagram.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from strata_pack.parsing.actions import CallActions
from strata_pack.parsing.places import Place
from strata_pack.parsing.tokens import Tag, Token


class XmlCall(CallActions):
    """Reads one call from its function's header on.

    ``bare``: it has no ``<tool_call>``. ``stream``: emit ``tool_start`` and ``tool_args`` while it is read, in
    ``events``. ``in_thinking``: it is in the thinking, so ``</think>`` after it is not prose.

    Feed it until ``status`` is ``DONE`` (``calls`` has the call) or ``FAILED`` (``text()`` returns the text read).
    ``again`` is text after the call that the caller must read again; ``function_follows`` says that a second function
    is in the same wrapper.
    """


Action = Callable[[XmlCall, Tag, str, int], int]


class Row(NamedTuple):
    """In each of ``places``, each of ``tokens`` triggers ``action``. ``drift`` names the departure from the format
    that the row tolerates."""

    places: tuple[Place, ...]
    tokens: tuple[Token, ...]
    action: Action
    drift: str = ""


DRIFT: dict[str, str] = {
    "function-name-unclosed": "`>` missing after the function's name before a line end",
    "function-misspelt": "`<func=save>`, `<function name=save>` and the like for a declared function",
    "function-as-parameter": "`<parameter=TOOL>` where a function must open",
    "opener-doubled": "an opening tag written twice",
    "parameter-name-attribute": '`<parameter name="q">`',
    "parameter-value-inline": "`<parameter=path=a.py</parameter>` for a declared `path`",
    "parameter-misspelt": "`<parameter=path` and a line end, `<param=path>`, `<parameter : path>` and the like, "
    "for a declared `path`",
    "parameter-closer-missing": "`</parameter>` missing before the next `<parameter=` or `</function>`",
    "parameter-closer-misspelt": "`</parameter1>` and the like, alone on its line, with a tag of the call after it",
    "parameter-closer-wrong": "`</function>` for `</parameter>` before a declared parameter",
    "closers-swapped": "`</function></parameter>` before `</tool_call>`",
    "doubled-closer": "a closing tag written twice, or a `</parameter>` without a parameter",
    "wrong-closing-tag": "`</function_invocation>` and the like for `</function>`, `</tool_cal>` for `</tool_call>`",
    "words-between-tags": "a remark of one line where a tag is due: dropped",
    "call-closer-missing": "`</tool_call>` missing at a natural stop, before the next call or before `</think>`",
    "two-functions": "two functions in one wrapper: two calls",
    "prose-before-call-closer": "text between `</function>` and `</tool_call>`: dropped",
}
"""The departures from the format that still make a call. One more, quotes or spaces around a name, does not depend
on the order of tags: ``tokens.clean_name`` removes them."""

_P, _T, _C = Place, Token, XmlCall
_FUNCTION = (_T.FUNCTION, _T.FUNCTION_UNCLOSED)
_PARAMETER = (_T.PARAMETER, _T.PARAMETER_ATTRIBUTE, _T.PARAMETER_INLINE)
_ANY_PARAMETER = (*_PARAMETER, _T.PARAMETER_LIKE)
_FUNCTION_END = (_T.FUNCTION_END, _T.FUNCTION_END_LIKE)
_NEST = (_P.NEST, _P.NEST_BODY, _P.NEST_EMPTY_END, _P.NEST_END)
# fmt: off
ROWS: tuple[Row, ...] = (
    Row((_P.HEADER,), (_T.FUNCTION,), _C._read_name),
    Row((_P.HEADER,), (_T.FUNCTION_UNCLOSED,), _C._read_name, "function-name-unclosed"),
    Row((_P.HEADER,), (_T.FUNCTION_LIKE,), _C._read_name, "function-misspelt"),
    Row((_P.HEADER,), (_T.PARAMETER,), _C._read_name_from_parameter, "function-as-parameter"),
    Row((_P.HEADER,), (_T.TEXT,), _C._fail),

    Row((_P.BODY,), (_T.PARAMETER,), _C._open_value),
    Row((_P.BODY,), (_T.PARAMETER_ATTRIBUTE,), _C._open_value, "parameter-name-attribute"),
    Row((_P.BODY,), (_T.PARAMETER_INLINE,), _C._open_value, "parameter-value-inline"),
    Row((_P.BODY,), (_T.PARAMETER_LIKE,), _C._open_value, "parameter-misspelt"),
    Row((_P.BODY,), (*_FUNCTION, _T.FUNCTION_LIKE), _C._header_again, "opener-doubled"),
    Row((_P.BODY,), (_T.PARAMETER_END,), _C._absorb, "doubled-closer"),
    Row((_P.BODY,), (_T.FUNCTION_END,), _C._function_closer),
    Row((_P.BODY,), (_T.FUNCTION_END_LIKE,), _C._function_closer, "wrong-closing-tag"),
    Row((_P.BODY,), (_T.CALL, _T.CALL_END, _T.THINK_END), _C._fail),
    Row((_P.BODY,), (_T.TEXT,), _C._words, "words-between-tags"),

    Row((_P.FRESH,), _ANY_PARAMETER, _C._opener_again, "opener-doubled"),
    Row((_P.FRESH,), (_T.SURPLUS,), _C._surplus, "parameter-misspelt"),
    Row((_P.FRESH,), (_T.TEXT,), _C._back),

    Row((_P.VALUE,), (_T.PARAMETER_END,), _C._value_closer),
    Row((_P.VALUE,), (_T.PARAMETER_END_LIKE,), _C._value_closer_like, "parameter-closer-misspelt"),
    Row((_P.VALUE,), _ANY_PARAMETER, _C._parameter_in_value, "parameter-closer-missing"),
    Row((_P.VALUE,), (_T.FUNCTION_END,), _C._function_closer_in_value, "parameter-closer-missing"),
    Row((_P.VALUE,), (_T.CALL,), _C._opener_in_value),
    Row((_P.VALUE,), (_T.CALL_END,), _C._call_closer_in_value, "prose-before-call-closer"),
    Row((_P.VALUE,), _FUNCTION, _C._function_in_value),
    Row((_P.VALUE,), (_T.TEXT,), _C._as_text),

    Row((_P.VALUE_END,), (_T.PARAMETER,), _C._next_parameter),
    Row((_P.VALUE_END,), (_T.PARAMETER_ATTRIBUTE,), _C._next_parameter, "parameter-name-attribute"),
    Row((_P.VALUE_END,), (_T.PARAMETER_INLINE,), _C._next_parameter, "parameter-value-inline"),
    Row((_P.VALUE_END,), (_T.PARAMETER_LIKE,), _C._next_parameter, "parameter-misspelt"),
    Row((_P.VALUE_END,), (_T.PARAMETER_END, _T.PARAMETER_END_LIKE), _C._value_closer_again, "doubled-closer"),
    Row((_P.VALUE_END,), (_T.FUNCTION_END,), _C._function_closer),
    Row((_P.VALUE_END,), (_T.FUNCTION_END_LIKE,), _C._function_closer, "wrong-closing-tag"),
    Row((_P.VALUE_END,), (*_FUNCTION, _T.FUNCTION_LIKE), _C._function_without_end),
    Row((_P.VALUE_END, _P.LIKE_END), (_T.CALL_END, _T.CALL_END_LIKE), _C._broken_call_closer),
    Row((_P.VALUE_END,), (_T.CALL,), _C._back),
    Row((_P.VALUE_END,), (_T.TEXT,), _C._words_after_value, "words-between-tags"),

    Row((_P.LIKE_END,), _ANY_PARAMETER, _C._parameter_after_like, "parameter-closer-misspelt"),
    Row((_P.LIKE_END,), (_T.FUNCTION_END,), _C._closer_after_like, "parameter-closer-misspelt"),
    Row((_P.LIKE_END,), (_T.TEXT,), _C._back),

    Row((_P.WORDS, _P.WORDS_END), _ANY_PARAMETER, _C._parameter_after_words, "words-between-tags"),
    Row((_P.WORDS, _P.WORDS_END), (_T.FUNCTION_END,), _C._function_closer_after_words, "words-between-tags"),
    Row((_P.WORDS, _P.WORDS_END), (_T.CALL_END,), _C._call_closer_after_words),
    Row((_P.WORDS, _P.WORDS_END), (_T.PARAMETER_END, _T.CALL, *_FUNCTION), _C._no_words),
    Row((_P.WORDS,), (_T.TEXT,), _C._word),
    Row((_P.WORDS_END,), (_T.TEXT,), _C._no_words),

    Row((_P.LOOSE_END,), (_T.CALL_END, _T.CALL_END_LIKE), _C._loose_call_closer, "parameter-closer-missing"),
    Row((_P.LOOSE_END,), (_T.FUNCTION_END,), _C._loose_closer, "doubled-closer"),
    Row((_P.LOOSE_END,), (_T.PARAMETER_END,), _C._swapped_closer, "closers-swapped"),
    Row((_P.LOOSE_END,), _ANY_PARAMETER, _C._parameter_after_loose_closer, "parameter-closer-wrong"),
    Row((_P.LOOSE_END,), (*_FUNCTION, _T.FUNCTION_LIKE), _C._second_function_loosely, "two-functions"),
    Row((_P.LOOSE_END,), (_T.CALL,), _C._loose_opener, "call-closer-missing"),
    Row((_P.LOOSE_END,), (_T.END,), _C._ended_loosely, "call-closer-missing"),
    Row((_P.LOOSE_END,), (_T.TEXT,), _C._back),
    Row((_P.LOOSE_CALL, _P.PROSE_CALL), _FUNCTION, _C._next_call),
    Row((_P.LOOSE_CALL,), (_T.TEXT,), _C._back),

    Row((_P.FUNCTION_END,), (_T.CALL_END,), _C._call_closer),
    Row((_P.FUNCTION_END,), (_T.CALL_END_LIKE,), _C._call_closer, "wrong-closing-tag"),
    Row((_P.FUNCTION_END,), _FUNCTION_END, _C._function_closer, "doubled-closer"),
    Row((_P.FUNCTION_END,), (_T.CALL, _T.END), _C._ended, "call-closer-missing"),
    Row((_P.FUNCTION_END,), (*_FUNCTION, _T.FUNCTION_LIKE), _C._second_function, "two-functions"),
    Row((_P.FUNCTION_END,), _ANY_PARAMETER, _C._parameter_after_function, "function-as-parameter"),
    Row((_P.FUNCTION_END,), (_T.THINK_END,), _C._thinking_closer, "call-closer-missing"),
    Row((_P.FUNCTION_END,), (_T.TEXT,), _C._prose, "prose-before-call-closer"),
    Row((_P.PROSE,), (_T.CALL_END,), _C._call_closer, "prose-before-call-closer"),
    Row((_P.PROSE,), (_T.CALL,), _C._prose_opener, "call-closer-missing"),
    Row((_P.PROSE,), (*_FUNCTION, _T.END), _C._ended, "call-closer-missing"),
    Row((_P.PROSE,), (_T.THINK_END,), _C._thinking_closer_in_prose, "call-closer-missing"),
    Row((_P.PROSE,), (_T.TEXT,), _C._as_text),
    Row((_P.PROSE_CALL,), (_T.END,), _C._ended, "call-closer-missing"),
    Row((_P.PROSE_CALL,), (_T.TEXT,), _C._prose_goes_on),

    Row((_P.NEST,), _FUNCTION, _C._nested_function),
    Row((_P.NEST_BODY,), (_T.PARAMETER, _T.PARAMETER_ATTRIBUTE), _C._nested_parameter),
    Row((_P.NEST_BODY,), (_T.FUNCTION_END,), _C._nested_empty_closer),
    Row((_P.NEST_EMPTY_END, _P.NEST_END), (_T.CALL_END,), _C._nested_call_closer),
    Row(_NEST, (_T.TEXT,), _C._back),
)
# fmt: on

XmlCall._table = {place: {} for place in Place}
for _row in ROWS:
    for _place in _row.places:
        XmlCall._table[_place].update(dict.fromkeys(_row.tokens, _row.action))
