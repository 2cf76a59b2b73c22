"""The real embedded server on a tiny model: what it answers, as types."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from strata_pack.llama.answers import RequestRefused, ServerGone, ServerTimeout
from strata_pack.llama.server import LlamaServer
from tests.llama.processes import gone, server_pid

pytestmark = pytest.mark.xdist_group("tiny-server")


def test_props_say_what_was_asked_for(server, tiny):
    props = server.client.props()
    assert (props.model_path, props.slots, props.context) == (str(tiny), 2, 2048)
    assert (props.bos_token, props.eos_token) == ("<|endoftext|>", "<|im_end|>")


def test_the_server_is_healthy_and_listens_on_loopback_only(server):
    assert server.client.health()
    assert server.url.startswith("http://127.0.0.1:")


def test_a_template_is_applied(server):
    assert server.client.apply_template([{"role": "user", "content": "hä?"}]) == (
        "<|im_start|>user\nhä?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_refusal_carries_the_server_s_status_and_words(server):
    with pytest.raises(RequestRefused) as caught:
        server.client.apply_template([{"role": "user"}])
    assert (caught.value.status, caught.value.message) == (400, "All non-assistant messages must contain 'content'")


def test_special_tokens_are_parsed_only_if_asked(server):
    assert len(server.client.tokenize("<|im_start|>")) == 1
    assert len(server.client.tokenize("<|im_start|>", parse_special=False)) == len("<|im_start|>")


def test_a_grammar_makes_a_random_model_write_the_text(server):
    answer = server.client.completion("x", grammar='root ::= "hello <tool_call>"', n_predict=64, temperature=0.0)
    assert (answer.text, answer.stop_type) == ("hello <tool_call>", "eos")
    assert answer.timings.predicted_n > 1


def test_a_stream_has_the_text_in_pieces_and_the_timings_at_its_end(server):
    chunks = list(server.client.stream_completion("x", grammar='root ::= "hello world"', n_predict=64, temperature=0.0))
    assert "".join(chunk.text for chunk in chunks) == "hello world"
    assert [chunk.stop for chunk in chunks[:-1]] == [False] * (len(chunks) - 1)
    assert chunks[-1].stop
    assert chunks[-1].timings.predicted_n >= len(chunks) - 1


def test_the_second_time_the_prompt_comes_out_of_the_cache(server):
    prompt = "a prompt that is long enough to be worth keeping"
    first = server.client.completion(prompt, n_predict=0, id_slot=0, cache_prompt=False).timings
    second = server.client.completion(prompt, n_predict=0, id_slot=0, cache_prompt=True).timings
    assert first.prompt_n == len(prompt)
    assert second.prompt_n + second.cache_n == first.prompt_n
    assert second.prompt_n < first.prompt_n


def test_a_limit_of_tokens_is_reported_as_such(server):
    answer = server.client.completion("x", n_predict=3, temperature=0.0, ignore_eos=True)
    assert (answer.stop_type, answer.timings.predicted_n) == ("limit", 3)


def test_a_chat_reply_is_typed(server):
    reply = server.client.chat_completion(
        [{"role": "user", "content": "hi"}], max_tokens=32, temperature=0.0, grammar='root ::= "good day"'
    )
    assert (reply.content, reply.reasoning, reply.tool_calls, reply.finish_reason) == ("good day", "", (), "stop")
    assert reply.prompt_tokens > 0


def test_a_streamed_chat_ends_with_a_finish_reason(server):
    chunks = list(
        server.client.stream_chat([{"role": "user", "content": "hi"}], max_tokens=32, grammar='root ::= "good day"')
    )
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    assert text == "good day"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_models_are_listed(server):
    assert len(server.client.models()) == 1


def test_requests_from_several_threads_do_not_mix(server):
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = server.client.completion("x", grammar=f'root ::= "number {number}"', n_predict=32).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"number {number}" for number in range(6)}


def test_no_request_outlives_the_time_limit_around_it(server):
    child = server_pid(server.process.pid)
    os.kill(child, signal.SIGSTOP)
    try:
        with server.client.time_limit(0.3), pytest.raises(ServerTimeout):
            server.client.completion("x", n_predict=1, timeout_seconds=3600)
    finally:
        os.kill(child, signal.SIGCONT)


def test_the_inner_time_limit_cannot_lengthen_the_outer_one(server):
    with server.client.time_limit(0.0), server.client.time_limit(60.0), pytest.raises(ServerTimeout):
        server.client.props()


def test_the_log_since_a_mark_is_what_came_after_it(server):
    mark = server.process.log_position()
    server.client.completion("x", n_predict=1)
    assert "listening" not in server.process.log_since(mark)
    assert "listening" in server.process.log_since(0, limit=1 << 20)


def test_without_a_gpu_the_server_says_that_it_computes_on_the_cpu(server):
    assert server.process.compute() == "CPU"


def test_shared_slots_see_the_whole_context(tiny):
    with LlamaServer.start(tiny, context=1024, parallel=4, shared=True, warmup=False, threads=1) as shared:
        assert (shared.client.props().slots, shared.client.props().context) == (4, 1024)


def test_a_template_file_replaces_the_model_s_own(tiny, tmp_path):
    file = tmp_path / "other.jinja"
    file.write_text("{{- messages[0].content -}}!\n")
    with LlamaServer.start(tiny, template_file=file, context=256, warmup=False, threads=1) as running:
        assert running.client.apply_template([{"role": "user", "content": "hi"}]) == "hi!"


def test_a_stopped_server_is_gone_and_stopping_twice_is_harmless(tiny):
    running = LlamaServer.start(tiny, context=256, warmup=False, threads=1)
    running.stop()
    running.stop()
    assert not running.running


def test_a_temporary_log_goes_with_a_clean_stop_and_stays_after_a_death(tiny):
    with LlamaServer.start(tiny, context=256, warmup=False, threads=1) as clean:
        assert clean.process.log_path.is_file()
    assert not clean.process.log_path.exists()
    with LlamaServer.start(tiny, context=256, warmup=False, threads=1) as died:
        os.kill(server_pid(died.process.pid), signal.SIGKILL)
        assert gone([died.process.pid])
    assert "ended by SIGKILL" in died.process.log_path.read_text()
    died.process.log_path.unlink()


def test_asking_a_dead_server_says_that_it_died(tiny):
    with LlamaServer.start(tiny, context=256, warmup=False, threads=1) as running:
        os.kill(server_pid(running.process.pid), signal.SIGKILL)
        with pytest.raises(ServerGone, match=r"the server died .*SIGKILL"):
            running.client.completion("x", n_predict=1)
