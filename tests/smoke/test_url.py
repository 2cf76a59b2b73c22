"""``smoke --url``: the public interface, on the real llama.cpp server and on servers that lose calls."""

from __future__ import annotations

import json

import pytest

from strata_pack.llama.answers import ChatReply
from strata_pack.llama.server import LlamaServer
from strata_pack.smoke.data_files import failures, mentions
from strata_pack.smoke.public import whole_calls
from strata_pack.smoke.run import SmokeOptions, run_smoke_url
from tests.llama.http_fault import faulty_server

pytestmark = pytest.mark.xdist_group("tiny-smoke")


@pytest.fixture(scope="module")
def report(tiny):
    with LlamaServer.start(tiny, context=4096, parallel=8, shared=True, warmup=False, threads=1) as server:
        yield run_smoke_url(f"{server.url}/v1")


def test_the_real_server_s_public_interface_passes(report):
    assert report.ok, [(check.id, check.detail) for check in report.checks if check.status != "passed"]


def test_every_public_scenario_was_played(report):
    assert {check.id.split("/")[0] for check in report.checks} == {
        *("live-calls", "forced-calls", "public-parallel", "public-history")
    }


def test_a_random_model_makes_no_call_and_the_report_says_so(report):
    (check,) = [one for one in report.checks if one.id == "live-calls"]
    assert (check.status, check.detail) == ("skipped", "the model made no call in 8 replies, so none could get lost")


def test_the_grammar_of_llama_cpp_is_recognised(report):
    (check,) = [one for one in report.checks if one.id == "forced-calls"]
    assert "llama.cpp" in check.detail


def _chat(message):
    """A server whose every chat reply is ``message``, as an OpenAI-compatible one would wrap it."""

    def answer(handler, _number):
        reply = {
            "choices": [{"message": message, "finish_reason": "stop"}],
            "data": [{"id": "some-model"}],
            "usage": {"prompt_tokens": 7},
        }
        text = json.dumps(reply).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    return answer


def _live(message):
    with faulty_server(_chat(message)) as (url, _):
        report = run_smoke_url(url, options=SmokeOptions(only=("live-calls",)))
    return report.checks[0], report


@pytest.mark.parametrize("replay", failures("xml"), ids=lambda replay: replay.id)
@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_a_server_that_loses_a_call_in_the_reasoning_fails(replay, key):
    check, report = _live({"role": "assistant", "content": "", key: replay.text})
    assert (check.status, report.exit_code) == ("failed", 1)
    assert "8 of 8 replies hold a whole call" in check.detail
    assert replay.text in check.got


def test_a_server_that_leaves_a_call_in_the_content_fails():
    check, _ = _live({"role": "assistant", "content": failures("xml")[1].text})
    assert check.status == "failed"


@pytest.mark.parametrize("replay", mentions("xml"), ids=lambda replay: replay.id)
def test_a_mention_in_the_reasoning_is_no_lost_call(replay):
    reasoning = replay.text.split("\n</think>")[0]
    check, _ = _live({"role": "assistant", "content": "x", "reasoning_content": reasoning})
    assert check.status == "skipped"


def test_a_server_that_delivers_its_calls_passes():
    call = {"id": "1", "type": "function", "function": {"name": "list_jobs", "arguments": '{"queue": "main"}'}}
    check, report = _live({"role": "assistant", "content": None, "tool_calls": [call]})
    assert (check.status, check.detail) == ("passed", "8 calls delivered in 8 replies, none lost")
    assert report.facts["model"] == "some-model"


def test_a_server_that_obeys_no_grammar_is_not_forced():
    with faulty_server(_chat({"role": "assistant", "content": "hello"})) as (url, _):
        report = run_smoke_url(url, options=SmokeOptions(only=("forced-calls",)))
    assert report.checks[0].status == "skipped"
    assert "obeys no grammar" in report.checks[0].detail


def test_a_server_that_mixes_its_streams_fails():
    with faulty_server(_chat({"role": "assistant", "content": "stream-3"})) as (url, _):
        report = run_smoke_url(url, options=SmokeOptions(only=("public-parallel",)))
    assert report.checks[0].status == "failed"


def test_calls_are_looked_for_in_reasoning_and_content():
    text = failures("xml")[0].text
    reply = ChatReply.from_dict({"choices": [{"message": {"content": text, "reasoning_content": text}}]})
    assert [call.name for call in whole_calls(reply)] == ["list_jobs", "list_jobs"]
