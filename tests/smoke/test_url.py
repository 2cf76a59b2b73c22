"""``smoke --url``: the public interface, on the real llama.cpp server and on servers that lose calls."""

from __future__ import annotations

import pytest

from strata_pack.llama.server import LlamaServer
from strata_pack.smoke.data_files import failures, mentions
from strata_pack.smoke.run import SmokeOptions, run_smoke_url
from strata_pack.smoke.wire import WireReply, losses
from tests.smoke.scripted import Script, serve, text

pytestmark = pytest.mark.xdist_group("tiny-smoke")


@pytest.fixture(scope="module")
def report(tiny):
    with LlamaServer.start(tiny, context=4096, parallel=8, shared=True, warmup=False, threads=1) as server:
        yield run_smoke_url(f"{server.url}/v1")


def test_the_real_server_s_public_interface_passes(report):
    assert report.ok, [(check.id, check.detail) for check in report.checks if check.status != "passed"]


def test_every_public_scenario_was_played(report):
    assert {check.id.split("/")[0] for check in report.checks} == {
        *("live-calls", "streams", "required-calls", "forced-calls", "public-parallel", "public-history", "losses")
    }


def test_a_random_model_makes_no_call_and_the_report_says_so(report):
    (check,) = [one for one in report.checks if one.id == "live-calls"]
    assert (check.status, check.detail) == ("skipped", "the model made no call in 8 replies, so none could get lost")


def test_the_grammar_of_llama_cpp_is_recognised(report):
    (check,) = [one for one in report.checks if one.id == "forced-calls"]
    assert "llama.cpp" in check.detail


def test_a_model_that_makes_no_call_alone_proves_nothing():
    with serve(Script(text("hello"))) as (url, _):
        report = run_smoke_url(url, options=SmokeOptions(only=("live-calls",)))
    assert [(check.id, check.status) for check in report.checks] == [("played", "error"), ("live-calls", "skipped")]
    assert (report.exit_code, report.facts["model"]) == (3, "some-model")


@pytest.mark.parametrize("replay", mentions("xml"), ids=lambda replay: replay.id)
def test_a_mention_in_the_reasoning_is_no_lost_call(replay):
    reasoning = replay.text.split("\n</think>")[0]
    assert list(losses(WireReply(reasoning, "x", (), "stop"), set())) == []


@pytest.mark.parametrize("replay", failures("xml"), ids=lambda replay: replay.id)
def test_a_call_in_the_reasoning_is_a_lost_call(replay):
    (loss,) = losses(WireReply(replay.text, "", (), "stop"), set())
    assert (loss.kind, loss.seen) == ("calls left in the thinking", replay.text)


def test_a_server_that_obeys_no_grammar_is_not_forced():
    with serve(Script(message=text("hello"))) as (url, _):
        report = run_smoke_url(url, options=SmokeOptions(only=("forced-calls",)))
    assert report.checks[1].status == "skipped"
    assert "applies no grammar" in report.checks[1].detail
