"""Lint rules on properties that the prompts of all standard conversations (``shapes.py``) must have.

All rules use the same renderings. For a shape that servers convert first, or that a model need not support, a finding
is a warning at most.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from strata_pack.chat.lint.model import Found, Severity, Subject, rule
from strata_pack.chat.lint.rendered import (
    PromptPiece,
    RenderedConversation,
    RenderedConversations,
    TakenForm,
    pieces,
    render_shape,
)
from strata_pack.chat.lint.shapes import DOCUMENTED, SHAPES, StandardShape
from strata_pack.chat.lint.turns import faults, is_open, learn, uneven_pairs
from strata_pack.chat.render.template import ChatTemplate, TemplateLimit, TemplateRefused

MANY = 3
"""Maximum number of shapes that a sentence names."""


def _among(names: Iterable[str]) -> str:
    """Return the names of shapes for a sentence: the first ones, and the number of others."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - MANY} more" if len(known) > MANY else ""
    return ", ".join(f"'{name}'" for name in known[:MANY]) + more


def _severity(shape: StandardShape, subject: Subject) -> Severity:
    """Return the severity of a finding in ``shape``; lower for calls if the template does not support calls."""
    unknown = bool(shape.calls) and "tool_calls" not in subject.source
    return "warning" if shape.lenient or unknown else "error"


_NEEDS: Mapping[TakenForm, str] = {
    "parts": "takes contents as lists of parts alone; texts, which clients send,",
    "text": "takes the arguments of a call as JSON text alone; objects, which servers make of them,",
}

# Whether it renders at all.


@rule(
    "ST801", "crash", "error", "a standard conversation makes it fail",
    "test what may be null, missing, empty or a list before using it",
)  # fmt: skip
def crashes(subject: Subject) -> Iterator[Found]:
    """Find unintended failures: one finding for each line and cause."""
    failed: dict[tuple[str, int | None, Severity], list[str]] = {}
    for form, error in subject.rendered.needs.items():
        cause = "are lost" if error is None else f"make it fail: {error.cause}"
        yield Found(f"{_NEEDS[form]} {cause}", None if error is None else error.line, severity="warning")
    for one in subject.rendered.by_name.values():
        if one.error is None or isinstance(one.error, TemplateRefused) or (subject.for_tools and not one.shape.tools):
            continue
        severity: Severity = "error" if isinstance(one.error, TemplateLimit) else _severity(one.shape, subject)
        failed.setdefault((one.error.cause, one.error.line, severity), []).append(one.shape.name)
    for (cause, line, severity), names in failed.items():
        yield Found(f"fails on {_among(names)}: {cause}", line, severity=severity)


@rule(
    "ST802", "refusal", "info", "it refuses a standard conversation in its own words",
    "if the model can take such turns, render them; else let the client know",
)  # fmt: skip
def refuses(subject: Subject) -> Iterator[Found]:
    """Find refusals by the template's own ``raise_exception``."""
    refused: dict[tuple[str, int | None], list[str]] = {}
    for one in subject.rendered.by_name.values():
        if isinstance(one.error, TemplateRefused) and not one.shape.lenient:
            refused.setdefault((one.error.message, one.error.line), []).append(one.shape.name)
    for (message, line), names in refused.items():
        yield Found(f"refuses {_among(names)}: {message}", line)


# Turns.


@rule(
    "ST803", "open-turn", "error", "a turn that is not closed, or closed twice",
    "write the mark that ends a turn once at the end of each, also after calls and results",
)  # fmt: skip
def open_turns(subject: Subject) -> Iterator[Found]:
    """Find turn marks of plain chats that an agent's turns lack, and tags that are opened but not closed."""
    rendered = subject.rendered
    if not _writes(rendered, "call"):
        rendered = replace(
            rendered, by_name={name: one for name, one in rendered.by_name.items() if not one.shape.calls}
        )
    marks = learn(rendered)
    wrong: dict[str, list[str]] = {}
    if marks is not None:
        for one in rendered.fine:
            if one.shape.lenient != DOCUMENTED:
                for fault in faults(marks, one):
                    wrong.setdefault(fault, []).append(one.shape.name)
        unopened = [one.shape.name for one in _asked(rendered) if marks.ends_open and not is_open(marks, one.opened)]
        if unopened:
            wrong["the generation prompt opens no turn of the assistant's"] = unopened
    for pair in uneven_pairs(rendered):
        word = "opened" if pair.extra > 0 else "closed"
        sentence = f"{pair.opening} and {pair.closing} are not even ({abs(pair.extra)} more {word})"
        wrong.setdefault(sentence, []).append(pair.conversation.shape.name)
    for kind, names in _by_kind(wrong).items():
        yield Found(f"{kind} (in {_among(names)})")


