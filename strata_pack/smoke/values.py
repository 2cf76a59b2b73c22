"""Runs the checks of ``canary`` for what is not a text: arguments, declarations, and the open turn at the end.

The arguments of a call in the history must be readable again as the values that were sent. A JSON template must write
JSON. One that writes each argument between tags may write Python's ``True`` or a bare text: there, the parser of the
dialect decides, by the declared types, and only lists and objects must be JSON.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strata_pack.chat.render.template import ChatTemplate, TemplateError, in_thinking
from strata_pack.parsing import dialect_of, parse
from strata_pack.report import Check
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import Form
from strata_pack.smoke.scenario import Scenario

MessageDict = dict[str, Any]

TOOL, IDLE = "valuescanary", "idlecanary"
QUESTION, BESIDE, RESULT = "questioncanary", "besidecanary", "resultcanary"

VALUES: Mapping[str, tuple[str, Any]] = {
    "truth": ("boolean", True),
    "nothing": ("null", None),
    "count": ("integer", 7),
    "share": ("number", 2.5),
    "text": ("string", 'It\'s "É" & <b>\n\n  True'),
    "digits": ("string", "007"),
    "nested": ("object", {"on": False, "none": None, "text": 'it\'s "É"'}),
    "list": ("array", [True, None, "É"]),
    "lie": ("boolean", False),
}
"""The arguments of the call, each with its declared type. Their order is not that of the alphabet."""

BY_JINJA2 = "rendered by jinja2"

_TAKES_TEXT = re.compile(r"\barguments\s+is\s+string\b")
_JSON_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_XML_VALUE = re.compile(r"<parameter=(\w+)>\n(.*?)\n</parameter>", re.DOTALL)
_OPEN_TURN = re.compile(r"<\|im_start\|>assistant\n((?:(?!<\|im_start\|>).)*)\Z", re.DOTALL)


def _tools() -> list[MessageDict]:
    properties = {key: {"type": kind, "description": key} for key, (kind, _) in VALUES.items()}
    parameters = {"type": "object", "properties": properties, "required": list(VALUES)}
    idle = {"type": "object", "properties": {}}
    return [
        {"type": "function", "function": {"name": TOOL, "description": "Takes values.", "parameters": parameters}},
        {"type": "function", "function": {"name": IDLE, "description": "Takes nothing.", "parameters": idle}},
    ]


def _sent() -> list[tuple[str, dict[str, Any]]]:
    return [(TOOL, {key: value for key, (_, value) in VALUES.items()}), (IDLE, {})]


def rendered_by_jinja2(
    template: str, messages: Sequence[MessageDict], tools: Sequence[MessageDict] | None, *, as_text: bool = False
) -> str | None:
    """Return the prompt as transformers and vLLM render it, arguments decoded unless ``as_text``; None if the template
    does not render it so."""
    if not as_text:
        messages = copy.deepcopy(list(messages))
        for message in messages:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    try:
        return ChatTemplate(template).render(messages, tools, add_generation_prompt=True)
    except TemplateError:
        return None


def _history(content: str | None) -> list[MessageDict]:
    """Return a conversation with the two calls."""
    calls, results = [], []
    for number, (name, sent) in enumerate(_sent()):
        value = json.dumps(sent, ensure_ascii=False)
        id_ = f"call{number:05d}"
        calls.append({"id": id_, "type": "function", "function": {"name": name, "arguments": value}})
        results.append({"role": "tool", "tool_call_id": id_, "content": RESULT})
    turn = {"role": "assistant", "content": content, "tool_calls": calls}
    return [{"role": "user", "content": QUESTION}, turn, *results]


def arguments(context: SmokeContext, scenario: Scenario) -> Check:
    """Compare the calls that can be read in the prompt with those of the history.

    llama-server hands the arguments to the template as text or as objects, depending on the template. Other servers
    hand objects over, so jinja2 renders the template with objects, and with text where the template asks for its type.
    """
    prompt = context.client.apply_template(_history(BESIDE), _tools())
    wrong = list(argument_faults(prompt, context.form, context.template))
    for as_text in (False, True) if _TAKES_TEXT.search(context.template) else (False,):
        other = rendered_by_jinja2(context.template, _history(BESIDE), _tools(), as_text=as_text)
        if not wrong and other is not None:
            how = f"{BY_JINJA2} with arguments as {'text' if as_text else 'objects'}"
            wrong = [f"{how}, {fault}" for fault in argument_faults(other, context.form, context.template)]
    null, empty = (context.client.apply_template(_history(text), _tools()) for text in (None, ""))
    if null != empty:
        wrong.append("a content of null next to a call is not rendered as an empty one")
    return Check(
        f"{scenario.id}/arguments",
        scenario.proves,
        "failed" if wrong else "passed",
        "; ".join(wrong) or f"{len(VALUES)} arguments of every type come back as they were sent",
        prompt=prompt,
        data={"wrong": wrong},
    )


def argument_faults(prompt: str, form: Form, template: str) -> Iterator[str]:
    """Yield what differs between the calls that were sent and those that can be read in ``prompt``."""
    start = max(prompt.find(BESIDE), prompt.find(QUESTION), 0)
    end = prompt.find(RESULT, start)
    turn = prompt[start : prompt.rfind("</tool_call>", start, end) + len("</tool_call>")]
    read = parse(turn, thinking=False, tools=_tools(), call_format=form, dialect=dialect_of(template))
    got = [(call.name, call.arguments) for call in read.calls]
    if form == "json":
        unreadable = [text for text in _JSON_CALL.findall(turn) if not _is_call(text)]
        if unreadable:
            yield f"a call is not the JSON of a name and arguments: {unreadable[0][:120]!r}"
            return
        if any(isinstance(json.loads(text)["arguments"], str) for text in _JSON_CALL.findall(turn)):
            yield "the arguments of a call are a JSON string, not an object"
            return
        if "\\u00c9" in turn.lower():
            yield "the arguments of a call are written with escaped letters (\\u00c9 for É)"
    else:
        for key, text in _XML_VALUE.findall(turn):
            if isinstance(VALUES.get(key, ("", None))[1], (dict, list)) and not _is_json(text):
                yield f"the argument {key} ({VALUES[key][0]}) is not JSON: {text!r}"
    if [name for name, _ in got] != [name for name, _ in _sent()]:
        yield f"the {len(_sent())} calls of a turn are read back as {len(got)}: {[name for name, _ in got]}"
        return
    for (_, wanted), (_, found) in zip(_sent(), got, strict=True):
        yield from _differences(wanted, found)


def _differences(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for key, value in wanted.items():
        if key not in found:
            yield f"the argument {key} ({VALUES[key][0]}) is lost"
        elif _json(found[key]) != _json(value):
            yield f"the argument {key} ({VALUES[key][0]}) is read back as {_json(found[key])}, not {_json(value)}"
    added = sorted(found.keys() - wanted.keys())
    if added:
        yield f"a call has arguments that nobody sent: {', '.join(added)}"
    elif [key for key in found if key in wanted] != [key for key in wanted if key in found]:
        yield f"the arguments of a call are in another order: {', '.join(found)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_call(text: str) -> bool:
    """Return whether ``text`` is the JSON of a call."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return isinstance(value, dict) and {"name", "arguments"} <= value.keys()


