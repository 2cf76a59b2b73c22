"""Generates the conversations of a proof for a call format, deterministically.

Three parts: every kind of assistant turn in every small conversation; every setting of the variables on a mixed
history; and longer conversations drawn at random from a fixed seed. ``rules`` decides whether a
conversation is stranded, never the generator.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_pack.chat.repair.rules import CallForm, heal_conversation
from strata_pack.chat.repair.turns import KINDS, STRANDED, TurnWriter

SEED = 20261129
RANDOM_CONVERSATIONS = 120


def _tool(name: str, description: str, required: Sequence[str], **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS: list[dict[str, Any]] = [
    _tool("read_file", "Read one file & return its text.", ["path"], path={"type": "string", "description": "Where."}),
    _tool(
        "write_file",
        "Write a file.",
        ["path", "text"],
        path={"type": "string", "description": "Where."},
        text={"type": "string", "description": "What."},
        mode={"type": "string", "enum": ["replace", "append"], "description": "How."},
    ),
]

VARIABLES: tuple[dict[str, Any], ...] = (
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "preserve_thinking": True},
    {"add_generation_prompt": True, "preserve_thinking": False},
    {"add_generation_prompt": True, "preserve_thinking": False, "enable_thinking": False},
)
"""Settings of the variables that Qwen-like templates read."""

CONTINUED = {"add_generation_prompt": False, "continue_final_message": True}

HERE = "*"
CALLED = "a declared call"

PLACES: Mapping[str, tuple[str, ...]] = {
    "in an old turn": ("user", HERE, "user"),
    "last": ("system", "user", HERE),
    "in an agent's loop": ("user", CALLED, "tool", HERE, "tool", CALLED, "tool"),
    "two queries ago": ("system", "user", HERE, "user", "an answer with thinking", "user"),
}
"""Small conversations of roles and names of kinds, with one slot for the turn under test."""

MIXED = (
    "system", "user", "B", "user", "A", "user", CALLED, "tool", "B with content", "tool",
    "a fenced call", "user like a model", CALLED, "tool like a model", "an answer with thinking",
)  # fmt: skip


@dataclass(frozen=True)
class MovedCall:
    """A stranded run and the text of the message before its turn; each occurs in a prompt at most once."""

    text: str
    after: str


@dataclass(frozen=True)
class Conversation:
    """One generated conversation. ``healed`` are its messages after the repair; the same messages if nothing is
    stranded."""

    name: str
    messages: list[Any]
    tools: list[dict[str, Any]] | None
    variables: Mapping[str, Any]
    healed: list[Any]
    moved: tuple[MovedCall, ...]

    @property
    def stranded(self) -> bool:
        """Whether an assistant turn has a call in its open thinking."""
        return self.healed != self.messages

    def inputs(self, messages: list[Any] | None = None) -> dict[str, Any]:
        """Return the template's inputs with ``messages`` (default: the conversation's own)."""
        given: dict[str, Any] = {**self.variables, "messages": self.messages if messages is None else messages}
        return given if self.tools is None else {**given, "tools": self.tools}


def generate(form: CallForm) -> list[Conversation]:
    """Return the conversations for templates whose calls have the format ``form``."""
    return [*_each_kind(form), *_each_setting(form), *_drawn(form)]


def _each_kind(form: CallForm) -> Iterator[Conversation]:
    for number, (kind, (place, turns)) in enumerate(itertools.product(KINDS, PLACES.items())):
        names = [kind if name == HERE else name for name in turns]
        yield _conversation(f"{kind}, {place}", form, names, TOOLS if number % 2 else None, VARIABLES[0])


def _each_setting(form: CallForm) -> Iterator[Conversation]:
    healthy = [name for name in MIXED if name not in STRANDED]
    for (number, variables), tools in itertools.product(enumerate((*VARIABLES, CONTINUED)), (None, TOOLS)):
        yield _conversation(f"setting {number}, mixed", form, MIXED, tools, variables)
        yield _conversation(f"setting {number}, healthy", form, healthy, tools, variables)
    for kind in ("A", "B"):
        yield _conversation(f"{kind}, continued", form, ["user", kind], None, CONTINUED)


def _drawn(form: CallForm) -> Iterator[Conversation]:
    dice = random.Random(SEED)
    kinds = list(KINDS)
    for number in range(RANDOM_CONVERSATIONS):
        names = ["system"] if dice.random() < 0.5 else []
        for _ in range(dice.randint(1, 4)):
            names.append("user")
            for _ in range(dice.randint(0, 3)):
                names += [dice.choice((CALLED, *kinds)), "tool"]
            names.append(dice.choice(kinds))
        if dice.random() < 0.7:
            names.append("user")
        tools = dice.choice((None, TOOLS))
        yield _conversation(f"drawn {number}", form, names, tools, dice.choice(VARIABLES))


def _conversation(
    name: str,
    form: CallForm,
    names: Sequence[str],
    tools: list[dict[str, Any]] | None,
    variables: Mapping[str, Any],
) -> Conversation:
    writer = TurnWriter(form)
    messages = [writer.turn(KINDS[one]) if one in KINDS else writer.message(one) for one in names]
    healed = heal_conversation(messages, form, variables)
    full_name = f"{name}, tools" if tools else name
    return Conversation(full_name, messages, tools, variables, healed, _moved(messages, healed))


def _moved(messages: list[Any], healed: list[Any]) -> tuple[MovedCall, ...]:
    """Return the stranded runs; no other text of a healed content contains a call."""
    moved = []
    for index, (before, after) in enumerate(zip(messages, healed, strict=True)):
        if before != after:
            text = after["content"]
            moved.append(MovedCall(text[text.index("<tool_call>") :], messages[index - 1]["content"]))
    return tuple(moved)
