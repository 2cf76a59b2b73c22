"""Defines the standard conversations: about sixty shapes with unique texts that can be located in a prompt.

Every text, name and value occurs once in its conversation and contains a word that no template writes, so that a prompt
shows what was left out, moved or changed. ``lenient`` is the reason why a template may fail on a shape: servers convert
the conversation first, or the model has no such role.
Source of the formats: the OpenAI chat completions API, as clients send it and as servers pass it to templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Sent = dict[str, Any]

JOINED = "most servers join the parts of a text first"
DOCUMENTED = "a model may have no such turns"
FILLED = "most clients write the field"
WITH_CALLS = "a text is null where a turn has calls"

LEFT_OUT = "<left out>"
"""Marks a message without the key ``content``."""


@dataclass(frozen=True)
class StandardShape:
    """A conversation. ``plain`` is the same with words for null, true and false, and ``""`` for a null content: Python
    spellings that only the prompt of the former contains come from those values."""

    name: str
    messages: Sequence[Sent]
    tools: Sequence[Mapping[str, Any]] | None = None
    lenient: str = ""
    plain: StandardShape | None = field(default=None, compare=False)

    def with_text(self) -> StandardShape:
        """Return the conversation with the arguments of its calls as JSON text, as in the API."""

        def spelled(call: Sent) -> Sent:
            function = call["function"]
            arguments = function["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            return {**call, "function": {**function, "arguments": text}}

        messages = [
            {**one, "tool_calls": [spelled(call) for call in one["tool_calls"]]} if one.get("tool_calls") else one
            for one in self.messages
        ]
        return replace(self, messages=messages, plain=None if self.plain is None else self.plain.with_text())

    def with_parts(self) -> StandardShape:
        """Return the conversation with every text content as a list of one part."""
        messages = [
            {**one, "content": parts(one["content"])} if isinstance(one.get("content"), str) else one
            for one in self.messages
        ]
        return replace(self, messages=messages, plain=None if self.plain is None else self.plain.with_parts())

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The called functions (``name`` and ``arguments``), in order."""
        return [call["function"] for message in self.messages for call in message.get("tool_calls") or []]


def user(text: Any) -> Sent:
    return {"role": "user", "content": text}


def system(text: Any) -> Sent:
    return {"role": "system", "content": text}


def call(number: int, arguments: Any, name: str = "zqfind", id: str = "") -> Sent:
    """Return a call; ids have nine letters and digits, as the strictest templates require."""
    function = {"name": name, "arguments": arguments}
    return {"id": id or f"zqcall{number:03d}", "type": "function", "function": function}


def assistant(text: Any, *calls: Sent, thought: str | None = None, tool_calls: Any = LEFT_OUT) -> Sent:
    message: Sent = {"role": "assistant"}
    if text != LEFT_OUT:
        message["content"] = text
    if thought is not None:
        message["reasoning_content"] = thought
    if calls or tool_calls != LEFT_OUT:
        message["tool_calls"] = list(calls) if calls else tool_calls
    return message


def result(number: int, text: Any, name: str | None = "zqfind", id: str = "") -> Sent:
    named = {} if name is None else {"name": name}
    return {"role": "tool", **named, "tool_call_id": id or f"zqcall{number:03d}", "content": text}


def parts(*texts: str) -> list[Sent]:
    return [{"type": "text", "text": text} for text in texts]


