"""More than 40 scripted servers by URL: good ones pass, each bad one fails for what it does, said again at the end."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from strata_pack.smoke.data_files import call_text, failures, read
from strata_pack.smoke.run import SmokeOptions, run_smoke_url
from tests.smoke.scripted import CUT, Script, call, delivered, event, events_of, serve, text

TAGGED = failures("xml")[0].text
JSON_CALL = json.dumps({"name": "list_jobs", "arguments": {"queue": "main"}})
MENTION = "A call opens with `<tool_call>` and then names it.\n"


def forced_delivery(wanted: str) -> dict[str, Any]:
    """What a server that parses well makes of a reply that was forced by a grammar."""
    replay = next((one for one in failures("xml") if one.text == wanted), None)
    if replay is None:
        return text(wanted)
    return delivered(*(call(one["name"], json.dumps(one["arguments"])) for one in replay.calls))


def _emptied(message: dict[str, Any]) -> dict[str, Any]:
    for entry in message.get("tool_calls", ()):
        entry["function"]["arguments"] = "{}"
    return message


def _raw_letters(data: bytes) -> bytes:
    """The same JSON with its letters as they are, not escaped."""
    return re.sub(rb"\\\\?u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)).encode(), data)


GOOD = {
    "delivers": Script(),
    "delivers with reasoning_content": Script(delivered(reasoning_content="I look.")),
    "delivers with reasoning": Script(delivered(reasoning="I look.")),
    "delivers with thinking": Script(delivered(thinking="I look.")),
    "delivers two calls": Script(delivered(call(), {**call("run_code", '{"code": "1"}'), "id": "call_2"})),
    "delivers with text": Script(delivered(content="I look.")),
    "delivers with parts": Script(delivered(content=[{"type": "text", "text": "I look."}])),
    "takes a call without arguments": Script(delivered(call("list_jobs", ""))),
    "mentions in the thinking": Script(delivered(reasoning_content=MENTION)),
    "mentions in a fence of the answer": Script(delivered(content=f"Like this:\n```json\n{JSON_CALL}\n```\n")),
    "is cut at the token limit": Script(delivered(call("list_jobs", '{"queue": "ma')), finish="length"),
    "lists no models": Script(models=404),
    "takes no required call": Script(status=lambda body: 400 * (body.get("tool_choice") == "required")),
    "obeys a grammar beside tools": Script(grammar=forced_delivery),
    "obeys a grammar without tools": Script(grammar=text, with_tools=False),
    "sends comments in its streams": Script(stream=lambda m, f: [": wait", *events_of(m, f)]),
    "splits letters between its packets": Script(
        delivered(call(arguments='{"queue": "Größe 日本"}')), stream_bytes=_raw_letters, stream_piece=1
    ),
    "ends lines with CR LF": Script(stream_bytes=lambda data: data.replace(b"\n", b"\r\n")),
    "writes no blank after data": Script(stream_bytes=lambda data: data.replace(b"data: ", b"data:")),
    "names its events": Script(stream_bytes=lambda data: b"event: message\n" + data),
    "sends a charset": Script(stream_type="text/event-stream; charset=utf-8"),
    "sends null for what is missing": Script(
        stream=lambda _m, _f: [
            event({"role": "assistant", "content": None, "tool_calls": None}),
            event({"content": None, "tool_calls": [{**_FIRST, "id": "c", "type": "function"}]}),
            event({"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": ""}}]}),
            event({"content": None}, "tool_calls"),
        ]
    ),
    "repeats the id in every piece": Script(
        stream=lambda _m, _f: [
            event({"tool_calls": [{**_FIRST, "id": "c"}]}),
            event({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "", "arguments": " "}}]}),
            event({}, "tool_calls"),
        ]
    ),
    "sends the reason with its last piece": Script(
        stream=lambda _m, _f: [event({"tool_calls": [{**_FIRST, "id": "c"}]}, "tool_calls")]
    ),
    "counts in every event": Script(
        stream=lambda m, f: [{**one, "usage": {"prompt_tokens": 7}} for one in events_of(m, f)]
    ),
    "does not count": Script(usage=None),
    "has an empty list of calls": Script(text("Hello.", tool_calls=[])),
    "thinks a little and says it again": Script(text("Yes.", reasoning_content="Yes.")),
}


_FIRST = {"index": 0, "function": {"name": "list_jobs", "arguments": '{"queue": "main"}'}}
_THOUGHT = "I look at the main queue first."


@dataclass(frozen=True)
class Bad:
    """A server with one fault: the scenario that finds it, and how the kind of loss is called."""

    script: Script
    scenario: str
    kind: str


def _live(message: dict[str, Any], kind: str, finish: str | None = None) -> Bad:
    return Bad(Script(message, finish), "live-calls", kind)


def _streamed(change: Any, kind: str = "broken streams") -> Bad:
    return Bad(Script(stream=change), "streams", kind)


def _forced(grammar: Any, kind: str, **how: Any) -> Bad:
    return Bad(Script(grammar=grammar, **how), "forced-calls", kind)


def _only_probe(wanted: str, lost: dict[str, Any]) -> dict[str, Any]:
    return text(wanted) if "probe" in wanted else lost


def _without(key: str) -> Any:
    def change(message: dict[str, Any], finish: str) -> list[Any]:
        events = events_of(message, finish)
        for sent in events:
            for piece in (sent["choices"] or [{"delta": {}}])[0]["delta"].get("tool_calls", ()):
                (piece["function"] if key == "name" else piece).pop(key, None)
        return events

    return change


BAD = {
    "truncates arguments": _live(delivered(call("list_jobs", '{"queue": "ma')), "truncated arguments"),
    "truncates arguments and says stop": _live(delivered(call("list_jobs", "{")), "truncated arguments", "stop"),
    "sends arguments as an object": _live(delivered(call("list_jobs", {"q": 1})), "arguments that are no JSON text"),
    "sends arguments as a list": _live(delivered(call("list_jobs", "[1]")), "arguments that are no JSON text"),
    "sends no arguments": _live(delivered(call("list_jobs", None)), "arguments that are no JSON text"),
    "calls an undeclared tool": _live(delivered(call("format_disk", "{}")), "undeclared tools"),
    "says stop with calls": _live(delivered(), "wrong finish reasons", "stop"),
    "says tool_calls without calls": _live(text("Hello."), "wrong finish reasons", "tool_calls"),
    "says no finish reason": _live(text("Hello."), "malformed replies", "none"),
    "sends a call without a function": _live(delivered({"id": "1"}), "malformed replies"),
    "leaves a call in reasoning_content": _live(text("", reasoning_content=TAGGED), "calls left in the thinking"),
    "leaves a call in reasoning": _live(text("", reasoning=TAGGED), "calls left in the thinking"),
    "leaves a call in thinking": _live(text("", thinking=TAGGED), "calls left in the thinking"),
    "leaves a call in reasoning_details": _live(
        text("", reasoning_details=[{"type": "reasoning.text", "text": TAGGED}]), "calls left in the thinking"
    ),
    "leaves a call in the content": _live(text(failures("xml")[1].text), "calls left in the content"),
    "leaves a JSON call in the content": _live(text(failures("json")[1].text), "calls left in the content"),
    "leaves a bare JSON call": _live(text(JSON_CALL), "calls left in the content"),
    "leaves a bare JSON call after prose": _live(text(f"I look.\n{JSON_CALL}\n"), "calls left in the content"),
    "leaves a bare list of calls": _live(text(f"[{JSON_CALL}]"), "calls left in the content"),
    "leaves a bare XML call": _live(
        text(call_text(read("histories")[0]["calls"][0], "xml").split("\n", 1)[1]), "calls left in the content"
    ),
    "answers without a message": Bad(Script(raw=b'{"choices": []}'), "live-calls", "malformed replies"),
    "breaks its streams off": _streamed(lambda m, f: [*events_of(m, f)[:3], CUT]),
    "ends its streams without a reason": _streamed(lambda m, f: events_of(m, f)[:-2]),
    "sends garbage in its streams": _streamed(lambda m, f: [*events_of(m, f)[:2], "data: {half"]),
    "does not stream": _streamed(lambda m, f: [json.dumps({"choices": [{"message": m, "finish_reason": f}]})]),
    "streams pieces without an index": _streamed(_without("index")),
    "streams a call without a name": _streamed(_without("name")),
    "streams events without choices": _streamed(lambda m, f: [{"object": "ping"}, *events_of(m, f)]),
    "streams half the arguments": _streamed(
        lambda m, f: [e for e in events_of(m, f) if ' "main"}' not in json.dumps(e).replace("\\", "")],
        "truncated arguments",
    ),
    "streams a call as text": _streamed(
        lambda _m, _f: events_of(text(failures("xml")[1].text), "stop"), "calls left in the content"
    ),
    "says stop in streams with calls": _streamed(lambda m, _f: events_of(m, "stop"), "wrong finish reasons"),
    "streams without an end mark": Bad(Script(stream_end=b""), "streams", "broken streams"),
    "streams as JSON": Bad(Script(stream_type="application/json"), "streams", "broken streams"),
    "streams a call after its reason": _streamed(
        lambda _m, f: [event({}, f), event({"tool_calls": [{**_FIRST, "id": "c"}]})]
    ),
    "streams two calls with one index": _streamed(
        lambda _m, f: [*(event({"tool_calls": [{**_FIRST, "id": id_}]}) for id_ in "cd"), event({}, f)]
    ),
    "counts calls from 1": _streamed(
        lambda _m, f: [event({"tool_calls": [{**_FIRST, "index": 1, "id": "c"}]}), event({}, f)]
    ),
    "streams a name in each piece": _streamed(
        lambda _m, f: [
            event({"tool_calls": [{**_FIRST, "id": "c"}]}),
            event({"tool_calls": [{"index": 0, "function": {"name": "list_jobs", "arguments": ""}}]}),
            event({}, f),
        ]
    ),
    "streams arguments twice": _streamed(
        lambda _m, f: [
            event({"tool_calls": [{**_FIRST, "id": "c"}]}),
            event({"tool_calls": [{"index": 0, "function": {"arguments": '{"queue": "main"}'}}]}),
            event({}, f),
        ],
        "arguments that are no JSON text",
    ),
    "streams calls without an id": _streamed(_without("id"), "malformed replies"),
    "sends calls without an id": _live(delivered({**call(), "id": None}), "malformed replies"),
    "sends one id for two calls": _live(delivered(call(), call("run_code", "{}")), "malformed replies"),
    "sends no role": _live(delivered(role=None), "malformed replies"),
    "sends an error with the status 200": Bad(
        Script(raw=b'{"error": {"message": "overloaded"}}'), "live-calls", "malformed replies"
    ),
    "repeats its thinking in the content": _live(
        text(f"{_THOUGHT}\nDone.", reasoning_content=_THOUGHT), "thinking repeated in the content"
    ),
    "leaves the end of the turn in the content": _live(text("Done.<|im_end|>"), "control tokens left in the content"),
    "counts no token": Bad(Script(usage={"prompt_tokens": 0}), "live-calls", "wrong counts of tokens"),
    "delivers forced calls without arguments": _forced(
        lambda wanted: _emptied(forced_delivery(wanted)), "forced calls not delivered"
    ),
    "ignores a required call": Bad(Script(required=False), "required-calls", "forced calls not delivered"),
    "keeps forced calls in the reasoning": _forced(
        lambda wanted: _only_probe(wanted, text("", reasoning_content=wanted)), "calls left in the thinking"
    ),
    "delivers no forced call": _forced(lambda wanted: _only_probe(wanted, text("Done.")), "forced calls not delivered"),
    "leaves forced calls as text beside tools": _forced(text, "forced calls not delivered"),
    "swallows forced calls without tools": _forced(
        lambda wanted: _only_probe(wanted, text("")), "forced calls not delivered", with_tools=False
    ),
}


def _run(script: Script, *only: str):
    with serve(script) as (url, _):
        return run_smoke_url(url, options=SmokeOptions(only=only, start_seconds=5.0))


def test_there_are_more_than_40_servers():
    assert len(GOOD) + len(BAD) >= 40


@pytest.mark.parametrize("name", GOOD)
def test_a_good_server_passes(name):
    report = _run(GOOD[name])
    wrong = [(check.id, check.detail) for check in report.checks if check.status in ("failed", "error")]
    assert (wrong, report.exit_code) == ([], 0)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_server_fails_for_what_it_does(name):
    bad = BAD[name]
    report = _run(bad.script, bad.scenario)
    check, losses = report.checks
    assert (check.status, losses.id, losses.status, report.exit_code) == ("failed", "losses", "failed", 1)
    assert bad.kind in {row[0] for row in losses.table.rows}
    assert {row[2] for row in losses.table.rows} == {bad.scenario}


def test_no_forced_call_of_five_is_reported_in_figures():
    check = _run(BAD["delivers no forced call"].script, "forced-calls").checks[0]
    assert check.detail.startswith("0 of 5 forced calls delivered")


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
@pytest.mark.parametrize("models", [True, False], ids=["at once", "in the chat"])
def test_a_status_that_says_nothing_about_calls_is_one_verdict(status, models):
    script = Script(models=status) if models else Script(status=lambda _body: status)
    report = _run(script)
    assert report.exit_code == 3
    assert {check.status for check in report.checks} <= {"error", "skipped"}
    told = {check.detail for check in report.checks if check.status == "error"}
    assert all(f"HTTP {status}: " in detail for detail in told)


@pytest.mark.parametrize("status", [301, 307, 308])
def test_a_redirection_names_its_target(status):
    script = Script(models=status, headers={"Location": "https://elsewhere.example/v1/models"})
    report = _run(script)
    assert report.exit_code == 3
    assert "it redirects to https://elsewhere.example/v1/models; use that URL" in report.checks[0].detail


def test_a_server_that_mixes_its_streams_fails():
    report = _run(replace(Script(), plain=lambda _user: "stream-3"), "public-parallel")
    assert [(check.id, check.status) for check in report.checks] == [
        *(("public-parallel", "failed"), ("losses", "failed"))
    ]


def test_a_server_that_refuses_histories_fails():
    script = Script(status=lambda body: 422 * (len(body["messages"]) > 1))
    assert {check.status for check in _run(script, "public-history").checks} == {"failed"}
