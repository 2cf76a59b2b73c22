"""Plays generation: a grammar makes the model write a known text, streamed, and our parser reads it.

A grammar makes any model, also a random one, produce exactly the text that is wanted: so the failing outputs of real
models are played again on a real server, delta by delta as its detokenizer cuts them.
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
from strata_pack.report import Check, Table
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import Form, ReplayCase, call_text, failures, mentions, read
from strata_pack.smoke.manner import beginning
from strata_pack.smoke.scenario import Impossible, Scenario

STREAMS = 8
LONG_BYTES = 64 << 10
BLOCK = 8 << 10
RUN_CHARS = "#-= "
RUN_SIZES = (128, 80, 64, 32, 16, 8, 4, 2, 1)
BIAS = 100.0
"""Log odds that make one token certain wherever the grammar allows it."""

ONE_SLOT: Mapping[str, Any] = {"id_slot": 0}
"""One slot for all that is played alone: what other slots keep makes every token slower where they share the cache."""

CALL_FORMATS = {"xml": "auto", "json": "json"}
"""The parser's option for a family's form: outside the JSON families only ``<function=`` ends the thinking."""


def literal(text: str) -> str:
    """Return ``text`` as a GBNF literal (its escapes are those of JSON)."""
    return json.dumps(text, ensure_ascii=False)


def grammar_of(text: str) -> str:
    """Return the grammar of the one text ``text``."""
    return f"root ::= {literal(text)}"


@dataclass(frozen=True)
class GeneratedReply:
    """What came out of one streamed generation: the raw text, how it was cut, and what the parser made of it."""

    text: str
    deltas: int
    reasoning: str
    content: str
    calls: tuple[ToolCall, ...]

    def got(self) -> dict[str, Any]:
        """Return what a client gets, as JSON."""
        calls = [{"name": call.name, "arguments": call.arguments} for call in self.calls]
        return {"reasoning": self.reasoning, "content": self.content, "calls": calls}


def prompt_for(client: LlamaClient, user: str, tools: Sequence[Any] | None) -> str:
    """Return the prompt that asks ``user`` and wants thinking, rendered by the server.

    Without ``tools`` it is as short as can be.
    """
    variables: dict[str, Any] = {"enable_thinking": True} | ({} if tools else {"reasoning_effort": "medium"})
    return client.apply_template([{"role": "user", "content": user}], tools, chat_template_kwargs=variables)


def generate(stage: SmokeContext, prompt: str, grammar: str, limit: int, **options: Any) -> GeneratedReply:
    """Generate after ``prompt`` under ``grammar`` (at most ``limit`` tokens) and parse the stream as it comes."""
    parser = OutputParser.for_prompt(prompt, tools=read("tools"), call_format=CALL_FORMATS[stage.form])
    events: list[Event] = []
    pieces: list[str] = []
    finish = "stop"
    for chunk in stage.client.stream_completion(
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
    """Parse a whole text that is there already: reasoning if ``thinking``, else an answer."""
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
    """More tokens than any vocabulary needs for ``text``: one a byte, and the end."""
    return len(text.encode("utf-8")) + 8


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)


def replay_on(stage: SmokeContext, replay: ReplayCase, prompt: str, **options: Any) -> GeneratedReply:
    """Make the model write ``replay`` after ``prompt``, opening the thinking where the prompt does not.

    The text's own tokens are favoured, so that it comes in the pieces in which a model writes it, and the server seldom
    has to hold its whole vocabulary against the grammar.
    """
    text = beginning(prompt) + replay.text
    favoured = favour(stage.client, text)
    return generate(stage, prompt, grammar_of(text), _token_limit(text), logit_bias=favoured, **options)


def favour(client: LlamaClient, text: str, bias: float = BIAS) -> list[list[float]]:
    """Return the ``logit_bias`` that favours the tokens in which ``text`` is written."""
    return [[token, bias] for token in sorted(set(client.tokenize(text)))]


def _compare(id_: str, scenario: Scenario, replay: ReplayCase, prompt: str, outcome: GeneratedReply) -> Check:
    """One replay: first that the server wrote the text at all, then that the parser read it right."""
    text = beginning(prompt) + replay.text
    if outcome.text != text:
        return Check(
            id_,
            scenario.proves,
            "failed",
            "the server did not write what its grammar says",
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


def stranded_call(stage: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Replay the four ways in which calls were lost, on our parser and on the server's own."""
    rows = []
    own: dict[str, Any] = {}
    for replay in failures(stage.form):
        prompt = prompt_for(stage.client, replay.user, read("tools"))
        outcome = replay_on(stage, replay, prompt, **ONE_SLOT)
        stage.alone[replay.id] = outcome.got()
        yield _compare(f"{scenario.id}/{replay.id}", scenario, replay, prompt, outcome)
        server = own[replay.id] = server_parse(stage.client, replay)
        rows.append((replay.id, len(replay.calls), len(outcome.calls), str(server.get("calls", server["verdict"]))))
    yield _recorded(scenario, own, rows)


