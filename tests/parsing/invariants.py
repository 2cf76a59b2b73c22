"""What must hold for every text, however it is cut: used by the property tests and by the coverage-guided fuzzer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, NoReturn

from strata_pack.parsing import Event, OutputParser, ToolCall

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "save",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "note": {"type": ["string", "null"]},
                    "data": {"anyOf": [{"type": "array"}, {"type": "object"}]},
                },
            },
        },
    },
    {"name": "jobs", "parameters": {"type": "object", "properties": {}}},
]

TOKENS = re.compile(r"</?(?:think|tool_call)>|</?[a-z]+|[\r\n]+|[`~]+|\w+|.", re.DOTALL)
"""How a tokenizer cuts: the four tags that are one token each, words, line ends, marks."""

LEADING_THINK = re.compile(r"([ \t\r\n]*<(?:seed:)?think>(?:\r?\n)?)?")


@dataclass
class Outcome:
    """One reply as its events tell it."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    open_calls: list[str] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)


def _no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no strict JSON")


def strict_json(text: str) -> Any:
    """Read ``text`` as strict JSON."""
    return json.loads(text, parse_constant=_no_constant)


def read_events(events: Sequence[Event], *, stream_tools: bool) -> Outcome:
    """Return what ``events`` tell, after checking the order and form of them all."""
    outcome = Outcome()
    pieces: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for event in events:
        if event.kind == "reasoning":
            assert not outcome.content, "reasoning after content"
            assert not outcome.calls, "reasoning after a call"
            assert not names, "reasoning after an announced call"
            outcome.reasoning += event.text
        elif event.kind == "content":
            outcome.content += event.text
        else:
            call = event.call
            assert isinstance(call, ToolCall)
            if event.kind == "tool_start":
                assert call.id not in names, "a call was announced twice"
                names[call.id] = call.name
                pieces[call.id] = []
            elif event.kind == "tool_args":
                pieces[call.id].append(event.text)
            else:
                strict_json(json.dumps(call.arguments, allow_nan=False))
                if stream_tools:
                    assert names.pop(call.id) == call.name
                    assert strict_json("".join(pieces.pop(call.id))) == call.arguments
                outcome.calls.append((call.name, call.arguments))
        if event.kind in ("reasoning", "content", "tool_args"):
            assert event.text, "an event without text"
    assert stream_tools or not names
    outcome.open_calls = list(names.values())
    return outcome


def run(
    text: str,
    cuts: Sequence[int],
    finish_reason: str,
    specials: Sequence[bool | None] = (None,),
    **options: Any,
) -> Outcome:
    """Parse ``text`` cut at ``cuts``; ``specials``, over and over, say of each delta whether it is a special token."""
    parser = OutputParser(**options)
    events: list[Event] = []
    last = 0
    for cut, special in zip([*cuts, len(text)], cycle(specials)):
        events += parser.feed(text[last:cut], special)
        last = cut
    events += parser.finish(finish_reason)
    outcome = read_events(events, stream_tools=bool(options.get("stream_tools")))
    outcome.counters = parser.counters.to_dict()
    return outcome


def token_cuts(text: str) -> list[int]:
    """Return where deltas end that are tokens."""
    return [token.end() for token in TOKENS.finditer(text)][:-1]


def check_pending(text: str, cut: int, **options: Any) -> None:
    """If nothing is pending after ``text[:cut]``, ending the reply there must bring out no further text."""
    parser = OutputParser(**options)
    parser.feed(text[:cut])
    if not parser.pending:
        late = [event for event in parser.finish("length") if event.kind in ("reasoning", "content")]
        assert not late, f"held back although nothing was pending: {late}"


def check_specials(
    text: str, cuts: Sequence[int], finish_reason: str, specials: Sequence[bool | None], **options: Any
) -> None:
    """Check that a stream tells what the whole reply does where special tokens are known, and that the cuts of text in
    ordinary tokens do not matter."""
    for flags, places in ((specials, cuts), ([False], cuts), ([False], range(1, len(text)))):
        whole = run(text, places, finish_reason, flags, **options)
        streamed = run(text, places, finish_reason, flags, stream_tools=True, **options)
        assert (streamed.reasoning, streamed.calls) == (whole.reasoning, whole.calls)
        assert streamed.counters == whole.counters
        if flags == [False]:
            assert whole == run(text, [], finish_reason, flags, **options), "another cut, another result"


def check(text: str, cuts: Sequence[int], finish_reason: str, **options: Any) -> Outcome:
    """Check every invariant on ``text``; return the outcome of reading it whole."""
    whole = run(text, [], finish_reason, **options)
    for each in (cuts, token_cuts(text), range(1, len(text))):
        assert run(text, each, finish_reason, **options) == whole, "another cut, another result"

    streamed = run(text, [], finish_reason, stream_tools=True, **options)
    for each in (cuts, token_cuts(text), range(1, len(text))):
        assert run(text, each, finish_reason, stream_tools=True, **options) == streamed, "another cut, another stream"
    assert streamed.reasoning == whole.reasoning
    assert streamed.calls == whole.calls
    assert streamed.counters == whole.counters
    if streamed.open_calls:  # the one exception: a call that was announced and then cut is not repeated as content
        assert whole.counters["unfinished_calls"] >= len(streamed.open_calls)
    else:
        assert streamed.content == whole.content

    for cut in list(cuts)[:2]:
        check_pending(text, cut, **options)
        check_pending(text, cut, stream_tools=True, **options)

    # The reasoning is one piece of the text: nothing inside it is lost, and nothing of a tag got into it.
    lead = LEADING_THINK.match(text)
    start = lead.end() if lead else 0
    assert text.startswith(whole.reasoning, start) or text.startswith(whole.reasoning), "reasoning is not the text's"
    return whole
