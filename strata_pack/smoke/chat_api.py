"""Runs the scenarios that need only ``/v1/chat/completions``: for vLLM, SGLang, Ollama, LM Studio, a gateway.

That interface alone cannot force a model to strand a call, so these scenarios search the thinking and the content of
real replies, whole and streamed, for calls. On servers that accept a grammar, they force a stranded call. An HTTP
status that is unrelated to calls (401, 429, 500 ...) ends a scenario as an error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from strata_pack.llama.answers import ChatReply, GarbledAnswer, RequestRefused, ServerGone
from strata_pack.report import Check, Table
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import failures, read
from strata_pack.smoke.generation import grammar_of, parse_whole
from strata_pack.smoke.history import ways_back
from strata_pack.smoke.scenario import Impossible, Scenario
from strata_pack.smoke.wire import OF_TEXT, Loss, losses, names_of, read_reply, read_stream, refused_reply

REPLIES = 8
STREAMED = 4
REQUIRED = 5
REPLY_TOKENS = 400
REQUIRED_TOKENS = 200
PROBE = "strata-pack probe"
SHOWN = 120
"""Characters of a fault's evidence in a sentence."""

GRAMMAR_FIELDS: Mapping[str, str] = {
    "llama.cpp": "grammar",
    "vLLM": "structured_outputs",
    "vLLM before 0.12": "guided_grammar",
    "SGLang": "ebnf",
}
"""Maps a server to the key for a grammar in the request's body."""

UNAVAILABLE = (401, 402, 403, 407, 408, 425, 429)
"""HTTP statuses that are unrelated to the request's content, in addition to 3xx and those from 500 on."""

NO_MORE = (401, 402, 403, 407, 429)
"""HTTP statuses after which further requests are useless."""

PICK = [
    {
        "type": "function",
        "function": {
            "name": "pick_queue",
            "description": "Pick the queue to look at.",
            "parameters": {
                "type": "object",
                "properties": {"queue": {"type": "string", "enum": ["main", "nightly"]}},
                "required": ["queue"],
            },
        },
    }
]
"""A tool with a short call for any model: its only argument is one of two words."""


def unavailable(refused: RequestRefused) -> bool:
    """Return whether the status is about the server, not about the request's content."""
    return refused.status in UNAVAILABLE or refused.status >= 500 or 300 <= refused.status < 400


def _body(server: str, grammar: str) -> dict[str, Any]:
    field = GRAMMAR_FIELDS[server]
    return {field: {"grammar": grammar} if field == "structured_outputs" else grammar}


def _named(context: SmokeContext, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "model": context.model_name} if context.model_name else options


def _user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _ask(context: SmokeContext, user: str, **options: Any) -> ChatReply:
    return context.client.chat_completion(_user(user), **_named(context, options))


def _ask_raw(context: SmokeContext, user: str, tools: Sequence[Mapping[str, Any]], **options: Any) -> Mapping[str, Any]:
    return context.client.chat_answer(_user(user), tools, **_named(context, options))


