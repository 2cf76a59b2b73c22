"""Parses generated text into reasoning, content and tool calls, without I/O and with only the standard library.

``OutputParser`` parses a reply delta by delta, ``parse`` a whole reply, ``aparse`` an asynchronous stream of deltas.
"""

from strata_pack.parsing.output_parser import OutputParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.parsing.dialect import DIALECTS, Dialect, DialectName, dialect_of
    from strata_pack.parsing.events import Counters, Event, EventKind, ToolCall, json_text
    from strata_pack.parsing.machine import CallFormat, ImplicitEnd
    from strata_pack.parsing.parser import thinking_open
    from strata_pack.parsing.tags import holds_call_tag
    from strata_pack.parsing.whole import Reply, aparse, parse

__all__ = [
    "DIALECTS",
    "CallFormat",
    "Counters",
    "Dialect",
    "DialectName",
    "Event",
    "EventKind",
    "ImplicitEnd",
    "OutputParser",
    "Reply",
    "ToolCall",
    "aparse",
    "dialect_of",
    "holds_call_tag",
    "json_text",
    "parse",
    "thinking_open",
]

_MODULES = {
    "dialect": ("DIALECTS", "Dialect", "DialectName", "dialect_of"),
    "events": ("Counters", "Event", "EventKind", "ToolCall", "json_text"),
    "machine": ("CallFormat", "ImplicitEnd"),
    "parser": ("thinking_open",),
    "tags": ("holds_call_tag",),
    "whole": ("Reply", "aparse", "parse"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(__import__(f"{__name__}.{module}", fromlist=[name]), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
