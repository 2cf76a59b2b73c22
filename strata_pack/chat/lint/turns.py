"""Learns the marks around turns from plain chats, and checks whether every turn has them.

No family's marks are built in. ``learn`` analyses a chat: the mark after its last answer ends turns, and the first mark
after an end opens turns. Tags that form a pair by name (``<tool_call>``, ``</tool_call>``) are counted.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from strata_pack.chat.lint.rendered import RenderedConversation, RenderedConversations, pieces

MARK = re.compile(
    r"<\|[^<>|\s]{1,40}\|?>|<[^<>|\s]{1,40}\|>|<｜[^<>\n]{1,40}｜>|</?[A-Za-z_][\w:.-]{0,40}(?:=[^<>\n]{0,60})?>"
    r"|\[/?[A-Z_]{2,24}\]|<</?[A-Z]{2,12}>>"
)
"""A tag around turns or parts of turns."""

SPECIAL = re.compile(r"<[|｜][^<>]*>|<[^<>]*[|｜]>|</?s>|<(?:end|eo)[a-z_]*>|\[/?[A-Z_]+\]")
"""A mark that is a special token, not a tag in ordinary text."""

_CLOSING_WORDS = (("end", "start"), ("end", "begin"), ("eos", "bos"), ("close", "open"))

PLAIN = (
    "a chat that ends with an answer",
    "a chat",
    "a chat without a system message",
    "a long chat",
    "a question",
    "a system message and a question",
)
"""The chats from which the marks are learned."""


@dataclass(frozen=True)
class TurnToken:
    """A mark in a prompt: its text without attributes, its start and its end."""

    text: str
    start: int
    end: int


def tokens(prompt: str) -> list[TurnToken]:
    """Return the marks in ``prompt``; ``<function=name>`` counts as ``<function>``."""
    return [TurnToken(_bare(found[0]), found.start(), found.end()) for found in MARK.finditer(prompt)]


def _bare(mark: str) -> str:
    name, equals, _ = mark.partition("=")
    return f"{name}>" if equals and mark.startswith("<") and not mark.startswith("<|") else mark


@dataclass(frozen=True)
class TurnMarks:
    """The marks of a template: ``ends`` ends an answer, ``opens`` are those that open the next turn.

    ``around_all``: a user's turn has an end mark too; ``ends_open``: a prompt with a generation prompt ends inside a
    turn.
    """

    ends: str
    opens: frozenset[str]
    around_all: bool
    ends_open: bool


def learn(rendered: RenderedConversations) -> TurnMarks | None:
    """Return the marks around the turns of plain chats, ``None`` if there are none."""
    chats = [one for name in PLAIN for one in rendered.fine if one.shape.name == name]
    gaps = [gap for chat in chats for gap in _gaps(chat)]
    if not gaps or any(not gap for gap in gaps) or len({gap[0].text for gap in gaps}) > 1:
        return None
    ends = gaps[0][0].text
    everything = [tokens(chat.prompt) for chat in chats]
    once = set.intersection(*({text for text, count in _counts(one).items() if count == 1} for one in everything))
    opens: set[str] = set()
    for one in everything:
        fresh = True
        for token in one:
            if token.text == ends:
                fresh = True
            elif fresh and token.text not in once:
                opens.add(token.text)
                fresh = False
    if not opens:
        return None
    marks = TurnMarks(ends, frozenset(opens), all(_closes_users(chat, ends) for chat in chats), ends_open=False)
    if any(any(_left_open(marks, chat)) or any(_opened_again(marks, chat)) for chat in chats):
        return None
    questions = [chat for chat in chats if chat.shape.messages[-1]["role"] == "user"]
    return replace(marks, ends_open=all(is_open(marks, chat.opened) for chat in questions))


def _gaps(chat: RenderedConversation) -> Iterator[list[TurnToken]]:
    """Yield the marks between each answer and the question after it."""
    found = tokens(chat.prompt)
    placed = [(piece.role, piece.place(chat.prompt), piece.text) for piece in pieces(chat.shape)]
    for (role, start, text), (following, end, _) in itertools.pairwise(placed):
        if role == "assistant" and following == "user" and 0 <= start < end:
            yield [token for token in found if start + len(text) <= token.start < end]


def _counts(found: Sequence[TurnToken]) -> Counter[str]:
    return Counter(token.text for token in found)


def _closes_users(chat: RenderedConversation, ends: str) -> bool:
    """Return whether ``ends`` is between every user's text and the next answer."""
    placed = [(piece, piece.place(chat.prompt)) for piece in pieces(chat.shape)]
    for (one, start), (other, end) in itertools.pairwise(placed):
        if one.role == "user" and other.role == "assistant" and ends not in chat.prompt[start:end]:
            return False
    return True


def is_open(marks: TurnMarks, prompt: str) -> bool:
    """Return whether ``prompt`` ends inside a turn: there is a mark after the last end."""
    found = tokens(prompt)
    return bool(found) and found[-1].text != marks.ends


def faults(marks: TurnMarks, conversation: RenderedConversation) -> list[str]:
    """Return the faults of a prompt's turns as clauses for a sentence."""
    return [*_twice(marks, conversation.prompt), *_left_open(marks, conversation), *_opened_again(marks, conversation)]


def _twice(marks: TurnMarks, prompt: str) -> Iterator[str]:
    found = tokens(prompt)
    for one, other in itertools.pairwise(found):
        if one.text == other.text == marks.ends and not prompt[one.end : other.start].strip():
            yield f"{marks.ends} occurs twice with nothing between"
            return


