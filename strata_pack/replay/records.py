"""Reads a log file as records, JSON values or lines of text, one at a time, in a few megabytes of memory.

The first bytes show the compression (none, gzip, zstd). A file is JSON lines, one pretty-printed JSON value, an array,
a transcript of server-sent events or a text log; the format is determined line by line. A small JSON value that spans
several lines is yielded whole; of a large one, the elements of its arrays of objects are yielded one by one.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from strata_pack.errors import BadInput
from strata_pack.extras import missing
from strata_pack.progress import Progress

MAX_LINE = 64 << 20
"""Maximum bytes of one line or one JSON value; a longer one is skipped and counted as unreadable."""
PIECE = 64 << 10
"""Bytes read at a time of a file that is transcoded."""
WHOLE = 4 << 20
"""Maximum bytes of a multi-line JSON value that is read whole; a larger one is read element by element."""
SCALARS = frozenset(bytes([letter]) for letter in b'"-0123456789tfn')
"""First characters of JSON values that are neither objects nor arrays."""
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The first bytes of a frame with other data, with which a zstd file may begin (RFC 8878, 3.1.2)."""
BOM = codecs.BOM_UTF8
BLANK = b" \t\r\n\x00\x1e"
"""White space around a value: also zeros, which a crash leaves in a file, and the record separator (RFC 7464)."""
DOCKER = (b'{"log":"', b'{"log": "')
"""How a line of Docker's log driver ``json-file`` begins."""
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s,]*")
_BOUNDS = re.compile(rb'["\[\]{}\n]')
_STRING_END = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. ``value`` is a JSON value, or the text of another line; ``event`` the name of a server-sent event."""

    line: int
    value: Any
    is_json: bool = True
    event: str | None = None
    problem: str | None = None


@contextmanager
def opened(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the raw file (for its position) and the decompressed stream."""
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise BadInput("no such file", where=path) from None
    except IsADirectoryError:
        raise BadInput("is a folder, not a log", where=path) from None
    with raw:
        magic = raw.read(4)
        raw.seek(0)
        if magic.startswith(GZIP):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield raw, io.BufferedReader(unpacked)
        elif magic == ZSTD or ZSTD_SKIPPABLE.fullmatch(magic):
            try:
                import zstandard
            except ImportError:
                raise missing("zstandard", "zstd", f"reading {path}") from None
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as unpacked:
                yield raw, io.BufferedReader(unpacked)
        elif magic.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            yield raw, io.BufferedReader(_AsUtf8(raw))
        else:
            yield raw, raw


class _AsUtf8(io.RawIOBase):
    """Transcodes a file in UTF-16, which Windows shells write, to UTF-8."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        ended = False
        while not self._ready and not ended:
            piece = self._raw.read(PIECE)
            ended = not piece
            self._ready = self._decoder.decode(piece, final=ended).encode()
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def lines(path: Path, progress: Progress) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines with their numbers (from 1); None for a line that is too long."""
    task = progress.task(path.name, path.stat().st_size if path.is_file() else None)
    with opened(path) as (raw, text):
        number = seen = 0
        while line := text.readline(MAX_LINE):
            number += 1
            whole = len(line) < MAX_LINE or line.endswith(b"\n")
            rest = line
            while rest and not rest.endswith(b"\n"):
                rest = text.readline(MAX_LINE)
            yield number, line if whole else None
            at = raw.tell()
            if at > seen:
                task.advance(at - seen)
                seen = at
    task.done()


def records(path: Path, progress: Progress) -> Iterator[LogRecord]:
    """Yield the records of a log; ``BadInput`` for a missing, damaged or truncated file."""
    try:
        yield from _records(_undressed(lines(path, progress)))
    except (EOFError, gzip.BadGzipFile) as error:
        raise BadInput(f"is damaged or truncated ({error})", where=path) from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("zstandard", "zlib"):
            raise
        raise BadInput(f"is damaged or truncated ({error})", where=path) from error