def _judged(raw: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> tuple[int, str, list[Loss]]:
    """Return the number of calls that a whole answer delivers, its finish reason, and its faults."""
    reply = read_reply(raw)
    if reply is None:
        return 0, "", [refused_reply(raw)]
    return len(reply.calls), str(reply.finish_reason), list(losses(reply, names_of(tools)))


def _data(found: Sequence[Loss]) -> dict[str, Any]:
    return {"losses": [asdict(loss) for loss in found]}


def _seen(found: Sequence[Loss]) -> str | None:
    return "\n\n".join(f"{loss.kind}:\n{loss.seen}" for loss in found) or None


def _counted(found: Sequence[Sequence[Loss]], what: str) -> str:
    """Return a sentence with the number of replies for each kind of loss, and the first one's evidence if short."""
    kinds = Counter(kind for losses_ in found for kind in {loss.kind for loss in losses_})
    first = {loss.kind: loss.seen for losses_ in reversed(found) for loss in reversed(losses_)}
    return "; ".join(
        f"{count} of {len(found)} {what}: {kind}" + ("" if kind in OF_TEXT else f" ({first[kind][:SHOWN]})")
        for kind, count in kinds.most_common()
    )


def live_calls(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Ask the model for calls; check the delivered ones, and search for calls that were not delivered."""
    users = [replay.user for replay in failures("xml")]
    tools = read("tools")
    rows: list[tuple[str | int | float, ...]] = []
    found: list[list[Loss]] = []
    for number in range(REPLIES):
        user = users[number % len(users)]
        raw = _ask_raw(context, user, tools, max_tokens=REPLY_TOKENS, temperature=0.7, seed=number)
        delivered, reason, wrong = _judged(raw, tools)
        found.append(wrong)
        rows.append((f"{number + 1}", delivered, sum("left in" in loss.kind for loss in wrong), reason))
    left = sum(any("left in" in loss.kind for loss in wrong) for wrong in found)
    every = [loss for wrong in found for loss in wrong]
    calls = sum(int(row[1]) for row in rows)
    whole = f"{left} of {REPLIES} replies contain a complete call that was not delivered; " if left else ""
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if every else "passed" if calls else "skipped",
        f"{whole}{_counted(found, 'replies')}"
        if every
        else f"{calls} calls delivered in {REPLIES} replies, none lost"
        if calls
        else f"the model made no call in {REPLIES} replies, so none could get lost",
        got=_seen(every),
        table=Table(("reply", "calls delivered", "calls left in the text", "finish reason"), tuple(rows)),
        data=_data(every),
    )


def streams(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Ask the same with streamed replies: each stream must end properly and deliver complete calls."""
    users = [replay.user for replay in failures("xml")]
    tools = read("tools")
    rows: list[tuple[str | int | float, ...]] = []
    found: list[list[Loss]] = []
    for number in range(STREAMED):
        options = {"max_tokens": REPLY_TOKENS, "temperature": 0.7, "seed": number}
        try:
            events = context.client.stream_chat(_user(users[number % len(users)]), tools, **_named(context, options))
            reply, wrong = read_stream(events)
        except (ServerGone, GarbledAnswer) as error:
            found.append([Loss("broken streams", " ".join(str(error).split()))])
            rows.append((f"{number + 1}", 0, "broken off"))
            continue
        if not wrong:
            wrong = list(losses(reply, names_of(tools)))
        found.append(wrong)
        rows.append((f"{number + 1}", len(reply.calls), str(reply.finish_reason)))
    every = [loss for wrong in found for loss in wrong]
    calls = sum(int(row[1]) for row in rows)
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if every else "passed",
        _counted(found, "streams") if every else f"{STREAMED} streams ended properly, with {calls} calls",
        got=_seen(every),
        table=Table(("stream", "calls delivered", "finish reason"), tuple(rows)),
        data=_data(every),
    )


def required_calls(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Require a call of one short tool; a server that accepts the requirement must deliver the call."""
    found: list[list[Loss]] = []
    delivered = 0
    for number in range(REQUIRED):
        options = {"max_tokens": REQUIRED_TOKENS, "temperature": 0.0, "seed": number, "tool_choice": "required"}
        try:
            raw = _ask_raw(context, "Which queue is the one for the night? Pick it.", PICK, **options)
        except RequestRefused as refused:
            if unavailable(refused):
                raise
            raise Impossible(f"the server does not accept a required tool call ({refused.message[:120]})") from refused
        calls, reason, wrong = _judged(raw, PICK)
        if not calls and reason != "length":
            wrong.append(Loss("forced calls not delivered", "a call was required, and the reply has none"))
        delivered += bool(calls)
        found.append(wrong)
    every = [loss for wrong in found for loss in wrong]
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if every else "passed",
        f"{delivered} of {REQUIRED} required calls delivered" + (f"; {_counted(found, 'replies')}" if every else ""),
        got=_seen(every),
        data=_data(every),
    )


def obeyed_grammar(context: SmokeContext) -> str:
    """Return the kind of server whose grammar field this one applies; ``Impossible`` if it applies none."""
    for server in GRAMMAR_FIELDS:
        try:
            reply = _ask(context, "Hello.", max_tokens=64, temperature=0.0, **_body(server, grammar_of(PROBE)))
        except RequestRefused as refused:
            if unavailable(refused):
                raise
            continue
        if PROBE in reply.content + reply.reasoning:
            return server
    raise Impossible(f"the server applies no grammar (tried {', '.join(GRAMMAR_FIELDS)})")


def forced_calls(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Force the model to write each lost reply by a grammar, and check what the server delivers.

    A server that accepts a grammar together with tools must deliver every call. Others are asked without tools; then a
    call may be in the content, but must not stay in the thinking or vanish.
    """
    server = obeyed_grammar(context)
    with_tools = _takes_both(context, server)
    tools = read("tools") if with_tools else None
    rows: list[tuple[str | int | float, ...]] = []
    found: list[list[Loss]] = []
    for replay in failures(context.form):
        options = {"max_tokens": REPLY_TOKENS, "temperature": 0.0, **_body(server, grammar_of(replay.text))}
        raw = context.client.chat_answer(_user(replay.user), tools, **_named(context, options))
        reply = read_reply(raw)
        if reply is None:
            found.append([refused_reply(raw)])
            continue
        inside = len(parse_whole(reply.thinking, thinking=True).calls)
        beside = len(parse_whole(reply.content, thinking=False).calls)
        wanted, got = len(replay.calls), len(reply.calls)
        rows.append((replay.id, wanted, got, inside, beside))
        wrong = [Loss("calls left in the thinking", reply.thinking)] if inside else []
        missing = wanted - got - (0 if with_tools else inside + beside)
        if missing > 0:
            said = f"{replay.id}: {got} of {wanted} calls delivered; {reply.thinking}{reply.content}"
            wrong.append(Loss("forced calls not delivered", said))
        elif got:
            delivered = [_call_of(call) for call in reply.calls]
            if delivered != [(call["name"], call["arguments"]) for call in replay.calls]:
                wrong.append(Loss("forced calls not delivered", f"{replay.id}: delivered as {delivered}"))
        found.append(wrong)
    every = [loss for wrong in found for loss in wrong]
    wanted, got = (sum(int(row[place]) for row in rows) for place in (1, 2))
    with_or_without = (
        "together with tools" if with_tools else "without tools, which it does not accept together with a grammar"
    )
    how = f"grammar as for {server}, {with_or_without}"
    kept = sum(any(loss.kind == "calls left in the thinking" for loss in wrong) for wrong in found)
    words = [f"{kept} of {len(found)} replies keep a complete call in the reasoning"] if kept else []
    words += [f"{got} of {wanted} forced calls delivered"] if with_tools or every else []
    words += [] if every else [f"no call of {len(rows)} replies stays in the reasoning"]
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if every else "passed",
        f"{'; '.join(words)} ({how})",
        got=_seen(every),
        table=Table(("reply", "calls in it", "delivered", "left in the reasoning", "in the content"), tuple(rows)),
        data=_data(every),
    )


def _call_of(call: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return name and decoded arguments of a delivered call, undecoded if they are no JSON."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    try:
        return function.get("name"), json.loads(function.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError):
        return function.get("name"), function.get("arguments")


def _takes_both(context: SmokeContext, server: str) -> bool:
    """Return whether the server accepts a grammar and tools in one request."""
    options = {"max_tokens": 64, "temperature": 0.0, **_body(server, grammar_of(PROBE))}
    try:
        context.client.chat_answer(_user("Hello."), read("tools"), **_named(context, options))
    except RequestRefused as refused:
        if unavailable(refused):
            raise
        return False
    return True


def public_parallel(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Ask eight questions one by one and concurrently.

    Greedy replies may differ by rounding if they are computed in a batch, so the check is that every stream gets its
    own answer: complete, with a finish reason and without another stream's text.
    """
    marks = [f"stream-{number}" for number in range(REPLIES)]

    def run_one(mark: str) -> ChatReply:
        return _ask(context, f"Repeat this word: {mark}", max_tokens=24, temperature=0.0)

    alone = [run_one(mark) for mark in marks]
    pool = ThreadPoolExecutor(REPLIES)
    try:
        together = list(pool.map(run_one, marks))
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
        f"{', '.join(bad)}: no complete answer of its own"
        if bad
        else f"every stream got its own answer; {same} of {len(marks)} are word for word those given alone",
        data=_data([Loss("mixed answers", mark) for mark in bad]),
    )


def public_history(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Send the lost reply back as simple clients do; the server must answer."""
    reply = failures(context.form)[0]
    for way, message in ways_back(reply).items():
        messages = [*_user(reply.user), message, *_user("Did it work?")]
        options = _named(context, {"max_tokens": 16, "temperature": 0.0})
        try:
            answer = context.client.chat_completion(messages, read("tools"), **options)
        except RequestRefused as refused:
            if unavailable(refused):
                raise
            said = " ".join(str(refused).split())
            data = _data([Loss("refused histories", said)])
            yield Check(f"{scenario.id}/{way}", scenario.proves, "failed", said, data=data)
        else:
            detail = f"answered ({answer.prompt_tokens:,} prompt tokens)"
            yield Check(f"{scenario.id}/{way}", scenario.proves, "passed", detail)


def loss_table(checks: Sequence[Check]) -> Check | None:
    """Return the summary check of a run: what this server loses, over all scenarios; None if nothing was run."""
    rows = Counter((loss["kind"], check.id) for check in checks for loss in check.data.get("losses", ()))
    if not any(check.status in ("passed", "failed") for check in checks):
        return None
    kinds = sorted({kind for kind, _ in rows})
    return Check(
        "losses",
        "what this server loses, over all scenarios",
        "failed" if rows else "passed",
        f"faults of this server: {', '.join(kinds)}" if rows else "no fault was found",
        table=Table(
            ("what this server loses", "times", "seen in"),
            tuple((kind, count, where) for (kind, where), count in sorted(rows.items())),
        )
        if rows
        else None,
    )
