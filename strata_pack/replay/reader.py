"""Reads the replies of a log, one at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strata_pack.progress import Progress, Silent
from strata_pack.replay.chunks import Chunks
from strata_pack.replay.har import har_turns
from strata_pack.replay.records import records
from strata_pack.replay.replies import BadLine, RecordedReply, RecordedTurn
from strata_pack.replay.shapes import turns_in
from strata_pack.replay.text_lines import TextLines


def read_record(line: int, raw: bytes) -> Iterator[RecordedReply | BadLine]:
    """Yield the replies in one line of JSON."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        yield BadLine(line, "is not JSON")
        return
    found = turns_in(record) if isinstance(record, dict) else None
    if found is None:
        yield BadLine(line, "contains no reply")
        return
    for turn in found:
        yield turn.reply(line)


def read_log(path: Path, progress: Progress | None = None) -> Iterator[RecordedReply | BadLine]:
    """Yield the replies of the log ``path``, in any known format (``shapes.KNOWN``), in a few megabytes of memory.

    Raises ``BadInput`` for a missing, damaged or truncated file, ``EnvironmentFailure`` if zstandard is missing.
    """
    chunks, text = Chunks(), TextLines()
    for record in records(path, progress or Silent()):
        if record.problem is not None:
            yield BadLine(record.line, record.problem)
        elif record.is_json:
            yield from _replies(record.value, record.event, record.line, chunks)
        else:
            found = text.feed(record.value)
            if found is None:
                yield BadLine(record.line, "is not JSON")
            for one in found or ():
                if isinstance(one, RecordedTurn):
                    yield one.reply(record.line)
                else:
                    yield from _replies(one, None, record.line, chunks)
    for turn in chunks.finish():
        yield turn.reply(0)


def _replies(value: Any, event: str | None, line: int, chunks: Chunks) -> Iterator[RecordedReply | BadLine]:
    if not isinstance(value, dict):
        yield BadLine(line, "contains no reply")
        return
    found = chunks.feed(value, event, line)
    if found is None:
        found = har_turns(value)
    if found is None:
        found = turns_in(value)
    if found is None:
        yield BadLine(line, "contains no reply")
        return
    for turn in found:
        yield turn.reply(line)
