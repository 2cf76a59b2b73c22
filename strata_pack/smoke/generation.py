"""Runs generation scenarios: a grammar forces the model to stream a known text, and our parser reads it.

A grammar makes any model, even a random one, produce an exact text. So the failing outputs of real models are replayed
on a real server, in the deltas that its detokenizer produces.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from strata_pack.llama.answers import ChatReply, GarbledAnswer, RequestRefused
from strata_pack.llama.client import LlamaClient
from strata_pack.parsing import Event, OutputParser, ToolCall
from strata_pack.plural import counted
from strata_pack.report import Check, Table
from strata_pack.smoke.call_support import beginning
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import Form, ReplayCase, call_text, failures, mentions, read
from strata_pack.smoke.scenario import Impossible, Scenario

STREAMS = 8
LONG_BYTES = 64 << 10
BLOCK = 8 << 10
RUN_CHARS = "#-= "
RUN_SIZES = (128, 80, 64, 32, 16, 8, 4, 2, 1)
BIAS = 100.0
"""A logit bias that makes one token certain where the grammar allows it."""

ONE_SLOT: Mapping[str, Any] = {"id_slot": 0}
"""The slot of all single streams: the contents of other slots slow every token down if they share the cache."""

CALL_FORMATS = {"xml": "auto", "json": "json"}
"""The parser's ``call_format`` for a family: except in JSON families only ``<function=`` ends the thinking."""


def literal(text: str) -> str:
    """Return ``text`` as a GBNF literal (with JSON escapes)."""
    return json.dumps(text, ensure_ascii=False)


def grammar_of(text: str) -> str:
    """Return the grammar that only allows ``text``."""
    return f"root ::= {literal(text)}"


@dataclass(frozen=True)
class GeneratedReply:
    """The result of one streamed generation: the raw text, its deltas, and the parser's output."""

    text: str
    deltas: int
    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]

    def got(self) -> dict[str, Any]:
        """Return what the client gets, as JSON."""
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        return {"reasoning": self.reasoning, "content": self.content, "calls": calls}


def prompt_for(client: LlamaClient, user: str, tools: Sequence[Any] | None) -> str:
    """Return the prompt with the question ``user`` and thinking switched on, rendered by the server.

    Without ``tools`` it is as short as possible.
    """
    variables: dict[str, Any] = {"enable_thinking": True} | ({} if tools else {"reasoning_effort": "medium"})
    return client.apply_template([{"role": "user", "content": user}], tools, chat_template_kwargs=variables)


def generate(context: SmokeContext, prompt: str, grammar: str, limit: int, **options: Any) -> GeneratedReply:
    """Generate after ``prompt`` under ``grammar`` (at most ``limit`` tokens) and parse the stream incrementally."""
    parser = OutputParser.for_prompt(prompt, tools=read("tools"), call_format=CALL_FORMATS[context.form])
    events: list[Event] = []
    pieces: list[str] = []
    finish = "stop"
    for chunk in context.client.stream_completion(
        prompt, grammar=grammar, n_predict=limit, temperature=0.0, cache_prompt=True, **options
    ):
        if chunk.text:
            pieces.append(chunk.text)
            events += parser.feed(chunk.text)
        if chunk.stop and chunk.stop_type == "limit":
            finish = "length"
    events += parser.finish(finish_reason=finish)
    return _outcome(pieces, events)


def parse_whole(text: str, *, thinking: bool) -> GeneratedReply:
    """Parse a complete text, which begins in the thinking if ``thinking``."""
    parser = OutputParser(thinking=thinking, tools=read("tools"))
    return _outcome([text], [*parser.feed(text), *parser.finish()])


def _outcome(pieces: Sequence[str], events: Sequence[Event]) -> GeneratedReply:
    return GeneratedReply(
        text="".join(pieces),
        deltas=len(pieces),
        reasoning="".join(event.text for event in events if event.kind == "reasoning"),
        content="".join(event.text for event in events if event.kind == "content"),
        calls=tuple(event.call for event in events if event.kind == "tool_call" and event.call is not None),
    )


def _token_limit(text: str) -> int:
    """Return an upper bound of the tokens for ``text`` in any vocabulary: one per byte, and the end."""
    return len(text.encode("utf-8")) + 8


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def replay_on(context: SmokeContext, replay: ReplayCase, prompt: str, **options: Any) -> GeneratedReply:
    """Make the model write ``replay`` after ``prompt``, with an opening ``<think>`` if the prompt has none.

    A bias favours the text's own tokens, so that its deltas are those of a model, and the server seldom has to check
    its whole vocabulary against the grammar.
    """
    text = beginning(prompt) + replay.text
    bias = bias_towards(context.client, text)
    return generate(context, prompt, grammar_of(text), _token_limit(text), logit_bias=bias, **options)


