"""Generated text to reasoning, content and tool calls. Pure: no I/O, nothing but the standard library.

``OutputParser`` reads a reply delta by delta; ``parse`` and ``aparse`` read a whole or an asynchronous one.
"""

from strata_pack.parsing.events import Counters, Event, EventKind, ToolCall, json_text
from strata_pack.parsing.machine import CallFormat, ImplicitEnd
from strata_pack.parsing.parser import OutputParser, thinking_open
from strata_pack.parsing.whole import Reply, aparse, parse

__all__ = [
    "CallFormat",
    "Counters",
    "Event",
    "EventKind",
    "ImplicitEnd",
    "OutputParser",
    "Reply",
    "ToolCall",
    "aparse",
    "json_text",
    "parse",
    "thinking_open",
]
