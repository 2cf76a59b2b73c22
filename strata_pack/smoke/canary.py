"""Runs ``canary``: conversations in which every text begins with a unique word, so that every loss can be named.

It is for templates without golden cases. Each text must be in the server's prompt once and unchanged, in a turn of its
role and in the order of the conversation, and the marks of turns, calls and results must be balanced. Then the ten
mentions are put into the history: a text about calls must be rendered at the same place as any other text of the same
message. ``values`` has the checks of arguments, of declarations and of the open turn at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_pack.llama.answers import RequestRefused
from strata_pack.report import Check
from strata_pack.smoke import values
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import ReplayCase, mentions
from strata_pack.smoke.scenario import Scenario

TURN = re.compile(r"<\|im_start\|>(\w+)|<\|im_end\|>")
REASONING_KEY = "reasoning_content"
NEUTRAL = "neutralcanary"
LONG = " Mixed & <b>É</b>" + " moss by the brook" * 12
"""What follows the word of a description: signs that escaping changes, both cases, and a length that cutting
shortens."""

TAIL = f" 1.  two blanks\n\n    indented{LONG}"
"""What follows the word of a message: also the white space that some filters collapse."""

PAIRS = (
    ("<tool_call>", "</tool_call>"),
    ("<tool_response>", "</tool_response>"),
    ("<function=", "</function>"),
    ("<parameter=", "</parameter>"),
    ("<think>", "</think>"),
)
"""Marks that a template opens and closes in the turns of the history."""

_ROLES: Mapping[str, tuple[str, ...]] = {
    "system": ("system", "developer"),
    "user": ("user",),
    "assistant": ("assistant",),
}
_NOT_FOR_RESULTS = ("system", "assistant")
"""Roles in whose turns a message must be, and those in which a result must not be: templates name its role
differently."""


@dataclass(frozen=True)
class Word:
    """One text of a canary: ``what`` it is, its turn's ``role``, and whether it ``must`` be in the prompt."""

    text: str
    what: str
    role: str
    must: bool = True

    @property
    def name(self) -> str:
        """The unique word that the text begins with."""
        return self.text.partition(" ")[0]


@dataclass
class Canary:
    """A conversation under construction: its messages, and its words in the order required in the prompt."""

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    declared: list[Word] = field(default_factory=list)
    details: list[Word] = field(default_factory=list)
    """Texts of parameters, which may be anywhere in a declaration."""
    called: list[str] = field(default_factory=list)
    may_refuse: bool = False
    """Whether a template may refuse the conversation, or move a message to the front, instead of rendering it as it
    is."""

    def word(self, what: str, role: str, *, must: bool = True, tail: str = TAIL) -> str:
        """Return a new text, which is expected after the existing ones."""
        text = f"{self.name}{len(self.words) + len(self.declared):02d}canary{tail}"
        self.words.append(Word(text, what, role, must))
        return text

    def say(self, role: str) -> None:
        """Add a system or user message."""
        self.messages.append({"role": role, "content": self.word(f"the {role} message", role)})

    def answer(self, calls: int = 0, *, thinking: bool, content: bool = True) -> None:
        """Add an assistant turn with ``calls`` calls, and a result for each. ``thinking``: it must be in the prompt."""
        turn: dict[str, Any] = {"role": "assistant"}
        turn[REASONING_KEY] = self.word("the thinking", "assistant", must=thinking)
        beside = " next to a call" if calls else ""
        turn["content"] = self.word(f"the content{beside}", "assistant") if content else ""
        entries = []
        for number in range(calls):
            name = self._tool_name(number)
            value = self.word("the argument of a call", "assistant", tail="")
            self.called += [name, self._key(number)]
            arguments = json.dumps({self._key(number): value})
            function = {"name": name, "arguments": arguments}
            entries.append({"id": f"call{len(self.called) // 2:05d}", "type": "function", "function": function})
        self.messages.append({**turn, "tool_calls": entries} if entries else turn)
        for entry in entries:
            result = self.word("the result of a call", "tool")
            self.messages.append({"role": "tool", "tool_call_id": entry["id"], "content": result})

    def declare(self, count: int = 2) -> None:
        """Declare tools with words as names and descriptions."""
        self.tools = []
        for number in range(count):
            name, about = self._tool_name(number), f"{self.name}about{number}canary"
            about += LONG
            self.declared += [Word(name, "the name of a tool", "system"), Word(about, "a tool's description", "system")]
            key, look = self._key(number), f"{self.name}look{number}canary{LONG}"
            self.details += [
                Word(key, "a parameter's name", "system"),
                Word(look, "a parameter's description", "system"),
            ]
            properties = {key: {"type": "string", "description": look}}
            parameters = {"type": "object", "properties": properties, "required": [key]}
            function = {"name": name, "description": about, "parameters": parameters}
            self.tools.append({"type": "function", "function": function})

    def _tool_name(self, number: int) -> str:
        return f"{self.name}tool{number}canary"

    def _key(self, number: int) -> str:
        return f"{self.name}key{number}canary"


