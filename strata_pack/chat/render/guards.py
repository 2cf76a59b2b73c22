"""Guards methods, operators, filters and tests: each charges the budget before it runs.

jinja2's sandbox protects the interpreter from a template, but allows ``'a' * 10**9``. Two tables define the allowed
methods and filters and the check before each. Every reachable operation whose cost can exceed the size of its operands
has a guard here; for the others ``Budget.walk`` charges.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from typing import Any, cast

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.tests import TESTS

from strata_pack.chat.render.budget import SCALARS, LimitExceeded, counted, current, printed_chars, total_chars

MAX_AT_ONCE = 1 << 19
MAX_INT_BITS = 4096
MAX_WIDTH = 10_000
MAX_CUTSET = 256
MAX_BACKWARD = 1 << 28
MAX_LEGACY_CHARS = 64 << 10
"""Maximum characters for HTML filters, some of which take quadratic time."""

MAX_DIGITS = 5
WIDE_NUMBER = re.compile(r"\d{5}")
NUMBER = re.compile(r"[0-9]+")
PRINTF_WIDTH = re.compile(r"%(?:\([^()]*\))?[^a-zA-Z%]*?(?:\*|\d{5})|%\([^()]*\(")
"""A width that is or may be huge; it follows the key, which may contain any text, also brackets."""
STRFTIME = re.compile(r"(?:[^%]|%[-_0^#]?[a-zA-Z%])*")

GuardCheck = Callable[..., None]
Filter = Callable[..., Any]


def _width(width: Any, what: str = "a width") -> None:
    if isinstance(width, int) and abs(width) > MAX_WIDTH:
        raise LimitExceeded(f"asks for {what} of more than {MAX_WIDTH}")


# Methods: (self, *arguments) of the call.


def _grows(text: str, *_arguments: Any) -> None:
    current().text(3 * len(text))


def _pads(text: str, width: Any = 0, *_fill: Any) -> None:
    _width(width)
    current().text(len(text) + MAX_WIDTH)


def _joins(text: str, items: Iterable[Any] = ()) -> None:
    values = items if isinstance(items, Collection) else ()
    current().text(total_chars(values) + len(text) * len(values))


def _replaces(text: str, old: Any = "", new: Any = "", count: Any = -1, *_rest: Any) -> None:
    if isinstance(old, str) and isinstance(new, str):
        found = text.count(old)
        if isinstance(count, int) and count >= 0:
            found = min(found, count)
        current().text(len(text) + found * len(new))


def _strips(text: str, cutset: Any = None) -> None:
    current().text(len(text))
    if isinstance(cutset, str) and len(cutset) > MAX_CUTSET:
        raise LimitExceeded(f"strips more than {MAX_CUTSET} different characters")


def _splits(text: str, *_arguments: Any) -> None:
    current().text(4 * len(text))


def _searches_back(text: str, needle: Any = None, *_arguments: Any) -> None:
    """Charge for a backward search: CPython searches forward in linear time, but backward in the product of both
    lengths."""
    current().text(len(text))
    if isinstance(needle, str) and len(text) * len(needle) > MAX_BACKWARD:
        raise LimitExceeded("searches a long text backwards for a long text")


def _splits_back(text: str, *arguments: Any) -> None:
    _searches_back(text, *arguments)
    _splits(text)


def _tabs(text: str, width: Any = 8) -> None:
    if isinstance(width, int) and width > 100:
        raise LimitExceeded("expands tabs to more than 100 columns")
    current().text(len(text) + text.count("\t") * 100)


def _reads(text: str, *_arguments: Any) -> None:
    current().read(len(text))


def _free(*_arguments: Any) -> None:
    pass


_TEXT_TESTS = (
    "startswith endswith find index count isdigit isalpha isalnum isspace isupper islower istitle "
    "isnumeric isdecimal isascii isidentifier isprintable"
)
_TEXT_CHANGES = "upper lower title capitalize swapcase casefold removeprefix removesuffix partition"

METHODS: Mapping[type, Mapping[str, GuardCheck]] = {
    str: {
        **dict.fromkeys(_TEXT_TESTS.split(), _reads),
        **dict.fromkeys(_TEXT_CHANGES.split(), _grows),
        **dict.fromkeys(("split", "splitlines"), _splits),
        **dict.fromkeys(("rfind", "rindex", "rpartition"), _searches_back),
        "rsplit": _splits_back,
        **dict.fromkeys(("strip", "lstrip", "rstrip"), _strips),
        **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pads),
        "expandtabs": _tabs,
        "join": _joins,
        "replace": _replaces,
    },
    dict: dict.fromkeys(("get", "items", "keys", "values", "copy"), _free),
    list: dict.fromkeys(("index", "count", "copy"), _free),
    tuple: dict.fromkeys(("index", "count"), _free),
    int: dict.fromkeys(("bit_length",), _free),
    float: dict.fromkeys(("is_integer",), _free),
    bytes: {},
}
"""The methods of builtin values that a template may call, with their guards. No other method is reachable."""

BUILTINS = tuple(METHODS)


def _listed(value: Any) -> Any:
    """Return ``value``, an iterator as the list of its elements."""
    return value if isinstance(value, SCALARS) or not isinstance(value, Iterator) else counted(value)


def check_method(owner: Any, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Check a call of the method ``name`` of the builtin value ``owner``; return the arguments to call it with.

    Raises ``SecurityError`` for a method that is not in ``METHODS``, ``LimitExceeded`` for a costly call.
    """
    kind = type(owner) if type(owner) in METHODS else next(kind for kind in METHODS if isinstance(owner, kind))
    check = METHODS[kind].get(name)
    if check is None:
        raise SecurityError(f"the method {name!r} of {type(owner).__name__!r} is not for templates")
    arguments = tuple([_listed(value) for value in arguments])
    current().walk(*arguments, *named.values())
    if kind in (list, tuple):
        current().walk(owner)
    check(owner, *arguments, *named.values())
    return arguments