def _undressed(numbered: Iterator[tuple[int, bytes | None]]) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines without a byte order mark, and those of a container as its program wrote them."""
    for number, line in numbered:
        if line is not None and line.startswith(DOCKER):
            entry = _loads(line)
            inner = entry[0].get("log") if entry is not None and isinstance(entry[0], dict) else None
            line = inner.encode("utf-8", "surrogatepass") if isinstance(inner, str) else line
        yield number, line if line is None else line.removeprefix(BOM).rstrip(b"\0")


def _records(numbered: Iterator[tuple[int, bytes | None]]) -> Iterator[LogRecord]:
    event: str | None = None
    for number, line in numbered:
        if line is None:
            yield LogRecord(number, None, problem=f"is longer than {MAX_LINE} bytes")
            continue
        stripped = line.strip(BLANK)
        if not stripped:
            event = None
            continue
        if stripped.startswith(b"event:"):
            event = stripped[6:].strip().decode("utf-8", "replace")
            continue
        if stripped.startswith(b"data:"):
            data = stripped[5:].strip()
            if data and data != b"[DONE]":
                yield _decoded(number, data, event)
            continue
        if stripped.startswith((b":", b"id:", b"retry:")) and len(stripped) < 200:
            continue
        if stripped[:1] in (b"{", b"["):
            value = _loads(stripped)
            if value is not None:
                yield from _elements_of(number, value[0])
                continue
            values = list(_several(stripped))
            if values:
                for one in values:
                    yield from _elements_of(number, one)
                continue
            depth = _depth(stripped)
            if depth is not None and depth > 0:
                yield from _spread(number, stripped, depth, numbered)
                continue
            yield LogRecord(number, None, problem="is not JSON")
            continue
        scalar = _loads(stripped) if stripped[:1] in SCALARS else None
        if scalar is not None:
            yield LogRecord(number, scalar[0])
        else:
            yield LogRecord(number, line.decode("utf-8", "replace").rstrip("\r\n"), is_json=False)


def _loads(data: bytes) -> tuple[Any] | None:
    try:
        return (json.loads(data),)
    except (ValueError, RecursionError):
        return None


def _several(data: bytes) -> Iterator[Any]:
    """Yield the JSON values of a line that has several, or one before a comma; nothing if anything else is in it."""
    try:
        text, at = data.decode(), 0
        values = []
        while at < len(text):
            value, at = _DECODER.raw_decode(text, at)
            values.append(value)
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return
    yield from values


def _decoded(number: int, data: bytes, event: str | None) -> LogRecord:
    value = _loads(data)
    return LogRecord(number, None, problem="is not JSON") if value is None else LogRecord(number, value[0], event=event)


def _elements_of(number: int, value: Any) -> Iterator[LogRecord]:
    """Yield the objects of an array one by one, other values unchanged."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        for element in value:
            yield LogRecord(number, element, event="element")
    else:
        yield LogRecord(number, value)


def _depth(line: bytes) -> int | None:
    """Return the number of opened less closed brackets in a line of JSON; None if a string in it does not end."""
    depth, at = 0, 0
    while (match := _BOUNDS.search(line, at)) is not None:
        at = match.end()
        mark = match[0]
        if mark == b'"':
            end = _STRING_END.match(line, at)
            if end is None:
                return None
            at = end.end()
        elif mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
    return depth


def _spread(number: int, first: bytes, depth: int, numbered: Iterator[tuple[int, bytes | None]]) -> Iterator[LogRecord]:
    """Read a multi-line JSON value: whole if it is small, else the objects of its arrays.

    ``depth``: brackets that ``first`` leaves open. A JSON string cannot span lines.
    """
    data, last = bytearray(first), number
    for next_number, line in numbered:
        last = next_number
        if line is None:
            yield LogRecord(next_number, None, problem=f"is longer than {MAX_LINE} bytes")
            return
        data += b"\n" + line
        if len(data) > WHOLE:
            yield from _streamed(number, data, numbered)
            return
        more = _depth(line)
        if more is None:
            break
        depth += more
        if depth <= 0:
            break
    value = _loads(bytes(data))
    if value is None:
        yield LogRecord(number, None, problem=f"is not JSON (lines {number} to {last})")
    else:
        yield from _elements_of(number, value[0])


def _streamed(number: int, data: bytearray, numbered: Iterator[tuple[int, bytes | None]]) -> Iterator[LogRecord]:
    """Yield the objects in arrays, outermost first, of a value that is too large to keep in memory."""
    line, at, start, depth_at_start = number, 0, -1, 0
    stack: list[bytes] = []
    start_line = number
    while True:
        match = _BOUNDS.search(data, at)
        if match is None or (match[0] == b'"' and _STRING_END.match(data, match.end()) is None):
            keep_from = start if start >= 0 else (match.start() if match is not None else len(data))
            if start < 0:
                del data[:keep_from]
                at = 0
            else:
                del data[:start]
                at = (match.start() if match is not None else at + len(data)) - start
                at = min(max(at, 0), len(data))
                start = 0
            if len(data) > MAX_LINE:
                yield LogRecord(start_line, None, problem=f"has an element of more than {MAX_LINE} bytes")
                return
            more = next(numbered, None)
            if more is None or more[1] is None:
                if stack:
                    yield LogRecord(start_line, None, problem="is not JSON: the value does not end")
                return
            data += more[1]
            continue
        mark, at = match[0], match.end()
        if mark == b'"':
            end = _STRING_END.match(data, at)
            assert end is not None
            line += data.count(b"\n", at, end.end())
            at = end.end()
        elif mark == b"\n":
            line += 1
        elif mark in (b"[", b"{"):
            if mark == b"{" and start < 0 and stack and stack[-1] == b"[":
                start, depth_at_start, start_line = match.start(), len(stack), line
            stack.append(mark)
        else:
            if not stack:
                return
            stack.pop()
            if start >= 0 and len(stack) == depth_at_start:
                yield _decoded(start_line, bytes(data[start:at]), "element")
                start = -1
                del data[:at]
                at = 0
