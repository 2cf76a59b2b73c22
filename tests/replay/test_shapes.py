"""Replies are read from every shape of log that people have, each with the right counts."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput
from strata_pack.replay import records as records_module
from strata_pack.replay.reader import read_log, read_record
from strata_pack.replay.replay import replay_log
from strata_pack.replay.replies import BadLine, RecordedReply
from tests.replay.logs import ANSWER, CHATS, LOGS, LOST, MODEL, THOUGHT, chunks, lines


def replies(path: Path) -> list[RecordedReply]:
    return [one for one in read_log(path) if isinstance(one, RecordedReply)]


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.write_bytes(LOGS[request.param])
    return path


def test_there_are_forty_shapes() -> None:
    assert len(LOGS) >= 40


def test_both_replies_are_read_and_nothing_else(log: Path) -> None:
    first, second = replies(log)
    assert (first.reasoning.strip(), first.content) == (LOST, "")
    assert (second.reasoning.strip(), second.content) == (THOUGHT, ANSWER)


def test_every_line_of_it_is_known(log: Path) -> None:
    allowed = {"codex-old.jsonl": 1}
    assert sum(isinstance(one, BadLine) for one in read_log(log)) <= allowed.get(log.name, 0)


def test_the_stranded_call_is_counted_once(log: Path) -> None:
    found = replay_log([log]).models
    assert sum(model.turns for model in found.values()) == 2
    assert sum(model.stranded_calls for model in found.values()) == 1
    assert sum(model.recovered["guarded"] for model in found.values()) == 1


NO_MODEL = {"cline-history.json", "cline-screen.json", "codex-old.jsonl", "otel-logs.jsonl", "langfuse-strings.json"}


def test_the_model_is_named(log: Path) -> None:
    assert {one.model for one in replies(log)} == ({"unknown"} if log.name in NO_MODEL else {MODEL}) or (
        log.name == "langfuse-strings.json"
    )


def test_a_large_pretty_array_is_read_element_by_element(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "WHOLE", 2000)
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"meta": {"a": [1, 2]}, "data": CHATS * 50}, indent=1))
    assert len(replies(path)) == 100


def test_large_values_keep_memory_small(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    padded = {**CHATS[1], "padding": "x" * 10_000}
    with path.open("w") as file:
        file.write("[\n")
        for number in range(1500):
            file.write(("" if number == 0 else ",\n") + json.dumps(padded, indent=1))
        file.write("\n]\n")
    tracemalloc.start()
    try:
        count = sum(isinstance(one, RecordedReply) for one in read_log(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 1500
    assert peak < 3 * records_module.WHOLE


def test_mixed_streams_are_separated(tmp_path: Path) -> None:
    one, two = ([c for c in chunks() if c["id"] == name] for name in ("c1", "c2"))
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(lines(one[0], two[0], *one[1:5], two[1], *one[5:], *two[2:]))
    assert {(reply.reasoning, reply.content) for reply in replies(path)} == {(LOST, ""), (THOUGHT, ANSWER)}


def test_a_stream_that_breaks_off_is_a_reply_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(lines(*chunks()[:5]))
    (reply,) = replies(path)
    assert (reply.finish_reason, reply.line) == (None, 1)


def test_a_request_that_only_carries_a_history_holds_no_reply() -> None:
    request = {"model": "m", "stream": True, "messages": [{"role": "assistant", "content": "old"}]}
    assert list(read_record(1, json.dumps(request).encode())) == []


@pytest.mark.parametrize("role", ["user", "tool", "system", "developer"])
def test_a_users_line_is_no_reply_and_no_fault(role: str) -> None:
    assert list(read_record(1, json.dumps({"role": role, "content": "text"}).encode())) == []


@pytest.mark.parametrize(
    ("reason", "known"), [("max_tokens", "length"), ("end_turn", "stop"), ("tool_use", "tool_calls"), ("odd", "odd")]
)
def test_ends_have_one_name(reason: str, known: str) -> None:
    record = {"type": "message", "role": "assistant", "content": [], "stop_reason": reason}
    (reply,) = read_record(1, json.dumps(record).encode())
    assert isinstance(reply, RecordedReply)
    assert reply.finish_reason == known


def test_a_log_without_replies_exits_with_2_and_names_the_formats(tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(BadInput, match="contains no reply"):
        replay_log([path])
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 2
    assert "Claude Code sessions" in done.output


def test_drift_and_suspect_values_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    content = "<tool_call><function=run><parameter=code>\n1\n</parameter></function></tool_call>"
    path.write_bytes(lines({**CHATS[1], "choices": [{"message": {"content": content}}]}))
    found = replay_log([path]).to_dict()["models"][MODEL]
    assert (found["calls_in_content"], found["drifted_calls"]) == (1, 1)
    assert "drift" in CliRunner().invoke(app, ["replay", str(path)]).output


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "message", "delta", "role", "content", "type", "response", "output", "data", "log"),
                    *("entries", "messages", "tool_calls", "done", "payload", "info", "parts", "resourceSpans", "ts"),
                    *("say", "object", "attributes", "events", "index", "id", "observations", "usage", "text"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.lists(JSON_VALUES, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_nothing_in_a_log_raises(tmp_path_factory: pytest.TempPathFactory, values: list[object]) -> None:
    path = tmp_path_factory.mktemp("odd") / "log.jsonl"
    path.write_bytes(lines(*values))
    list(read_log(path))


def _zstd(data: bytes) -> bytes:
    compressed: bytes = pytest.importorskip("zstandard").ZstdCompressor().compress(data)
    return compressed


def _each_line(before: bytes, after: bytes = b"\n") -> Callable[[bytes], bytes]:
    return lambda data: b"".join(before + line + after for line in data.splitlines())


WRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "with a byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "with zeros at the end": lambda data: data + b"\0" * 64,
    "with record separators": _each_line(b"\x1e"),
    "with commas after the lines": _each_line(b"", b",\n"),
    "with CR LF": _each_line(b"", b"\r\n"),
    "without line feeds": _each_line(b"", b""),
    "by a program that writes the time first": _each_line(b"2026-11-30T10:00:00Z stdout F "),
    "by Docker": lambda data: b"".join(
        json.dumps({"log": f"{line}\n", "stream": "stdout"}, separators=(",", ":")).encode() + b"\n"
        for line in data.decode().splitlines()
    ),
    "as zstd frames after one to skip": lambda data: (
        b"\x50\x2a\x4d\x18\x02\x00\x00\x00ab" + _zstd(data[:100]) + _zstd(data[100:])
    ),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("name", ["openai.jsonl", "codex-rollout.jsonl"])
def test_a_log_is_read_however_its_lines_are_written(name: str, how: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(WRITTEN[how](LOGS[name]))
    found = list(read_log(path))
    assert [type(one) for one in found] == [RecordedReply, RecordedReply], found
    assert found[0].reasoning.strip() == LOST


@pytest.mark.parametrize("how", ["with a byte order mark", "with zeros at the end", "by Docker"])
def test_a_value_of_several_lines_is_read_however_they_are_written(how: str, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(WRITTEN[how](LOGS["openai-pretty-array.json"]))
    assert [type(one) for one in read_log(path)] == [RecordedReply, RecordedReply]


def test_a_file_of_all_shapes_of_lines_has_the_replies_of_each(tmp_path: Path) -> None:
    every = [data for name, data in LOGS.items() if name.endswith(".jsonl") and not name.startswith("powershell")]
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(b"".join(every))
    assert len(replies(path)) == 2 * len(every)