def bias_towards(client: LlamaClient, text: str, bias: float = BIAS) -> list[list[float]]:
    """Return the ``logit_bias`` that favours the tokens of ``text``."""
    return [[token, bias] for token in sorted(set(client.tokenize(text)))]


def _compare(id_: str, scenario: Scenario, replay: ReplayCase, prompt: str, outcome: GeneratedReply) -> Check:
    """Check one replay: first whether the server wrote the text, then whether the parser read it right."""
    text = beginning(prompt) + replay.text
    if outcome.text != text:
        return Check(
            id_,
            scenario.proves,
            "failed",
            "the server did not write the text of its grammar",
            prompt=prompt,
            expected=text,
            got=outcome.text,
        )
    right = outcome.got() == replay.expected()
    return Check(
        id_,
        scenario.proves,
        "passed" if right else "failed",
        f"{replay.what}: {len(outcome.calls)} call(s) from {outcome.deltas} deltas",
        prompt=prompt,
        expected=_json(replay.expected()),
        got=_json(outcome.got()),
        data={"generated": text},
    )


def stranded_call(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Replay the four ways in which calls were lost, on our parser and on the server's own."""
    rows = []
    own: dict[str, Any] = {}
    for replay in failures(context.form):
        prompt = prompt_for(context.client, replay.user, read("tools"))
        outcome = replay_on(context, replay, prompt, **ONE_SLOT)
        context.alone[replay.id] = outcome.got()
        yield _compare(f"{scenario.id}/{replay.id}", scenario, replay, prompt, outcome)
        server = own[replay.id] = server_parse(context.client, replay)
        rows.append((replay.id, len(replay.calls), len(outcome.calls), str(server.get("calls", server["verdict"]))))
    yield _recorded(scenario, own, rows)


def _recorded(scenario: Scenario, own: Mapping[str, Any], rows: Sequence[tuple[str | int | float, ...]] = ()) -> Check:
    """Return a check that records how the server's own parser reads the same replies; it never fails."""
    right = sum(entry["verdict"] == "right" for entry in own.values())
    bogus = sum(entry.get("calls", 0) for entry in own.values())
    wrong = ", ".join(f"{id_} {entry['verdict']}" for id_, entry in own.items() if entry["verdict"] != "right")
    return Check(
        f"{scenario.id}/server-parser",
        "recorded for comparison: how the server's own /v1/chat/completions parser reads the same replies",
        "passed",
        f"only for comparison: the server's parser reads {right} of {len(own)} replies right"
        f"{f' ({wrong})' if wrong else ''}, and finds {counted(bogus, 'call')}",
        table=Table(("reply", "calls in it", "our parser", "server's parser"), tuple(rows)) if rows else None,
        data={"replies": dict(own)},
    )


def server_parse(client: LlamaClient, replay: ReplayCase) -> dict[str, Any]:
    """Let the server's own chat parser read the reply, given as the beginning of its answer and ended at once.

    The server does not accept a grammar together with tools, so it gets the reply to continue, and a bias forces the
    end-of-turn token.
    """
    messages = [
        {"role": "user", "content": replay.user},
        {"role": "assistant", "content": "", "reasoning_content": replay.text},
    ]
    try:
        end = client.tokenize(client.props().eos_token)
        reply = client.chat_completion(
            messages,
            read("tools"),
            continue_final_message=True,
            add_generation_prompt=False,
            max_tokens=2,
            logit_bias=[[token, BIAS] for token in end],
            **ONE_SLOT,
        )
    except (RequestRefused, GarbledAnswer) as error:
        return {"verdict": "refused", "message": str(error)}
    calls = [{"name": call.name, "arguments": call.decoded()} for call in reply.tool_calls]
    right = calls == list(replay.calls) and _same_text(reply, replay)
    return {
        "verdict": "right" if right else _wrong(replay, calls),
        "calls": len(calls),
        "finish_reason": reply.finish_reason,
        "reasoning": reply.reasoning,
        "content": reply.content,
        "tool_calls": calls,
    }


def _wrong(replay: ReplayCase, calls: Sequence[Any]) -> str:
    """Return the faults of the server's parser: lost calls, calls out of mentions, or a different split of the text."""
    if len(calls) != len(replay.calls):
        return "lost" if len(calls) < len(replay.calls) else "bogus call"
    return "different"


def _same_text(reply: ChatReply, replay: ReplayCase) -> bool:
    return (reply.reasoning.strip(), reply.content.strip()) == (replay.reasoning.strip(), replay.content.strip())


def mentioned(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Replay the ten controls: they must give no call, and no text may be lost."""
    own: dict[str, Any] = {}
    for replay in mentions(context.form):
        prompt = prompt_for(context.client, replay.user, read("tools"))
        outcome = replay_on(context, replay, prompt, **ONE_SLOT)
        context.alone[replay.id] = outcome.got()
        yield _compare(f"{scenario.id}/{replay.id}", scenario, replay, prompt, outcome)
        own[replay.id] = server_parse(context.client, replay)
    yield _recorded(scenario, own)


def longest_run(client: LlamaClient) -> tuple[str, int]:
    """Return the longest run of one character that is a single token, and that token."""
    for size in RUN_SIZES:
        for char in RUN_CHARS:
            tokens = client.tokenize(char * size, parse_special=False)
            if len(tokens) == 1:
                return char * size, tokens[0]
    raise Impossible("this vocabulary has no token for a run of one character")


def long_text(form: Form, run: str, begin: str = "") -> tuple[str, str, str]:
    """Return the grammar of a call with a 64 KiB argument after ``begin``, the text it describes, and the argument.

    The argument consists of numbered blocks, so that a lost or repeated piece shows; each block is filled with ``run``.
    """
    marks = [f"{number:05d}:" for number in range(LONG_BYTES // BLOCK)]
    fillers = math.ceil((BLOCK - len(marks[0])) / len(run))
    argument = "".join(mark + run * fillers for mark in marks)
    call = {"name": "write_file", "arguments": {"path": "big.txt", "text": argument}}
    whole = f"{begin}All of it goes into one file.\n{call_text(call, form)}"
    head, tail = whole.split(argument)
    rules = (
        f"root ::= {literal(head)} {' '.join(f'{literal(mark)} block' for mark in marks)} {literal(tail)}",
        f"block ::= {' '.join(['run'] * fillers)}",
        f"run ::= {literal(run)}",
    )
    return "\n".join(rules), whole, argument


def long_argument(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Stream a call with a 64 KiB argument; with the vocabulary's longest run it has few tokens."""
    run, token = longest_run(context.client)
    slot_tokens = context.client.props().context
    needed = LONG_BYTES // len(run) + 600
    if slot_tokens and needed > slot_tokens:
        raise Impossible(f"64 KiB are about {needed:,} tokens of this vocabulary, a slot holds {slot_tokens:,}")
    prompt = prompt_for(context.client, "Write the big file.", None)
    grammar, text, argument = long_text(context.form, run, beginning(prompt))
    around = bias_towards(context.client, text.replace(run, ""), BIAS / 2)
    bias = [*(one for one in around if one[0] != token), [token, BIAS]]
    outcome = generate(context, prompt, grammar, _token_limit(text), logit_bias=bias, **ONE_SLOT)
    calls = [call for call in outcome.calls if call.name == "write_file"]
    got = str(calls[0].arguments.get("text")) if len(calls) == 1 else outcome.text
    right = len(outcome.calls) == 1 and got == argument
    yield Check(
        scenario.id,
        scenario.proves,
        "passed" if right else "failed",
        f"{len(got):,} of {len(argument):,} characters in {len(outcome.calls)} call(s) from {outcome.deltas:,} deltas",
        expected=None if right else argument,
        got=None if right else got,
    )


def parallel(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Replay the eight shortest replies one by one and concurrently, and compare what the client gets.

    A reply that another scenario of this run has already replayed alone is not replayed alone again.
    """
    every = [*failures(context.form), *mentions(context.form)]
    replays = sorted(every, key=lambda replay: len(replay.text))[:STREAMS]
    prompts = [prompt_for(context.client, replay.user, None) for replay in replays]

    def run_one(number: int) -> dict[str, Any]:
        return replay_on(context, replays[number], prompts[number]).got()

    alone = [context.alone.get(replay.id) or run_one(number) for number, replay in enumerate(replays)]
    pool = ThreadPoolExecutor(STREAMS)
    try:
        together = list(pool.map(run_one, range(len(replays))))
    finally:
        # Do not wait: after the server's death or Ctrl-C the other streams end by themselves.
        pool.shutdown(wait=False, cancel_futures=True)
    differ = [replay.id for replay, one, all_ in zip(replays, alone, together, strict=True) if one != all_]
    wrong = [replay.id for replay, one in zip(replays, together, strict=True) if one != replay.expected()]
    bad = sorted({*differ, *wrong})
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if bad else "passed",
        f"{len(replays) - len(bad)} of {len(replays)} streams gave the same concurrently as alone",
        expected=_json(dict(zip((replay.id for replay in replays), alone, strict=True))) if bad else None,
        got=_json(dict(zip((replay.id for replay in replays), together, strict=True))) if bad else None,
        data={"different": bad},
    )