def tool(name: str = "zqfind", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def schema(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


WORD = {"type": "string", "description": "The zqword looked for."}
FIND = tool(description="Find a zqthing.", parameters=schema(["zqkey"], zqkey=WORD))
OPEN = tool("zqopen", description="Open a zqdoor.", parameters=schema(["zqkey"], zqkey=WORD))
RICH = tool(
    description="Find a zqthing.",
    parameters=schema(
        ["zqkey"],
        zqkey=WORD,
        zqexact={"type": "boolean", "description": "Whether the zqword is exact."},
        zqmost={"type": "integer", "description": "How many zqthings."},
        zqmore={"type": "object", "description": "More.", "properties": {"zqdeep": {"type": "boolean"}}},
    ),
)
TOOLS = (FIND, OPEN)

SYSTEM = system("Zqrule one holds for the moss.")
ASK = user("Zqask one: how does moss grow?")
ANSWER = assistant("Zqanswer one: it grows slowly.")
AGAIN = user("Zqask two: and in the shade?")
THOUGHT = "Zqthought one: look at the brook."
SAID = "Zqsaid one: a look at the brook first."
FOUND = "Zqfound one: moss by the brook."
CLOSING = assistant("Zqclosing one: there is moss.")
NEXT = user("Zqnext one: thank you.")
KEY = {"zqkey": "zqvalue one"}
_END = (CLOSING, NEXT)


def _agent(name: str, turn: Sent, *rest: Sent, tools: Any = TOOLS, **more: Any) -> StandardShape:
    return StandardShape(name, (SYSTEM, ASK, turn, *rest), tools, **more)


def _called(name: str, arguments: Any, plain: Any = None, tools: Any = (RICH,), lenient: str = "") -> StandardShape:
    """Return an agent's turn with ``arguments``; ``plain`` are the same with words in place of null, true and false."""
    rest = (result(1, FOUND), *_END)
    other = None if plain is None else _agent(name, assistant("", call(1, plain)), *rest, tools=tools)
    return _agent(name, assistant("", call(1, arguments)), *rest, tools=tools, lenient=lenient, plain=other)


def _declared(name: str, tools: Sequence[Any], plain: Sequence[Any] | None = None, lenient: str = "") -> StandardShape:
    other = None if plain is None else StandardShape(name, (SYSTEM, ASK), plain)
    return StandardShape(name, (SYSTEM, ASK), tools, lenient, other)


def _long(turns: int) -> list[Sent]:
    messages = [SYSTEM]
    for turn in range(turns):
        messages += [user(f"Zqask {turn}x: go on."), assistant(f"Zqanswer {turn}x: it goes on.")]
    return [*messages, NEXT]


_ONE = assistant("", call(1, KEY))
_AFTER = (result(1, FOUND), *_END)
_TWO = (call(1, KEY), call(2, {"zqkey": "zqvalue two"}))
_RESULTS = (result(1, FOUND), result(2, "Zqfound two: moss by the wall."))
_FIVE = [call(number, {"zqkey": f"zqvalue {number}x"}) for number in range(1, 6)]
_FIVE_RESULTS = [result(number, f"Zqfound {number}x: here.") for number in range(1, 6)]
_LONG_ID = "call_9k2Lm4XpQ7wR3vB"
_SECOND_ROUND = (
    assistant("", call(2, {"zqkey": "zqvalue two"}, "zqopen")),
    result(2, "Zqfound two: a door.", "zqopen"),
)
_PLAIN_CHAT = (SYSTEM, ASK, ANSWER, AGAIN)
_NULL_CALL = _agent("a call, no text", _ONE, *_AFTER)
_NULL_ANSWER = StandardShape("an answer", (ASK, assistant(""), AGAIN))

CHATS: tuple[StandardShape, ...] = (
    StandardShape("a question", (ASK,)),
    StandardShape("a system message and a question", (SYSTEM, ASK)),
    StandardShape("a chat", _PLAIN_CHAT),
    StandardShape("a chat without a system message", (ASK, ANSWER, AGAIN)),
    StandardShape("a chat that ends with an answer", (SYSTEM, ASK, ANSWER)),
    StandardShape("a long chat", _long(8)),
    StandardShape("an empty question", (SYSTEM, user(""), ANSWER, AGAIN)),
    StandardShape("a question of white space", (SYSTEM, user("  \n\t \n"), ANSWER, AGAIN)),
    StandardShape(
        "lines and code", (SYSTEM, user("Zqask one:\n\n```python\n  zqcode()  \n```\n\nWell?"), ANSWER, AGAIN)
    ),
    StandardShape(
        "other scripts", (system("Zqregel eins: Grüße."), user("Zqfrage eins: 苔はどう育つ？ 😀"), ANSWER, AGAIN)
    ),
    StandardShape(
        "quotes and signs", (SYSTEM, user("Zqask one: \"a\" & 'b' < c > d \\ {{ e }} {% f %}?"), ANSWER, AGAIN)
    ),
    StandardShape("an empty answer", (ASK, assistant(""), AGAIN)),
    StandardShape("an answer that is null", (ASK, assistant(None), AGAIN), lenient=WITH_CALLS, plain=_NULL_ANSWER),
    StandardShape("thinking and an answer", (SYSTEM, ASK, assistant("Zqanswer one: slowly.", thought=THOUGHT), AGAIN)),
    StandardShape("thinking and no answer", (SYSTEM, ASK, assistant("", thought=THOUGHT), AGAIN)),
    StandardShape(
        "thinking and an answer that is null",
        (ASK, assistant(None, thought=THOUGHT), AGAIN),
        lenient=WITH_CALLS,
        plain=_NULL_ANSWER,
    ),
    StandardShape("two questions in a row", (SYSTEM, ASK, AGAIN, ANSWER, NEXT), lenient=DOCUMENTED),
    StandardShape("two answers in a row", (SYSTEM, ASK, ANSWER, CLOSING, NEXT), lenient=DOCUMENTED),
    StandardShape("two system messages", (SYSTEM, system("Zqrule two holds, too."), ASK), lenient=DOCUMENTED),
    StandardShape("an empty list of calls", (SYSTEM, ASK, assistant("Zqanswer one: slowly.", tool_calls=[]), AGAIN)),
    StandardShape(
        "calls that are null",
        (SYSTEM, ASK, assistant("Zqanswer one: slowly.", tool_calls=None), AGAIN),
        lenient="most servers leave a null field out",
    ),
)
"""Conversations without tools."""

AGENTS: tuple[StandardShape, ...] = (
    _agent("a call", _ONE, *_AFTER),
    _agent("a call and null", assistant(None, call(1, KEY)), *_AFTER, plain=_NULL_CALL),
    _agent("a call and no content", assistant(LEFT_OUT, call(1, KEY)), *_AFTER, lenient=FILLED, plain=_NULL_CALL),
    _agent("text next to a call", assistant(SAID, call(1, KEY)), *_AFTER),
    _agent("thinking next to a call", assistant("", call(1, KEY), thought=THOUGHT), *_AFTER),
    _agent("thinking next to a call and null", assistant(None, call(1, KEY), thought=THOUGHT), *_AFTER),
    _agent("thinking and text next to a call", assistant(SAID, call(1, KEY), thought=THOUGHT), *_AFTER),
    _agent("two calls", assistant("", *_TWO), *_RESULTS, *_END),
    _agent("text next to two calls", assistant(SAID, *_TWO), *_RESULTS, *_END),
    _agent("five calls", assistant("", *_FIVE), *_FIVE_RESULTS, *_END),
    _agent("two rounds of calls", _ONE, result(1, FOUND), *_SECOND_ROUND, *_END),
    _agent("two rounds of calls and null", assistant(None, call(1, KEY)), result(1, FOUND), *_SECOND_ROUND, *_END),
    _agent("a result last", _ONE, result(1, FOUND)),
    _agent("a result last, text next to its call", assistant(SAID, call(1, KEY)), result(1, FOUND)),
    _agent("two results last", assistant("", *_TWO), *_RESULTS),
    _agent("a second result last", _ONE, result(1, FOUND), *_SECOND_ROUND),
    _agent("a question right after a result", _ONE, result(1, FOUND), NEXT, CLOSING),
    _agent("a question right after two results", assistant("", *_TWO), *_RESULTS, NEXT, CLOSING),
    _agent("text next to a call, a question right after", assistant(SAID, call(1, KEY)), result(1, FOUND), NEXT),
    _agent("thinking, a question right after", assistant("", call(1, KEY), thought=THOUGHT), result(1, FOUND), NEXT),
    StandardShape("a call without a system message", (ASK, _ONE, *_AFTER), TOOLS),
    _agent("an empty result", _ONE, result(1, ""), *_END),
    _agent("a result in JSON", _ONE, result(1, '{"zqfound": 1, "zqempty": null}'), *_END),
    _agent("a result of lines", _ONE, result(1, "Zqfound one:\n1. moss\n\n2. more moss\n"), *_END),
    _agent("a result without a name", _ONE, result(1, FOUND, None), *_END),
    _agent("long ids", assistant("", call(1, KEY, id=_LONG_ID)), result(1, FOUND, id=_LONG_ID), *_END),
    _agent("calls of tools that are not declared", _ONE, *_AFTER, tools=None),
    _agent("calls and an empty list of tools", _ONE, *_AFTER, tools=()),
)  # fmt: skip
"""Conversations with calls."""

_NULLS = {"zqkey": "zqvalue one", "zqexact": True, "zqmost": None, "zqmore": False}
_WORDS = {"zqkey": "zqvalue one", "zqexact": "zqyes", "zqmost": "zqnil", "zqmore": "zqno"}
_DEEP = {"zqkey": "zqvalue one", "zqmore": {"zqdeep": True, "zqlist": [None, False, "zqitem"]}}
_DEEP_WORDS = {"zqkey": "zqvalue one", "zqmore": {"zqdeep": "zqyes", "zqlist": ["zqnil", "zqno", "zqitem"]}}

ARGUMENTS: tuple[StandardShape, ...] = (
    _called("null, true and false as arguments", _NULLS, _WORDS),
    _called("null, true and false in arguments", _DEEP, _DEEP_WORDS),
    _called("null alone as an argument", {"zqmost": None}, {"zqmost": "zqnil"}),
    _called("true alone as an argument", {"zqexact": True}, {"zqexact": "zqyes"}),
    _called("numbers as arguments", {"zqkey": "zqvalue one", "zqmost": -25, "zqmore": {"zqdeep": 0.5}}),
    _called("a list as an argument", {"zqkey": ["zqvalue one", "zqvalue two"]}),
    _called("no arguments", {}),
    _called("signs in an argument", {"zqkey": 'zqvalue "one" & <b> \\ Grüße 苔'}),
    _called("an argument of lines", {"zqkey": "zqvalue one\n  zqvalue two\n"}),
    _called("arguments as JSON text", '{"zqkey": "zqvalue one"}', lenient="most servers parse the arguments first"),
)
"""Calls with every kind of argument."""

_DEEP_TOOL = tool(
    description="Plan zqsteps.",
    parameters=schema(
        ["zqsteps"],
        zqsteps={
            "type": "array",
            "description": "The zqsteps.",
            "items": schema(["zqtitle"], zqtitle={"type": "string"}, zqkind={"type": "string", "enum": ["zqa", "zqb"]}),
        },
        zqfast={"type": "boolean", "description": "At once."},
    ),
)


def _defaults(nil: Any, yes: Any, no: Any) -> dict[str, Any]:
    one = {"type": "integer", "description": "One.", "default": nil}
    two = {"type": "boolean", "description": "Two.", "default": yes}
    parameters = {**schema(["zqone"], zqone=one, zqtwo=two), "additionalProperties": no}
    return tool(description="Find a zqthing.", parameters=parameters, strict=yes)


def _described(**parameters: Any) -> tuple[dict[str, Any], ...]:
    return (tool(description="Find a zqthing.", **parameters),)


_TWELVE = [tool(f"zqtool{number}x", description=f"Zqdoes {number}x.", parameters=schema()) for number in range(12)]
_BARE = schema(zqkey={"type": "string"})
_UNTYPED = schema(zqkey={"description": "Any."})

DECLARATIONS: tuple[StandardShape, ...] = (
    _declared("tools that nobody called", TOOLS),
    StandardShape("tools without a system message", (ASK,), TOOLS),
    _declared("an empty list of tools", ()),
    _declared("twelve tools", _TWELVE),
    _declared("a tool without a description", (tool(parameters=schema(["zqkey"], zqkey=WORD)),)),
    _declared("a parameter without a description", _described(parameters=_BARE)),
    _declared("no required parameters", _described(parameters={"type": "object", "properties": {"zqkey": WORD}})),
    _declared("a tool with no properties", _described(parameters={"type": "object", "properties": {}})),
    _declared("a tool without parameters", _described(), lenient=FILLED),
    _declared("a parameter without a type", _described(parameters=_UNTYPED), lenient=FILLED),
    _declared("nested parameters", (_DEEP_TOOL,)),
    _declared("a parameter of two types", _described(parameters=schema(zqkey={**WORD, "type": ["string", "null"]}))),
    _declared("defaults of null and true", (_defaults(None, True, False),), (_defaults("zqnil", "zqyes", "zqno"),)),
)
"""Tools as clients declare them."""

_TWO_PARTS = parts("Zqask two.", "Zqask three.")
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

PARTS: tuple[StandardShape, ...] = (
    StandardShape("a question in parts", (user(parts(ASK["content"])),), lenient=JOINED),
    StandardShape("a chat in parts", (SYSTEM, user(parts(ASK["content"])), ANSWER, user(_TWO_PARTS)), lenient=JOINED),
    StandardShape("a system message in parts", (system(parts(SYSTEM["content"])), ASK), lenient=JOINED),
    StandardShape("an answer in parts", (SYSTEM, ASK, assistant(parts(ANSWER["content"])), AGAIN), lenient=JOINED),
    StandardShape("an empty list of parts", (SYSTEM, user([]), ANSWER, AGAIN), lenient=JOINED),
    StandardShape("an image", (user([{"type": "text", "text": "Zqask one."}, _IMAGE]), ANSWER, AGAIN), lenient=JOINED),
    _agent("a result in parts", _ONE, result(1, parts(FOUND)), *_END, lenient=JOINED),
    _agent("parts next to a call", assistant(parts(SAID), call(1, KEY)), *_AFTER, lenient=JOINED),
)  # fmt: skip
"""Contents as lists of parts."""

SHAPES: tuple[StandardShape, ...] = (*CHATS, *AGENTS, *ARGUMENTS, *DECLARATIONS, *PARTS)
