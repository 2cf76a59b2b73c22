"""Scenarios that need nothing but ``/v1/chat/completions``: for vLLM, SGLang, Ollama, LM Studio, a gateway, anything.

Nobody can be made to strand a call through that interface alone, so calls are looked for where clients never look: in
the reasoning and in the content of real replies. Servers that obey a grammar are made to write one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from strata_pack.llama.answers import ChatReply, RequestRefused
from strata_pack.parsing import ToolCall
from strata_pack.report import Check, Table
from strata_pack.smoke.data_files import Replay, failures, read
from strata_pack.smoke.generation import grammar_of, parse_whole
from strata_pack.smoke.history import ways_back
from strata_pack.smoke.scenario import Impossible, Scenario
from strata_pack.smoke.stage import Stage

REPLIES = 8
REPLY_TOKENS = 400
PROBE = "strata-pack probe"

GRAMMAR_FIELDS: Mapping[str, str] = {
    "llama.cpp": "grammar",
    "vLLM": "structured_outputs",
    "vLLM before 0.12": "guided_grammar",
    "SGLang": "ebnf",
}
"""Under which name of the request's body which server takes a grammar."""


def _body(server: str, grammar: str) -> dict[str, Any]:
    field = GRAMMAR_FIELDS[server]
    return {field: {"grammar": grammar} if field == "structured_outputs" else grammar}


def _ask(stage: Stage, user: str, **options: Any) -> ChatReply:
    if stage.model_name:
        options["model"] = stage.model_name
    return stage.client.chat_completion([{"role": "user", "content": user}], **options)


def whole_calls(reply: ChatReply) -> list[ToolCall]:
    """Return the whole calls that stand in the text of a reply, where no client looks for them.

    The reasoning is read as thinking and the content as an answer, so mentions do not count.
    """
    in_reasoning = parse_whole(reply.reasoning, thinking=True).calls
    in_content = parse_whole(reply.content, thinking=False).calls
    return [*in_reasoning, *in_content]


def live_calls(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Ask the model itself for calls and look for whole ones that were not delivered."""
    users = [replay.user for replay in failures("xml")]
    rows: list[tuple[str | int | float, ...]] = []
    lost: list[str] = []
    for number in range(REPLIES):
        reply = _ask(
            stage,
            users[number % len(users)],
            tools=read("tools"),
            max_tokens=REPLY_TOKENS,
            temperature=0.7,
            seed=number,
        )
        stranded = whole_calls(reply)
        rows.append((f"{number + 1}", len(reply.tool_calls), len(stranded), reply.finish_reason))
        if stranded:
            lost.append(f"reasoning:\n{reply.reasoning}\n\ncontent:\n{reply.content}")
    delivered = sum(int(row[1]) for row in rows)
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if lost else "passed" if delivered else "skipped",
        f"{len(lost)} of {REPLIES} replies hold a whole call that was not delivered"
        if lost
        else f"{delivered} calls delivered in {REPLIES} replies, none lost"
        if delivered
        else f"the model made no call in {REPLIES} replies, so none could get lost",
        got="\n\n".join(lost) or None,
        table=Table(("reply", "calls delivered", "calls left in the text", "finish reason"), tuple(rows)),
    )


def obeyed_grammar(stage: Stage) -> str:
    """Return the kind of server whose grammar field this one obeys; ``Impossible`` if it obeys none."""
    for server in GRAMMAR_FIELDS:
        try:
            reply = _ask(stage, "Hello.", max_tokens=64, temperature=0.0, **_body(server, grammar_of(PROBE)))
        except RequestRefused:
            continue
        if PROBE in reply.content + reply.reasoning:
            return server
    raise Impossible(f"the server obeys no grammar (tried {', '.join(GRAMMAR_FIELDS)})")


def forced_calls(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Make the model write each lost reply by grammar and see what the server delivers."""
    server = obeyed_grammar(stage)
    rows = []
    kept: list[str] = []
    for replay in failures(stage.form):
        body = _body(server, grammar_of(replay.text))
        reply = _ask(stage, replay.user, max_tokens=REPLY_TOKENS, temperature=0.0, **body)
        inside = parse_whole(reply.reasoning, thinking=True).calls
        rows.append((replay.id, len(replay.calls), len(reply.tool_calls), len(inside)))
        if inside:
            kept.append(f"{replay.id}:\n{reply.reasoning}")
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if kept else "passed",
        f"{len(kept)} of {len(rows)} replies keep a whole call in the reasoning"
        if kept
        else f"no call of {len(rows)} replies stays in the reasoning (grammar as for {server}; sent without tools, "
        "which such servers do not take beside a grammar)",
        got="\n\n".join(kept) or None,
        table=Table(("reply", "calls in it", "delivered", "left in the reasoning"), tuple(rows)),
    )


def public_parallel(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Ask eight questions one by one and all at once.

    Greedy replies may still differ by rounding when a batch is computed together, so what must be the same is that
    every stream is answered, by its own answer: whole, with a finish reason and without another's text.
    """
    marks = [f"stream-{number}" for number in range(REPLIES)]

    def play(mark: str) -> ChatReply:
        return _ask(stage, f"Repeat this word: {mark}", max_tokens=24, temperature=0.0)

    alone = [play(mark) for mark in marks]
    pool = ThreadPoolExecutor(REPLIES)
    try:
        together = list(pool.map(play, marks))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    unfinished = [mark for mark, reply in zip(marks, together, strict=True) if not reply.finish_reason]
    mixed = [
        mark
        for mark, reply in zip(marks, together, strict=True)
        if any(other != mark and other in reply.content + reply.reasoning for other in marks)
    ]
    same = sum(
        (one.content, one.reasoning) == (all_.content, all_.reasoning)
        for one, all_ in zip(alone, together, strict=True)
    )
    bad = sorted({*unfinished, *mixed})
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if bad else "passed",
        f"{', '.join(bad)}: no whole answer of its own"
        if bad
        else f"every stream got its own answer; {same} of {len(marks)} are word for word those given alone",
    )


def public_history(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Send the lost reply back as naive clients do; the server must answer."""
    reply: Replay = failures(stage.form)[0]
    options: dict[str, Any] = {"model": stage.model_name} if stage.model_name else {}
    for way, message in ways_back(reply).items():
        messages = [{"role": "user", "content": reply.user}, message, {"role": "user", "content": "Did it work?"}]
        try:
            answer = stage.client.chat_completion(messages, read("tools"), max_tokens=16, temperature=0.0, **options)
        except RequestRefused as error:
            yield Check(f"{scenario.id}/{way}", scenario.proves, "failed", " ".join(str(error).split()))
        else:
            detail = f"answered ({answer.prompt_tokens:,} prompt tokens)"
            yield Check(f"{scenario.id}/{way}", scenario.proves, "passed", detail)