# Operators.


def _add(left: Any, right: Any) -> None:
    if isinstance(left, (str, bytes)) and isinstance(right, (str, bytes)):
        current().text(len(left) + len(right))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        current().elements(len(left) + len(right))
    else:
        _small_ints(left, right)


def _multiply(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(times, int) and not isinstance(value, (int, float)):
            if isinstance(value, (str, bytes)):
                current().text(len(value) * max(times, 0))
            elif isinstance(value, (list, tuple)):
                current().elements(len(value) * max(times, 0))
            return
    _small_ints(left, right)


def _power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_INT_BITS:
        raise LimitExceeded(f"computes a number of more than {MAX_INT_BITS} bits")


def _percent(left: Any, right: Any) -> None:
    if isinstance(left, str):
        if PRINTF_WIDTH.search(left):
            raise LimitExceeded(f"asks for a width of more than {MAX_WIDTH}")
        values = right if isinstance(right, tuple) else right.values() if isinstance(right, dict) else (right,)
        longest = max((printed_chars(value) for value in values), default=0)
        whole = printed_chars(right) if isinstance(right, dict) else 0
        widths = sum(int(number) for number in NUMBER.findall(left) if len(number) < MAX_DIGITS)
        current().text(len(left) + widths + left.count("%") * (max(longest, whole) + 1))
    else:
        _small_ints(left, right)


def _small_ints(*values: Any) -> None:
    for value in values:
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise LimitExceeded(f"computes a number of more than {MAX_INT_BITS} bits")


OPERATORS: Mapping[str, Callable[[Any, Any], None]] = {
    "+": _add,
    "-": _small_ints,
    "*": _multiply,
    "/": _small_ints,
    "//": _small_ints,
    "%": _percent,
    "**": _power,
}


# Filters: (value, *arguments), without the context that jinja2 passes first.


def _joins_all(value: Any, separator: Any = "", attribute: Any = None, **_named: Any) -> None:
    if isinstance(value, str):
        current().text(len(value) * (1 + printed_chars(separator)))
    elif isinstance(value, Collection):
        chars = printed_chars(value) if attribute is not None else total_chars(value)
        current().text(chars + len(value) * printed_chars(separator))


def _indents(value: Any, width: Any = 4, *_rest: Any, **_named: Any) -> None:
    _width(width)
    chars = width if isinstance(width, int) else printed_chars(width)
    current().text(printed_chars(value) + (str(value).count("\n") + 2) * max(chars, 0))


def _replaces_in(value: Any, old: Any, new: Any, count: Any = None, **_named: Any) -> None:
    _replaces(str(value), str(old), str(new), -1 if count is None else count)


def _pads_filter(value: Any, width: Any = 80, **_named: Any) -> None:
    _width(width)
    current().text(printed_chars(value) + MAX_WIDTH)


def _groups(_value: Any, size: Any = 1, *_rest: Any, **_named: Any) -> None:
    _width(size, "a group")


def _rounds(value: Any, precision: Any = 0, *_rest: Any, **_named: Any) -> None:
    if isinstance(precision, int):
        if abs(precision) > 100:
            raise LimitExceeded("rounds to more than 100 digits")
        _multiply(value, 10 ** max(precision, 0))  # jinja2 multiplies a text or a list too


def _reads_int(value: Any, _default: Any = 0, base: Any = 10, **_named: Any) -> None:
    # Python limits the digits that it reads, but not where the base is a power of two.
    if base != 10 and isinstance(value, (str, bytes)) and len(value) > MAX_INT_BITS:
        raise LimitExceeded(f"reads a number of more than {MAX_INT_BITS} digits")


def _legacy(value: Any, *_rest: Any, **_named: Any) -> None:
    if printed_chars(value) > MAX_LEGACY_CHARS:
        raise LimitExceeded(f"puts more than {MAX_LEGACY_CHARS} characters through an HTML filter")


def _formats(value: Any, *arguments: Any, **named: Any) -> None:
    _percent(str(value), named or arguments)


def _trims(value: Any, cutset: Any = None, **_named: Any) -> None:
    _strips(value if isinstance(value, str) else "", cutset)


def _prints(value: Any, *_rest: Any, **_named: Any) -> None:
    current().text(6 * printed_chars(value))


def _lists(value: Any, *_rest: Any, **_named: Any) -> None:
    if isinstance(value, (str, list, tuple, dict)):
        current().elements(len(value))


_PRINTING = "e escape forceescape string upper lower capitalize title urlencode"

FILTER_CHECKS: Mapping[str, GuardCheck] = {
    "join": _joins_all,
    "indent": _indents,
    "replace": _replaces_in,
    "center": _pads_filter,
    "batch": _groups,
    "slice": _groups,
    "round": _rounds,
    "int": _reads_int,
    "format": _formats,
    "trim": _trims,
    "list": _lists,
    **dict.fromkeys(("pprint", "striptags", "truncate", "urlize", "wordwrap", "xmlattr"), _legacy),
    **dict.fromkeys(_PRINTING.split(), _prints),
}

UNWALKED = frozenset({"length", "count", "first", "last", "default", "d", "items", "safe", "attr", "map"})
"""Filters that do not traverse their value."""

EAGER = frozenset({"batch", "groupby", "join", "list", "max", "min", "slice", "sort", "sum", "unique"})
"""Filters that exhaust an iterator: it is first converted to a list, step by step, so that it can be weighed."""


def _run_through(value: Any) -> Any:
    """Return the elements for an eager filter, which processes them in one uninterruptible call."""
    value = _listed(value)
    if isinstance(value, Sized):
        if len(value) > MAX_AT_ONCE:
            raise LimitExceeded(f"sorts or joins more than {MAX_AT_ONCE} elements at once")
        current().step(len(value))
    return value


def guarded(name: str, function: Callable[..., Any], check: GuardCheck | None = None) -> Callable[..., Any]:
    """Return ``function`` (a filter or a test) with its guard."""
    skipped = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0
    walks, eager = name not in UNWALKED, name in EAGER

    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        budget = current()
        budget.step()
        if eager and len(given) > skipped:
            given = (*given[:skipped], _run_through(given[skipped]), *given[skipped + 1 :])
        arguments = given[skipped:] if skipped else given
        if walks:
            budget.walk(*arguments, *named.values())
        if check is not None:
            check(*arguments, **named)
        result = function(*given, **named)
        budget.copies(result)
        return result

    return wrapper


@jinja2.pass_environment
def _sum(environment: jinja2.Environment, items: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Return jinja2's sum, charging for each addition: that of a list copies everything added before it."""
    values = items if attribute is None else map(make_attrgetter(environment, attribute), items)
    return sum(_charged(values), start)


def _charged(values: Iterable[Any]) -> Iterator[Any]:
    length = 0
    for value in values:
        length += len(value) if isinstance(value, (list, tuple)) else 0
        current().elements(length)
        yield value


def guarded_filters() -> dict[str, Callable[..., Any]]:
    """Return jinja2's own filters with their guards."""
    filters = {**FILTERS, "sum": _sum}
    return {name: guarded(name, function, FILTER_CHECKS.get(name)) for name, function in filters.items()}


def guarded_tests() -> dict[str, Callable[..., Any]]:
    """Return jinja2's own tests; those that compare or read a string have guards."""
    comparing = {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, TESTS["in"]}
    checks: dict[Any, GuardCheck]
    checks = {TESTS["upper"]: _prints, TESTS["lower"]: _prints, TESTS["divisibleby"]: _small_ints}
    tests = cast("dict[str, Filter]", TESTS)
    return {
        name: guarded(name, test, checks.get(test)) if test in comparing or test in checks else test
        for name, test in tests.items()
    }