def _recorded(scenario: Scenario, own: Mapping[str, Any], rows: Sequence[tuple[str | int | float, ...]] = ()) -> Check:
    """What the server's own parser makes of the same replies: recorded, whatever it does."""
    right = sum(entry["verdict"] == "right" for entry in own.values())
    bogus = sum(entry.get("calls", 0) for entry in own.values())
    wrong = ", ".join(f"{id_} {entry['verdict']}" for id_, entry in own.items() if entry["verdict"] != "right")
    return Check(
        f"{scenario.id}/server-parser",
        "recorded for comparison: what the server's own /v1/chat/completions parser makes of the same replies",
        "passed",
        f"recorded, not judged: {right} of {len(own)} right, {bogus} call(s){f'; {wrong}' if wrong else ''}",
        table=Table(("reply", "calls in it", "our parser", "server's parser"), tuple(rows)) if rows else None,
        data={"replies": dict(own)},
    )


def server_parse(client: LlamaClient, replay: ReplayCase) -> dict[str, Any]:
    """Let the server's own chat parser read the reply: given as the beginning of its answer, and ended at once.

    The server takes no grammar together with tools, so it is given the reply to continue, and the end-of-turn token
    is made certain.
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
    """Name what the server's parser did wrong: calls lost, calls made of a mention, or the text cut elsewhere."""
    if len(calls) != len(replay.calls):
        return "lost" if len(calls) < len(replay.calls) else "bogus call"
    return "different"


def _same_text(reply: ChatReply, replay: ReplayCase) -> bool:
    return (reply.reasoning.strip(), reply.content.strip()) == (replay.reasoning.strip(), replay.content.strip())


def mentioned(stage: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Replay the ten controls: no call may come of them, and no text may get lost."""
    own: dict[str, Any] = {}
    for replay in mentions(stage.form):
        prompt = prompt_for(stage.client, replay.user, read("tools"))
        outcome = replay_on(stage, replay, prompt, **ONE_SLOT)
        stage.alone[replay.id] = outcome.got()
        yield _compare(f"{scenario.id}/{replay.id}", scenario, replay, prompt, outcome)
        own[replay.id] = server_parse(stage.client, replay)
    yield _recorded(scenario, own)


def longest_run(client: LlamaClient) -> tuple[str, int]:
    """Return the longest run of one character that is a single token, and the token."""
    for size in RUN_SIZES:
        for char in RUN_CHARS:
            tokens = client.tokenize(char * size, parse_special=False)
            if len(tokens) == 1:
                return char * size, tokens[0]
    raise Impossible("this vocabulary has no token for a run of one character")


def long_text(form: Form, run: str, begin: str = "") -> tuple[str, str, str]:
    """Return the grammar of a call with a 64 KiB argument after ``begin``, the text it describes, and the argument.

    The argument is made of numbered blocks, so that a lost or repeated piece shows; each block is filled with ``run``.
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


def long_argument(stage: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Stream a call with a 64 KiB argument; the vocabulary's longest run keeps it short in tokens."""
    run, token = longest_run(stage.client)
    context = stage.client.props().context
    needed = LONG_BYTES // len(run) + 600
    if context and needed > context:
        raise Impossible(f"64 KiB are about {needed:,} tokens of this vocabulary, a slot holds {context:,}")
    prompt = prompt_for(stage.client, "Write the big file.", None)
    grammar, text, argument = long_text(stage.form, run, beginning(prompt))
    around = favour(stage.client, text.replace(run, ""), BIAS / 2)
    favoured = [*(one for one in around if one[0] != token), [token, BIAS]]
    outcome = generate(stage, prompt, grammar, _token_limit(text), logit_bias=favoured, **ONE_SLOT)
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


def parallel(stage: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Play eight different replies (the shortest) one by one and all at once, and compare what the client gets.

    A reply that another scenario of this run has played alone already is not played alone again.
    """
    every = [*failures(stage.form), *mentions(stage.form)]
    replays = sorted(every, key=lambda replay: len(replay.text))[:STREAMS]
    prompts = [prompt_for(stage.client, replay.user, None) for replay in replays]

    def play(number: int) -> dict[str, Any]:
        return replay_on(stage, replays[number], prompts[number]).got()

    alone = [stage.alone.get(replay.id) or play(number) for number, replay in enumerate(replays)]
    pool = ThreadPoolExecutor(STREAMS)
    try:
        together = list(pool.map(play, range(len(replays))))
    finally:
        # Not to wait: when the server died or Ctrl-C came, the other streams end by themselves.
        pool.shutdown(wait=False, cancel_futures=True)
    differ = [replay.id for replay, one, all_ in zip(replays, alone, together, strict=True) if one != all_]
    wrong = [replay.id for replay, one in zip(replays, together, strict=True) if one != replay.expected()]
    bad = sorted({*differ, *wrong})
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if bad else "passed",
        f"{len(replays) - len(bad)} of {len(replays)} streams gave at once what they gave alone",
        expected=_json(dict(zip((replay.id for replay in replays), alone, strict=True))) if bad else None,
        got=_json(dict(zip((replay.id for replay in replays), together, strict=True))) if bad else None,
        data={"different": bad},
    )
