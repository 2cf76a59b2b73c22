"""Recorded replies: JSON lines of chat completions, plain, ``.gz`` or ``.zst``, one reply at a time.

A reply is looked for where servers and clients keep it: the object itself, its ``choices``, its ``message``, or a
``response`` beside the ``request``. A line that holds none is told as such; nothing in a log raises.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from strata_pack.errors import BadInput
from strata_pack.extras import missing
from strata_pack.parsing import holds_call_tag
from strata_pack.progress import Progress, Silent

MAX_LINE = 64 << 20
"""Bytes of one line; a longer one is skipped and counted as unreadable."""


@dataclass(frozen=True, slots=True)
class RecordedReply:
    """One reply of a log. ``tools`` is None where the log does not say what the request declared.

    ``suspect_values``: strings in its calls that hold a tag of a call on a line of its own.
    """

    line: int
    model: str
    reasoning: str
    content: str
    tool_calls: int
    finish_reason: str | None
    tools: tuple[Any, ...] | None
    suspect_values: int = 0

    @property
    def closed(self) -> bool:
        """Whether the reply got out of its thinking: it has an answer or a call."""
        return bool(self.content or self.tool_calls)

    @property
    def text(self) -> str:
        """The text the model generated, as far as the log tells, behind a prompt that left the thinking open."""
        if not self.reasoning:
            return self.content
        return f"{self.reasoning}</think>\n\n{self.content}" if self.closed else self.reasoning


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that holds no reply, and why."""

    line: int
    why: str


def _text(value: Any) -> str:
    if isinstance(value, list):  # content in parts
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _replies_in(record: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the messages of a record with their finish reasons."""
    inner = record.get("response")
    if isinstance(inner, dict):
        yield from _replies_in(inner)
        return
    choices = record.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict) and isinstance(choice.get("message"), dict):
                yield choice["message"], choice.get("finish_reason")
        return
    message = record.get("message", record)
    if isinstance(message, dict) and {"reasoning_content", "reasoning", "content", "tool_calls"} & message.keys():
        yield message, record.get("finish_reason", message.get("finish_reason"))


def _first(record: dict[str, Any], key: str) -> Any:
    for place in (record, record.get("response"), record.get("request")):
        if isinstance(place, dict) and place.get(key) is not None:
            return place[key]
    return None


def read_record(line: int, raw: bytes) -> Iterator[RecordedReply | BadLine]:
    """Yield the replies that one line of a log holds."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        yield BadLine(line, "is no JSON")
        return
    found = list(_replies_in(record)) if isinstance(record, dict) else []
    if not found:
        yield BadLine(line, "holds no reply")
        return
    model, tools = _first(record, "model"), _first(record, "tools")
    for message, finish_reason in found:
        calls = message.get("tool_calls")
        yield RecordedReply(
            line,
            model if isinstance(model, str) else "unknown",
            _text(message.get("reasoning_content")) or _text(message.get("reasoning")),
            _text(message.get("content")),
            len(calls) if isinstance(calls, list) else 0,
            finish_reason if isinstance(finish_reason, str) else None,
            tuple(tools) if isinstance(tools, list) else None,
            sum(map(_suspect_values, calls)) if isinstance(calls, list) else 0,
        )


def _suspect_values(call: Any) -> int:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str) and "<" in arguments:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return 0
    values = arguments.values() if isinstance(arguments, dict) else ()
    return sum(holds_call_tag(value) for value in values if isinstance(value, str))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the file as it lies on the disk (for its position) and its text, unpacked while it is read."""
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise BadInput("no such file", where=path) from None
    except IsADirectoryError:
        raise BadInput("is a folder, not a log", where=path) from None
    with raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield raw, io.BufferedReader(unpacked)
        elif path.suffix == ".zst":
            try:
                import zstandard
            except ImportError:
                raise missing("zstandard", "zstd", f"reading {path}") from None
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as unpacked:
                yield raw, io.BufferedReader(unpacked)
        else:
            yield raw, raw


def _lines(path: Path, progress: Progress) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines with their numbers (from 1); None for one that is too long."""
    task = progress.task(path.name, path.stat().st_size if path.is_file() else None)
    with _opened(path) as (raw, text):
        number = seen = 0
        while line := text.readline(MAX_LINE):
            number += 1
            whole = len(line) < MAX_LINE or line.endswith(b"\n")
            while line and not line.endswith(b"\n"):
                line = text.readline(MAX_LINE)
            yield number, line if whole else None
            at = raw.tell()
            if at > seen:
                task.advance(at - seen)
                seen = at
    task.done()


def read_log(path: Path, progress: Progress | None = None) -> Iterator[RecordedReply | BadLine]:
    """Yield the replies of the log ``path`` in constant memory.

    Raises ``BadInput`` for a missing, damaged or truncated file, ``EnvironmentFailure`` if zstandard is missing.
    """
    try:
        for number, line in _lines(path, progress or Silent()):
            if line is None:
                yield BadLine(number, f"is longer than {MAX_LINE} bytes")
            elif line.strip():
                yield from read_record(number, line)
    except (EOFError, gzip.BadGzipFile) as error:
        raise BadInput(f"is damaged or truncated ({error})", where=path) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("zstandard", "zlib"):
            raise
        raise BadInput(f"is damaged or truncated ({error})", where=path) from error
