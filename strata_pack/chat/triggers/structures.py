"""Varies how a conversation is made, not what it says: roles, empty texts, media, names, ids, kinds of arguments.

What a template says in such a conversation alone is reported if it is a sentence: a mark or a header is its syntax.
"""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from strata_pack.chat.triggers.harness import Harness, Trigger
from strata_pack.chat.triggers.probes import of_length, of_words
from strata_pack.chat.triggers.shapes import BASE, PURPOSE, long_chat, named_tools
from strata_pack.chat.triggers.variations import OURS, line_of
from strata_pack.chat.triggers.verdict import NEUTRAL

SENTENCE = 4
"""Different new words in one line that make a sentence."""

MEDIA = ("image", "image_url", "video", "audio")
KINDS = ("integer", "number", "boolean", "array", "object", "null")
FEATURES = frozenset(
    {
        *(f"a part of the type {kind}" for kind in MEDIA),
        *(f"a parameter of the type {kind}" for kind in KINDS),
        *("a developer's message", "the name of a user", "a tool without parameters", "nothing but a system message"),
    }
)
"""What a template may have to say something about to the model."""

TURNS = 6
REPEATED = 24
LITTLE = 30
MOST_SIZES = 3
MOST_WORDS = 3000
_AGENT = ("an agent's turns", "a tool's result last")

Inputs = dict[str, Any]


def by_structure(harness: Harness) -> Iterator[Trigger]:
    """Yield the sentences that a template says in conversations that are made in some way."""
    known = [prompt for inputs in _plain() if (prompt := harness.render(inputs).prompt) is not None]
    for title, inputs in _structures(harness):
        if harness.spent():
            return
        prompt = harness.render(inputs).prompt
        said = "" if prompt is None else _sentence(harness, prompt, [*known, str(inputs)])
        if said:
            yield Trigger("feature" if title in FEATURES else "structure", title, said, line_of(harness, said))
            known.append(said)


def _sentence(harness: Harness, prompt: str, known: Sequence[str]) -> str:
    """Return the first line of ``prompt`` with a sentence that the template says nowhere else, empty for none."""
    for line in prompt.split("\n"):
        words = harness.vocabulary.new_words(OURS.sub(" ", line), [*BASE.values(), *_OWN_WORDS, *known])
        if len(set(words)) >= SENTENCE:
            return line
    return ""


_OWN_WORDS = ("system user assistant developer tool function name null true false none image video audio text object",)


def _plain() -> Iterator[Inputs]:
    """Yield the conversations that the others are variations of."""
    question = {"role": "user", "content": BASE["second"]}
    for messages in ([question], [{"role": "system", "content": BASE["system"]}, question]):
        for count in (1, 2):
            yield {"messages": messages, "tools": named_tools([BASE["tool"]] * count)}


def _structures(harness: Harness) -> Iterator[tuple[str, Inputs]]:
    system, first, answer, second = (
        {"role": role, "content": BASE[slot]}
        for role, slot in (("system", "system"), ("user", "first"), ("assistant", "answer"), ("user", "second"))
    )
    chats: Mapping[str, list[Inputs]] = {
        "two system messages": [system, system, first],
        "a system message after the first turn": [system, first, answer, system, second],
        "a developer's message": [{**system, "role": "developer"}, first],
        "two questions in a row": [system, first, second],
        "two answers in a row": [system, first, answer, answer, second],
        "an answer as the last message": [system, first, answer],
        "an empty question": [system, {**first, "content": ""}],
        "an empty answer": [system, first, {**answer, "content": ""}, second],
        "an empty system message": [{**system, "content": ""}, first],
        "the same question twice": [system, first, answer, first],
        "the name of a user": [system, {**first, "name": BASE["tool"]}],
        "nothing but a system message": [system],
    }
    for title, messages in chats.items():
        for some in (messages, [one for one in messages if one is not system]):
            if some:
                yield title, {"messages": some}
    for kind in MEDIA:
        part = {"type": kind, kind: {"url": "data:,"} if kind == "image_url" else "data:,"}
        yield f"a part of the type {kind}", {"messages": [{"role": "user", "content": [part, PURPOSE]}]}
    yield from _with_tools(harness, [system, second])


def _with_tools(harness: Harness, messages: list[Inputs]) -> Iterator[tuple[str, Inputs]]:
    (tool,) = named_tools([BASE["tool"]])
    function = tool["function"]
    properties = {f"{BASE['key']}{n}": {"type": "string", "description": BASE["meaning"]} for n in range(8)}
    for title, parameters in (
        ("a tool without parameters", {"type": "object", "properties": {}}),
        ("a tool with many parameters", {"type": "object", "properties": properties, "required": []}),
    ):
        yield title, {"messages": messages, "tools": [{**tool, "function": {**function, "parameters": parameters}}]}
    for kind in KINDS:
        of_kind = {"type": "object", "properties": {BASE["key"]: {"type": kind, "description": BASE["meaning"]}}}
        changed = {**tool, "function": {**function, "parameters": of_kind}}
        yield f"a parameter of the type {kind}", {"messages": messages, "tools": [changed]}
    reference = harness.reference(_AGENT)
    if reference is None:
        return
    inputs = reference.shape.inputs(BASE)
    values: tuple[Any, ...] = (4711, 0.5, True, None, [], {}, "", *(number + 1 for number in harness.numbers[-4:]))
    for value in values:
        yield f"the argument {value!r}", _changed(inputs, functools.partial(_with_argument, value))