def _asked(rendered: RenderedConversations) -> Iterator[RenderedConversation]:
    """Yield the conversations after which the assistant speaks."""
    return (one for one in rendered.fine if one.shape.messages[-1]["role"] in ("user", "tool"))


def _by_kind(wrong: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the faults, merging those that differ only in the quoted piece of a prompt."""
    kinds: dict[str, tuple[str, list[str]]] = {}
    for sentence, names in wrong.items():
        kinds.setdefault(re.split(r" in '| in \"|: '|: \"", sentence)[0], (sentence, []))[1].extend(names)
    return dict(kinds.values())


# Python's spelling.

WORDS = re.compile(r"(?<![A-Za-z0-9_'\"])(?:None|True|False|Undefined)(?![A-Za-z0-9_'\"])")
OBJECTS = re.compile(
    r"<(?:generator object|(?:bound|built-in) method|function|[a-z0-9_.]+ object)\b[^<>\n]* at 0x|dict_items\("
)
QUOTED = re.compile(r"[\[{(,:]\s*'[^'\n]*zq[^'\n]*'\s*[:,\]})]|\{'(?:type|name|function|text)':")
"""A key or text of the shapes in single quotes inside brackets: a list or dict as Python prints it."""

PYTHON_CALL = re.compile(r"zqfind\(\s*zqkey\s*=")
"""A call in Python syntax, in which None and True are correct."""


@rule(
    "ST804", "python-repr", "error", "None, True or a list as Python prints them, where the model expects JSON",
    "print values with tojson, and nothing where a content is null",
)  # fmt: skip
def python_repr(subject: Subject) -> Iterator[Found]:
    """Find None, True and False that null, true and false caused, and Python objects that were printed directly."""
    template, rendered = subject.template, subject.rendered
    if template is None:
        return
    spoken = any(PYTHON_CALL.search(one.prompt) for one in rendered.fine)
    found: dict[tuple[str, Severity], list[str]] = {}
    declared = {what for one in rendered.fine if not one.shape.calls for what in _python_in(one.prompt)}
    for one in rendered.fine:
        if spoken and one.shape.calls:
            continue
        seen = _python_in(one.prompt)
        if one.shape.plain is not None:
            seen += _more_python(one, render_shape(template, one.shape.plain))
        for what in seen:
            early = what in declared or not one.shape.calls
            severity: Severity = "warning" if early and one.shape.tools else _severity(one.shape, subject)
            found.setdefault((what, severity), []).append(one.shape.name)
    for (what, severity), names in found.items():
        yield Found(f"the prompt holds {what} (in {_among(names)})", severity=severity)


def _python_in(prompt: str) -> list[str]:
    found = [f"the object {match[0]}…" for match in OBJECTS.finditer(prompt)]
    quoted = QUOTED.search(prompt)
    return [*found[:1], *([f"a list or an object as Python prints it, {quoted[0]!r}"] if quoted else [])]


def _more_python(one: RenderedConversation, plain: RenderedConversation) -> list[str]:
    """Return the Python words of the prompt that the same prompt with words in place of null and true lacks."""
    more = Counter(WORDS.findall(one.prompt)) - Counter(WORDS.findall(plain.prompt))
    return [f"Python's {', '.join(more)} for JSON's {', '.join(map(_json_word, more))}"] if more else []


def _json_word(word: str) -> str:
    return "null" if word in ("None", "Undefined") else word.lower()


# Everything there, once, in order.


@rule(
    "ST805", "left-out", "error", "a text or a call of the conversation is not in the prompt",
    "write the content and the calls of a turn both, and every message's text",
)  # fmt: skip
def left_out(subject: Subject) -> Iterator[Found]:
    """Find texts, calls and arguments that a prompt lacks, and truncated texts."""
    template, rendered = subject.template, subject.rendered
    if template is None:
        return
    calls, results = _writes(rendered, "call"), _writes(rendered, "tool")
    lacking: dict[tuple[str, Severity], list[str]] = {}
    if not calls and "tool_calls" in subject.source and any(one.shape.calls for one in rendered.fine):
        named = _names_calls(rendered)
        what = "the arguments of every call" if named else "every call, although it looks at tool_calls"
        lacking[what, "error" if named else "warning"] = ["a call"]
    for one in rendered.fine:
        for piece in pieces(one.shape):
            if (piece.role == "call" and not calls) or (piece.role == "tool" and not results):
                continue
            severity = _severity(one.shape, subject)
            if piece.is_left_out(one.prompt) or piece.is_left_out(one.opened):
                lacking.setdefault((_called(piece, one.shape), severity), []).append(one.shape.name)
            elif piece.is_cut(one.prompt):
                lacking.setdefault((f"a part of {_called(piece, one.shape)}", severity), []).append(one.shape.name)
        if _left_out_tools(one, rendered):
            lacking.setdefault(("a declared tool", _severity(one.shape, subject)), []).append(one.shape.name)
        for key in _left_out_keys(template, one) if calls else ():
            value = one.shape.calls[0]["arguments"][key]
            said = "an object" if isinstance(value, dict) else json.dumps(value)
            severity = "warning" if value is None else "error"
            lacking.setdefault((f"an argument that is {said}", severity), []).append(one.shape.name)
    for (what, severity), names in lacking.items():
        yield Found(f"leaves out {what} (in {_among(names)})", severity=severity)


def _writes(rendered: RenderedConversations, role: str) -> bool:
    """Return whether any prompt contains a text of ``role``."""
    return any(
        piece.role == role and not piece.is_left_out(one.prompt) for one in rendered.fine for piece in pieces(one.shape)
    )


def _names_calls(rendered: RenderedConversations) -> bool:
    """Return whether prompts contain the name of a called tool, in addition to those of the declared tools."""
    made, declared = (rendered.by_name.get(name) for name in ("a result without a name", "tools that nobody called"))
    return made is not None and declared is not None and made.prompt.count("zqfind") > declared.prompt.count("zqfind")


def _left_out_tools(one: RenderedConversation, rendered: RenderedConversations) -> bool:
    """Return whether a declared tool is missing in the prompt of a template that prints tools."""
    declared = rendered.by_name.get("tools that nobody called")
    if declared is None or "zqfind" not in declared.prompt:
        return False
    return any(tool["function"]["name"] not in one.prompt for tool in one.shape.tools or ())


def _called(piece: PromptPiece, shape: StandardShape) -> str:
    with_calls = bool(shape.messages[piece.message].get("tool_calls"))
    names = {
        "system": "the system message",
        "user": "a user's text",
        "assistant": "the text next to a call" if with_calls else "an answer",
        "tool": "a tool's result",
        "call": "a call, or one of its arguments",
    }
    return names[piece.role]


def _left_out_keys(template: ChatTemplate, one: RenderedConversation) -> list[str]:
    """Return the arguments whose names occur more often in the same prompt with words for null and false."""
    if one.shape.plain is None or not one.shape.calls:
        return []
    plain = render_shape(template, one.shape.plain).prompt
    keys = {key for called in one.shape.calls if isinstance(called["arguments"], dict) for key in called["arguments"]}
    return sorted(key for key in keys if one.prompt.count(key) < plain.count(key))


@rule(
    "ST806", "moved", "warning", "texts, calls or results in another order, or twice",
    "print the messages in their order: a turn's text, then its calls, then the results",
)  # fmt: skip
def moved(subject: Subject) -> Iterator[Found]:
    """Find pieces of a conversation that are out of order in the prompt; a system message may be anywhere."""
    wrong: dict[str, list[str]] = {}
    for one in subject.rendered.fine:
        previous: tuple[int, PromptPiece] | None = None
        for piece in pieces(one.shape):
            place = piece.place(one.prompt)
            if place < 0 or piece.role == "system":
                continue
            if previous is not None and place < previous[0]:
                wrong.setdefault(_order(previous[1], piece), []).append(one.shape.name)
            if piece.role != "call" and piece.place(one.prompt, place + 1) >= 0:
                wrong.setdefault(f"{_called(piece, one.shape)} is there twice", []).append(one.shape.name)
            previous = (place, piece)
    for what, names in wrong.items():
        yield Found(f"{what} (in {_among(names)})")


def _order(first: PromptPiece, second: PromptPiece) -> str:
    names = {"user": "a question", "assistant": "an answer", "call": "a call", "tool": "a result"}
    if first.message == second.message and first.role == "assistant":
        return "the text next to a call stands after the call"
    return f"{names[second.role]} stands before {names[first.role]} that came first"


# The clock.

MORNING, EVENING = datetime(2026, 7, 27, 9, 12, 31), datetime(2026, 7, 27, 21, 47, 5)


@rule(
    "ST807", "clock", "warning", "the prompt is another one at another time of the same day",
    "say the date without the time, so that what a server has read stays valid for the day",
)  # fmt: skip
def clock(subject: Subject) -> Iterator[Found]:
    """Find prompts that change during a day, for a template that uses the time."""
    template = subject.template
    if template is None or "strftime_now" not in subject.source:
        return
    for shape in SHAPES:
        early, late = render_shape(template, shape, MORNING), render_shape(template, shape, EVENING)
        for one, other in ((early.prompt, late.prompt), (early.opened, late.opened)):
            if one != other:
                at = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
                around = one[max(at - 40, 0) : at + 20]
                yield Found(f"says the time of day: {around!r} (in '{shape.name}')")
                return


RULES = (crashes, refuses, open_turns, python_repr, left_out, moved, clock)