def _left_open(marks: TurnMarks, conversation: RenderedConversation) -> Iterator[str]:
    """Find an assistant's turn that no mark ends before the user's next text, or before the end of the prompt."""
    prompt = conversation.prompt
    mine: int | None = None
    results = False
    for piece in pieces(conversation.shape):
        place = piece.place(prompt, mine or 0)
        if place < 0:
            continue
        if piece.role in ("assistant", "call"):
            mine, results = place + len(piece.text), False
        elif piece.role == "tool":
            results = True
        elif piece.role == "user" and mine is not None:
            if not _is_ended(marks, prompt, mine, place):
                where = "after a tool's result" if results else "before the next question"
                yield f"the assistant's turn is left open {where}: no {marks.ends} in {_shown(prompt[mine:place])}"
                return
            mine = None
    if mine is not None and conversation.shape.messages[-1]["role"] == "assistant":
        after = [token.text for token in tokens(prompt) if token.start >= mine]
        if not any(text == marks.ends or SPECIAL.fullmatch(text) for text in after):
            yield f"the last answer is left open: no {marks.ends} after it"


def _opened_again(marks: TurnMarks, conversation: RenderedConversation) -> Iterator[str]:
    """Find two turns that are opened without an end between them, in a template that ends every turn."""
    if not marks.around_all:
        return
    opened: TurnToken | None = None
    for token in tokens(conversation.prompt):
        if token.text == marks.ends:
            opened = None
        elif token.text in marks.opens:
            if opened is not None and not _is_ended(marks, conversation.prompt, opened.end, token.end):
                between = _shown(conversation.prompt[opened.start : token.end])
                yield f"{token.text} opens a turn in an open turn: {between}"
                return
            opened = token


def _is_ended(marks: TurnMarks, prompt: str, start: int, end: int) -> bool:
    """Return whether a turn ends between two positions: by the usual mark, or by a special token (``<|call|>``)
    directly before the next turn that closes nothing else."""
    everything = tokens(prompt)
    found = [token for token in everything if start <= token.start < end]
    if any(token.text == marks.ends for token in found):
        return True
    known = {token.text for token in everything}
    for one, other in itertools.pairwise(found):
        apart = prompt[one.end : other.start].strip()
        if other.text in marks.opens and not apart and _ends_by_itself(one.text, known):
            return True
    return False


def _ends_by_itself(mark: str, known: Set[str]) -> bool:
    closes = mark.startswith(("[/", "<|/")) or (mark.endswith("|>") and not mark.startswith("<|"))
    return SPECIAL.fullmatch(mark) is not None and not closes and known.isdisjoint(openers_of(mark))


def openers_of(mark: str) -> tuple[str, ...]:
    """Return the marks that ``mark`` closes, by name: ``<x>`` for ``</x>``, ``<|x_begin|>`` for ``<|x_end|>``."""
    if mark.startswith(("</", "[/")):
        return (mark[0] + mark[2:],)
    if mark.startswith("<|/"):
        return ("<|" + mark[3:],)
    if mark.endswith("|>") and not mark.startswith("<|"):
        return (f"<|{mark[1:-2]}>",)
    words = re.split(r"([A-Za-z]+)", mark)
    return tuple(
        "".join(opening if word.lower() == closing else word for word in words)
        for closing, opening in _CLOSING_WORDS
        if any(word.lower() == closing for word in words) and len(words) > 3
    )


@dataclass(frozen=True)
class UnevenPair:
    """A pair of tags; a prompt has ``extra`` more opening than closing ones (fewer if negative)."""

    opening: str
    closing: str
    conversation: RenderedConversation
    extra: int


def uneven_pairs(rendered: RenderedConversations) -> Iterator[UnevenPair]:
    """Yield each unbalanced pair of tags with the first such prompt: special tokens in chats, any tags in
    conversations with calls (except those that are unbalanced in chats already, as thinking often is)."""
    fine = [one for one in rendered.fine if not one.shape.lenient]
    counts = {one.shape.name: _counts(tokens(one.prompt)) for one in fine}
    every = set().union(*counts.values()) if counts else set()
    for closing in sorted(every):
        for opening in openers_of(closing):
            if opening in every:
                extra = {name: one[opening] - one[closing] for name, one in counts.items()}
                yield from itertools.islice(_uneven(opening, closing, fine, extra, counts), 1)


def _uneven(
    opening: str,
    closing: str,
    fine: Sequence[RenderedConversation],
    extra: Mapping[str, int],
    counts: Mapping[str, Counter[str]],
) -> Iterator[UnevenPair]:
    special = SPECIAL.fullmatch(opening) is not None and SPECIAL.fullmatch(closing) is not None
    chats = [one for one in fine if one.shape.tools is None and not one.shape.calls]
    for one in chats:
        # The last turn may be left open for continuation, or have a different end.
        if special and counts[one.shape.name][opening] > 1 and not 0 <= extra[one.shape.name] <= 1:
            yield UnevenPair(opening, closing, one, extra[one.shape.name])
    if any(extra[one.shape.name] for one in chats):
        return
    for one in fine:
        spoken = extra.get("tools that nobody called", 0) if one.shape.tools else 0
        goes_on = special and one.shape.messages[-1]["role"] == "tool"
        if one.shape.calls and extra[one.shape.name] - spoken not in ((0, 1) if goes_on else (0,)):
            yield UnevenPair(opening, closing, one, extra[one.shape.name] - spoken)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 90 else f"{text[:50]}…{text[-40:]}")