def _with_argument(value: Any, call: Inputs) -> Inputs:
    function = call["function"]
    if not isinstance(function["arguments"], dict):
        return call
    return {**call, "function": {**function, "arguments": dict.fromkeys(function["arguments"], value)}}


def _changed(inputs: Inputs, change: Callable[[Inputs], Inputs]) -> Inputs:
    messages = [
        {**message, "tool_calls": [change(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in inputs["messages"]
    ]
    return {**inputs, "messages": messages}


# A literal in the places that are no texts.


def in_labels(harness: Harness, wanted: Sequence[str], shown: str, line: int | None) -> Iterator[Trigger]:
    """Yield what literals do outside plain texts.

    That is as the id of a call, as the name of a user, as the names of several tools, as a parameter's only value, in
    every turn of a longer conversation, and in texts of the sizes that the template compares with.
    """
    reference = harness.reference((*_AGENT, "a chat"))
    literal = " ".join(wanted)
    if reference is not None and len(wanted) == 1:
        inputs = reference.shape.inputs(BASE)
        yield from _compared(
            harness, f"{shown} in a call's id", [_with_id(inputs, one) for one in (literal, NEUTRAL)], line
        )
        named = [_with_name(inputs, one) for one in (literal, NEUTRAL)]
        yield from _compared(harness, f"{shown} as a user's name", named, line)
        values = [_with_value(one) for one in (literal, NEUTRAL)]
        yield from _compared(harness, f"{shown} as a parameter's value", values, line)
    question = {"messages": [{"role": "user", "content": BASE["second"]}]}
    if len(wanted) > 1:
        tools = [named_tools(names) for names in (wanted, [f"{NEUTRAL}{n}" for n in range(len(wanted))])]
        yield from _compared(harness, f"tools called {shown}", [{**question, "tools": some} for some in tools], line)
    long = [_in_each_turn(one) for one in (literal, NEUTRAL)]
    yield from _compared(harness, f"{shown} in every message of a user", long, line)
    for what, text in _large(harness):
        both = [{"messages": [{"role": "user", "content": text.replace("{}", one)}]} for one in (literal, NEUTRAL)]
        yield from _compared(harness, f"{shown} {what}", both, line)


def _large(harness: Harness) -> Iterator[tuple[str, str]]:
    """Yield texts with ``{}`` for a literal: at each place of a word, and next to many characters or words."""
    if "split" in harness.source:
        yield f"{REPEATED} times", " ".join(["{}"] * REPEATED)
    for size in [number for number in harness.numbers if number > LITTLE][-MOST_SIZES:]:
        yield f"in a text of more than {size} characters", f"{{}} {of_length(size)} {{}}"
        if size <= MOST_WORDS:
            yield f"in a text of more than {size} words", f"{{}} {of_words(size)} {{}}"


def _compared(harness: Harness, title: str, both: Sequence[Inputs], line: int | None) -> Iterator[Trigger]:
    """Yield what the first of two conversations makes appear, where the second has neutral words."""
    if harness.spent():
        return
    prompt, plain = (harness.render(inputs).prompt for inputs in both)
    if prompt is None or plain is None:
        return
    # A literal may be printed as HTML, also one that is HTML already.
    escaped = html.escape(str(both[0]))
    known = [*BASE.values(), plain, str(both[0]), escaped, html.escape(escaped)]
    new = harness.vocabulary.new_words(prompt, known)
    if new:
        yield Trigger("appears", title, next(said for said in prompt.split("\n") if new[0] in said), line)


def _with_value(literal: str) -> Inputs:
    (tool,) = named_tools([BASE["tool"]])
    key = {"type": "string", "description": BASE["meaning"], "enum": [literal]}
    parameters = {"type": "object", "properties": {BASE["key"]: key}, "required": []}
    tools = [{**tool, "function": {**tool["function"], "parameters": parameters}}]
    return {"messages": [{"role": "user", "content": BASE["second"]}], "tools": tools}


def _with_id(inputs: Inputs, literal: str) -> Inputs:
    changed = _changed(inputs, lambda call: {**call, "id": literal})
    messages = [
        {**message, "tool_call_id": literal} if "tool_call_id" in message else message
        for message in changed["messages"]
    ]
    return {**changed, "messages": messages}


def _with_name(inputs: Inputs, literal: str) -> Inputs:
    messages = [
        {**message, "name": literal} if message["role"] == "user" else message for message in inputs["messages"]
    ]
    return {**inputs, "messages": messages}


def _in_each_turn(literal: str) -> Inputs:
    inputs = long_chat(TURNS, system=False)
    messages = [
        {**message, "content": f"{message['content']} {literal}"} if message["role"] == "user" else message
        for message in inputs["messages"]
    ]
    return {"messages": messages}