# Declarations


def declarations(context: SmokeContext, scenario: Scenario) -> Check:
    """Change one fact of a declared tool at a time; a prompt that stays the same has lost that fact."""
    asked = [{"role": "user", "content": QUESTION}]
    base = context.client.apply_template(asked, [_declared()])
    lost = [
        what for what, change in _FACTS.items() if context.client.apply_template(asked, [_declared(**change)]) == base
    ]
    return Check(
        f"{scenario.id}/declarations",
        scenario.proves,
        "failed" if lost else "passed",
        f"of a tool's declaration, the prompt lacks: {', '.join(lost)}"
        if lost
        else f"{', '.join(_FACTS)} of a tool's declaration are in the prompt",
        prompt=base,
        data={"lost": lost},
    )


_FACTS: Mapping[str, Mapping[str, Any]] = {
    "types": {"kind": "integer"},
    "enumerated values": {"allowed": ["north"]},
    "required parameters": {"required": []},
    "nested parameters": {"inner": "outercanary"},
    "the types of items": {"items": "integer"},
}


def _declared(
    kind: str = "string",
    allowed: Sequence[str] = ("north", "south"),
    required: Sequence[str] = ("free",),
    inner: str = "innercanary",
    items: str = "string",
) -> MessageDict:
    properties = {
        "free": {"type": kind, "description": "free"},
        "side": {"type": "string", "description": "side", "enum": list(allowed)},
        "deep": {"type": "object", "description": "deep", "properties": {inner: {"type": "string"}}},
        "many": {"type": "array", "description": "many", "items": {"type": items}},
    }
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": TOOL, "description": "Takes values.", "parameters": parameters}}


# The open turn


def open_turn(context: SmokeContext, scenario: Scenario) -> Check:
    """Check the turn that is open for the model: with thinking on and off, and without a generation prompt."""
    asked = [{"role": "user", "content": QUESTION}]
    wrong = []
    for thinking in (True, False):
        prompt = context.client.apply_template(asked, chat_template_kwargs={"enable_thinking": thinking})
        switch = f"with enable_thinking {'true' if thinking else 'false'}"
        wrong += [f"{switch}, {fault}" for fault in open_turn_faults(prompt, context.template, thinking=thinking)]
    try:
        closed = ChatTemplate(context.template).render(asked, add_generation_prompt=False)
    except TemplateError:
        closed = ""
    if _OPEN_TURN.search(closed):
        wrong.append("a turn is open for the model also where add_generation_prompt is false")
    return Check(
        f"{scenario.id}/open-turn",
        scenario.proves,
        "failed" if wrong else "passed",
        "; ".join(wrong) or "the open turn at the end is as it should be, with thinking on and off",
        data={"wrong": wrong},
    )


def open_turn_faults(prompt: str, template: str, *, thinking: bool) -> Iterator[str]:
    """Yield the faults of the open turn of ``prompt``, which was rendered with thinking on or off."""
    found = _OPEN_TURN.search(prompt)
    if found is None:
        return  # another family's prompt, or a fault that the canaries name
    opened, closed = (found.group(1).count(tag) for tag in ("<think>", "</think>"))
    if opened > 1 or closed > 1:
        yield f"the generation prompt has <think> {opened} times and </think> {closed} times"
    elif "enable_thinking" in template:
        if thinking and closed:
            yield "the generation prompt closes the thinking"
        elif not thinking and in_thinking(prompt):
            yield "the generation prompt leaves the thinking open"
