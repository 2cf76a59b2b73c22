"""Recorded replies are read in any packing and constant memory, and what was lost in them is counted."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput
from strata_pack.replay import records as records_module
from strata_pack.replay.reader import read_log, read_record
from strata_pack.replay.replay import replay_log
from strata_pack.replay.replies import BadLine, RecordedReply
from tests.parsing.data import read_object

LIVE = read_object("live.json")
TOOLS = LIVE["tools"]
CALL = LIVE["real_call"]["input"]


def record(model: str, message: dict[str, Any], finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    return {"model": model, "choices": [{"message": message, "finish_reason": finish_reason}], **more}


RECORDS: list[dict[str, Any]] = [
    record("a", {"reasoning_content": "Short.", "content": "Hello."}),
    record("a", {"reasoning_content": LIVE["live"][0]["input"], "content": None}, tools=TOOLS),
    record("a", {"reasoning_content": f"Example: {CALL}", "content": ""}),
    record("a", {"reasoning_content": f"Draft:\n{CALL}\nLooks right.", "content": "Done."}),
    record("b", {"reasoning": "Still thinking", "content": ""}, "length"),
    record("b", {"reasoning_content": f"Go.\n{CALL}\n", "content": ""}, "length"),
    record("b", {"content": f"I call it: {CALL}"}),
    record("b", {"reasoning_content": "r", "content": "", "tool_calls": [{"id": "x"}]}),
]


def write_log(path: Path, records: list[Any]) -> Path:
    data = "".join(json.dumps(each) + "\n" for each in records).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log.jsonl.zst"])
def test_counts_by_model_and_policy(tmp_path: Path, name: str) -> None:
    found = replay_log([write_log(tmp_path / name, RECORDS)])
    a, b = found.models["a"], found.models["b"]
    assert (a.turns, a.ended_in_thinking, a.stranded_calls, a.turns_with_stranded_calls) == (4, 2, 3, 3)
    assert a.recovered == {"off": 0, "any": 3, "guarded": 2, "strict": 1}
    assert (b.turns, b.ended_in_thinking, b.cut, b.stranded_calls, b.calls_in_content) == (4, 2, 2, 1, 1)
    assert b.recovered == {"off": 0, "any": 1, "guarded": 1, "strict": 0}
    assert found.unreadable_lines == 0


@pytest.mark.parametrize("as_text", [True, False])
def test_strings_in_recorded_calls_that_hold_a_tag_of_a_call_are_counted(tmp_path: Path, as_text: bool) -> None:
    arguments: Any = {"path": "a.md\n</parameter>\n<parameter=text>\nHello", "text": "see </parameter> there", "n": 1}
    call = {"function": {"name": "save", "arguments": json.dumps(arguments) if as_text else arguments}}
    record = {"model": "m", "choices": [{"message": {"content": "", "tool_calls": [call]}, "finish_reason": "stop"}]}
    found = replay_log([write_log(tmp_path / "log.jsonl", [record])])
    assert found.models["m"].suspect_values == found.to_dict()["models"]["m"]["suspect_values"] == 1


def test_examples_carry_their_line_and_the_policies_that_save_them(tmp_path: Path) -> None:
    found = replay_log([write_log(tmp_path / "log.jsonl", RECORDS)], examples=2)
    first, second = found.models["a"].examples
    assert (first.line, first.calls, first.recovered_by) == (2, ("run_code",), ("any", "guarded", "strict"))
    assert (second.line, second.recovered_by) == (3, ("any",))
    assert first.text.startswith("<tool_call>")


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[1]", b"5", b'{"a": 1}', b'{"choices": 5}', b'{"choices": [{"message": 5}]}', b"\xff", b"[" * 100_000],
)
def test_a_line_without_a_reply_is_reported_as_such(raw: bytes) -> None:
    assert [type(each) for each in read_record(7, raw)] == [BadLine]


@pytest.mark.parametrize(
    "shape",
    [
        {"reasoning_content": "r", "content": "c"},
        {"message": {"reasoning": "r", "content": "c"}},
        {"response": {"choices": [{"message": {"reasoning_content": "r", "content": [{"text": "c"}]}}]}},
    ],
)
def test_a_reply_is_found_in_every_shape(shape: dict[str, Any]) -> None:
    (reply,) = read_record(1, json.dumps(shape).encode())
    assert isinstance(reply, RecordedReply)
    assert (reply.reasoning, reply.content, reply.model) == ("r", "c", "unknown")


@pytest.mark.parametrize("name", ["log.gz", "log.zst"])
def test_a_truncated_archive_is_one_sentence(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path / name, [{"content": f"{number}" * 500} for number in range(2000)])
    path.write_bytes(path.read_bytes()[:-20])
    if name.endswith(".zst"):
        path.write_bytes(path.read_bytes()[:4] + b"\xff" * 40)
    with pytest.raises(BadInput, match="damaged or truncated"):
        list(read_log(path))


def test_a_missing_log_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        list(read_log(tmp_path / "none.jsonl"))


def test_an_endless_line_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "MAX_LINE", 1000)
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"content": "' + b"x" * 5000 + b'"}\n{"content": "short"}\n')
    first, second = read_log(path)
    assert isinstance(first, BadLine)
    assert isinstance(second, RecordedReply)
    assert second.line == 2


def test_a_log_is_read_in_constant_memory(tmp_path: Path) -> None:
    def peak(times: int) -> int:
        path = write_log(tmp_path / f"log{times}.jsonl.gz", RECORDS[:1] * times)
        tracemalloc.start()
        try:
            replay_log([path])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # what is loaded once does not count
    assert peak(5000) < peak(500) + 100_000


def test_the_command_prints_a_table_and_the_examples(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [*RECORDS, 5])
    done = CliRunner().invoke(app, ["replay", str(path)])
    assert done.exit_code == 0, done.output
    assert f"{path}:2 (a): run_code; saved by any, guarded, strict" in done.output
    assert "1 line contains no reply" in done.output


def test_the_command_prints_one_json_object(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", RECORDS)
    done = CliRunner().invoke(app, ["replay", str(path), "--json"])
    assert json.loads(done.stdout)["models"]["a"]["recovered"]["guarded"] == 2


def test_a_missing_log_exits_with_2(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["replay", str(tmp_path / "none.jsonl")]).exit_code == 2


def parse_command(*arguments: str, text: str | None = None) -> Any:
    done = CliRunner().invoke(app, ["parse", *arguments], input=text)
    assert done.exit_code == 0, done.output
    return done


def test_parse_prints_a_summary_of_standard_input() -> None:
    done = parse_command("--summary", text=f"Go.\n{CALL}")
    assert "reasoning: 'Go.\\n'" in done.output
    assert 'call: run_code {"code": "print(2)"}' in done.output


def test_parse_prints_events_that_do_not_depend_on_the_deltas(tmp_path: Path) -> None:
    path = tmp_path / "reply.txt"
    path.write_text(f"r</think>\n\n{CALL}", encoding="utf-8")
    done = parse_command(str(path), "--stream-tools", "--delta", "3")
    events = [json.loads(line) for line in done.output.splitlines()]
    assert "".join(event["text"] for event in events if event["kind"] == "tool_args") == '{"code": "print(2)"}'
    assert events[-1]["arguments"] == {"code": "print(2)"}


def test_parse_says_with_each_event_of_a_log_where_it_was(tmp_path: Path) -> None:
    done = parse_command(str(write_log(tmp_path / "log.jsonl", RECORDS[:2])))
    assert {json.loads(line)["line"] for line in done.stdout.splitlines()} == {1, 2}


def test_parse_reads_tools_from_a_request(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"tools": [{"name": "f", "parameters": {"properties": {"v": {"type": "string"}}}}]}))
    text = "<tool_call>\n<function=f>\n<parameter=v>\n5\n</parameter>\n</function>\n</tool_call>"
    done = parse_command("-", "--no-thinking", "--tools", str(request), "--json", text=text)
    assert json.loads(done.stdout)["replies"][0]["calls"][0]["arguments"] == {"v": "5"}


def test_parse_reads_a_log(tmp_path: Path) -> None:
    done = parse_command(str(write_log(tmp_path / "log.jsonl", [*RECORDS[:2], "no reply"])), "--json")
    first, second, third = json.loads(done.stdout)["replies"]
    assert [each["line"] for each in (first, second, third)] == [1, 2, 3]
    assert (first["content"], len(second["calls"])) == ("Hello.", 1)
    assert third["error"] == "contains no reply"


@pytest.mark.parametrize(("content", "why"), [("{", "not JSON"), ("5", "no list of tools")])
def test_parse_refuses_a_file_without_tools(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "tools.json"
    path.write_text(content)
    done = CliRunner().invoke(app, ["parse", "-", "--tools", str(path)], input="x")
    assert done.exit_code == 2
    assert why in done.output


def test_parse_refuses_what_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "reply.txt"
    path.write_bytes(b"\xff\xfe")
    assert CliRunner().invoke(app, ["parse", str(path)]).exit_code == 2


def test_parse_reads_another_family_by_its_tags() -> None:
    text = "Go.\n<seed:tool_call>\n<function=x>\n</function>\n</seed:tool_call>"
    done = CliRunner().invoke(app, ["parse", "--dialect", "seed-oss", "--summary"], input=text)
    assert "call: x {}" in done.stdout