def canaries(*, thinks: bool, calls: bool) -> list[Canary]:
    """Return the conversations. ``thinks``: the template reads the thinking of messages; ``calls``: it writes calls."""
    whole = Canary("whole")
    whole.declare()
    whole.say("system")
    whole.say("user")
    whole.answer(1, thinking=False)
    whole.answer(thinking=False)
    whole.say("user")
    whole.answer(2, thinking=thinks)
    plain = Canary("plain")
    plain.say("user")
    plain.answer(thinking=False)
    plain.say("user")
    toolless = Canary("toolless")
    toolless.say("system")
    toolless.say("user")
    toolless.answer(thinking=False)
    toolless.say("user")
    bare = Canary("bare")
    bare.declare()
    bare.say("user")
    bare.answer(1, thinking=thinks, content=False)
    late = Canary("late", may_refuse=True)
    late.say("user")
    late.answer(thinking=False)
    late.say("system")
    late.say("user")
    return [whole, plain, toolless, bare, late] if calls else [plain, toolless, late]


def find_losses(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Render the canaries, then the histories with mentions."""
    for canary in canaries(thinks=REASONING_KEY in own_text(context.template), calls=context.call_support.calls):
        yield _judged(context, scenario, canary)
    checks = {"open-turn": values.open_turn}
    if context.call_support.calls:
        checks |= {"arguments": values.arguments, "declarations": values.declarations, "mentions": _mentions}
    for name, check in checks.items():
        try:
            yield check(context, scenario)
        except RequestRefused as refused:
            yield _refused(f"{scenario.id}/{name}", scenario, refused)


def own_text(template: str) -> str:
    """Return the template without its history repair."""
    return template.partition("End of the history repair by strata-pack")[2] or template


def _judged(context: SmokeContext, scenario: Scenario, canary: Canary) -> Check:
    id_ = f"{scenario.id}/{canary.name}"
    try:
        prompt = context.client.apply_template(canary.messages, canary.tools)
    except RequestRefused as refused:
        if canary.may_refuse:
            return Check(
                id_, scenario.proves, "passed", f"the template refuses it: {' '.join(refused.message.split())}"
            )
        return _refused(id_, scenario, refused)
    wrong = list(faults(canary, prompt))
    if not wrong:
        other = values.rendered_by_jinja2(context.template, canary.messages, canary.tools)
        wrong = [f"{values.BY_JINJA2}, {fault}" for fault in faults(canary, other)] if other is not None else []
    return Check(
        id_,
        scenario.proves,
        "failed" if wrong else "passed",
        "; ".join(wrong) or f"{len(canary.words) + len(canary.declared)} texts, each in its place",
        prompt=prompt,
        data={"wrong": wrong},
    )


def _refused(id_: str, scenario: Scenario, refused: RequestRefused) -> Check:
    return Check(
        id_, scenario.proves, "failed", f"the server refuses the conversation: {' '.join(refused.message.split())}"
    )


def faults(canary: Canary, prompt: str) -> Iterator[str]:
    """Yield the faults of the ``prompt`` that a template rendered for ``canary``."""
    yield from _declarations(canary, prompt)
    last = -1
    ordered = not canary.may_refuse
    for word in canary.words:
        count = prompt.count(word.text)
        if count != 1:
            if count:
                yield f"{word.what} ({word.name}) is there {count} times"
            elif word.must or word.name in prompt:
                yield f"{word.what} ({word.name}) is {'changed' if word.name in prompt else 'lost'}"
            continue
        place = prompt.index(word.text)
        if place < last and ordered:
            yield f"{word.what} ({word.name}) is not in the order of the conversation"
        last = place
        found = _role_at(prompt, place)
        if found is not None and not _fits(word.role, found):
            yield f"{word.what} ({word.name}) is in a turn of the role {found}"
        if word.role == "tool" and _unmarked(prompt, place):
            yield f"nothing marks the result of a call ({word.name}) as one"
    yield from _marks(prompt)
    yield from _pairs(prompt)


def _fits(role: str, found: str) -> bool:
    return found in _ROLES[role] if role in _ROLES else found not in _NOT_FOR_RESULTS


def _unmarked(prompt: str, place: int) -> bool:
    """Return whether a user's turn begins with the result at ``place``, as if the user had said it."""
    start = prompt.rfind("<|im_start|>", 0, place)
    return start >= 0 and prompt[start:place].rstrip() == "<|im_start|>user"


def _declarations(canary: Canary, prompt: str) -> Iterator[str]:
    """Yield the faults of the declarations: a tool's name occurs in its declaration and in each call, its description
    once. Some templates declare a tool by a signature and by JSON, with the name in both."""
    last = -1
    for word in canary.declared:
        wanted = 1 + canary.called.count(word.text)
        count = prompt.count(word.text)
        if count < wanted or (count > wanted and word.text not in canary.called and word.name != word.text):
            lost = f"there {count} times, not {wanted}" if count else "changed" if word.name in prompt else "lost"
            yield f"{word.what} ({word.name}) is {lost}"
        place = prompt.find(word.text)
        if 0 <= place < last:
            yield f"{word.what} ({word.name}) is not in the order of the tools"
        last = max(place, last)
    for word in canary.details:
        wanted = 1 + canary.called.count(word.text)
        if prompt.count(word.text) < wanted:
            changed = word.name in prompt and word.text not in prompt
            where = " in a call" if word.text in prompt else ""
            yield f"{word.what} ({word.name}) is {'changed' if changed else f'lost{where}'}"


def _role_at(prompt: str, place: int) -> str | None:
    """Return the role of the turn that contains ``place``, None in a prompt without the family's marks."""
    start = prompt.rfind("<|im_start|>", 0, place)
    found = TURN.match(prompt, start) if start >= 0 else None
    return found.group(1) if found else None


def _marks(prompt: str) -> Iterator[str]:
    """Yield the faults of turn marks: each turn must be closed before the next one; the last one is open for the
    model."""
    if "<|im_start|>" not in prompt:
        return  # another family, which may use <|im_end|> in its own way
    opened: str | None = None
    marks = list(TURN.finditer(prompt))
    after = [prompt[mark.end() : mark.end() + 1] for mark in marks if mark.group(1) is None]
    if 0 < after.count("\n") < len(after):
        yield f"{len(after) - after.count(chr(10))} of {len(after)} <|im_end|> are not followed by a line feed"
    for mark in marks:
        role = mark.group(1)
        if role is not None and prompt[mark.end() : mark.end() + 1] != "\n":
            yield f"no line feed follows the role {role}"
        if role is None and opened is None:
            yield "an <|im_end|> closes no turn"
        elif role is not None and opened is not None:
            yield f"a turn of the role {opened} has no <|im_end|>"
        opened = role
    if marks and opened != "assistant":
        yield "the prompt does not end in an open assistant turn"


def _pairs(prompt: str) -> Iterator[str]:
    """Yield the marks that are not opened and closed equally often in the turns after the first question.

    The turn that is open for the model at the end does not count, nor does thinking that is closed and never opened:
    many templates write a turn without thinking so.
    """
    last = prompt.rfind("<|im_start|>")
    history = prompt[:last] if last >= 0 else prompt.rstrip().removesuffix("<think>")
    history = history[max(0, history.find("<|im_start|>user")) :]
    for opening, closing in PAIRS:
        opened, closed = history.count(opening), history.count(closing)
        if opened > closed or (closed > opened and opening != "<think>"):
            yield f"{opening} is there {opened} times and {closing} {closed} times"


def _mentions(context: SmokeContext, scenario: Scenario) -> Check:
    """Compare each mention in the history with a neutral word in its place, in every form that clients send."""
    wrong, prompts = [], 0
    first: tuple[str, str] | None = None
    for replay in mentions(context.form):
        text = replay.reasoning.strip()
        pairs = zip(_histories(replay, text), _histories(replay, NEUTRAL), strict=True)
        for (way, place, messages), (_, _, neutral) in pairs:
            expected = context.client.apply_template(neutral).replace(NEUTRAL, text)
            got = context.client.apply_template(messages)
            prompts += 1
            if got != expected:
                wrong.append(f"{replay.id} ({way}, {place})")
                first = first or (expected, got)
    return Check(
        f"{scenario.id}/mentions",
        scenario.proves,
        "failed" if wrong else "passed",
        f"text about calls is not rendered like other text: {', '.join(wrong)}"
        if wrong
        else f"ten texts about calls, in {prompts} histories, are rendered like other text",
        expected=first[0] if first else None,
        got=first[1] if first else None,
    )


def _histories(replay: ReplayCase, text: str) -> Iterator[tuple[str, str, Sequence[Mapping[str, Any]]]]:
    """Yield the conversations in which a turn's thinking is ``text``, with the form in which it is sent back and its
    place."""
    closing = f"\n</think>\n\n{replay.content}" if replay.content else ""
    turns = {
        REASONING_KEY: {"role": "assistant", "content": replay.content, REASONING_KEY: text},
        "without an answer": {"role": "assistant", "content": "", REASONING_KEY: text},
        "inline": {"role": "assistant", "content": f"<think>\n{text}{closing}"},
    }
    user, later = {"role": "user", "content": replay.user}, {"role": "user", "content": "And then?"}
    for way, turn in turns.items():
        yield way, "an old turn", [user, turn, later]
        yield way, "the last turn", [later, user, turn]
