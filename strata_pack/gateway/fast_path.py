"""Fast path for plain text: copy a token's text from the server's chunk to the client's chunk without parsing.

Nearly every event of a stream is a few ordinary characters inside the thinking or the answer. They need no
parsing: the client's chunk has the same JSON text as the server's. A token's cost is mostly memory
that is no longer in the CPU caches, so touching little of it is cheap; the parser, the counters and the
writer get a run of such events at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from strata_pack.parsing import Event, EventKind

Frame = tuple[bytes, ...]
"""Bytes before and after the text of a client's event: ``text.join(frame)`` is the event."""

_PLAIN = re.compile(
    rb'([0-9a-f]{1,4})\r\ndata: \{"index":\d+,"content":"([^\x00-\x1f"\\<`]+)","tokens":\[[\d,]*\],"stop":false,'
    rb'"id_slot":-?\d+,"tokens_predicted":(\d{1,9}),"tokens_evaluated":\d+\}\n\n\r\n'
).match
"""A complete chunk with one complete event of llama-server, whose text needs no JSON escape."""

CHUNK_FRAMING = 4
"""Line ends around the body of a chunk."""


@dataclass(frozen=True)
class FastPath:
    """Functions that send arriving events to the client, bypassing the stream's coroutines.

    ``is_open``: whether sending is allowed now; ``deliver`` sends events. ``frame`` returns the frame for plain text of
    a kind, ``None`` if there is none; ``write`` sends a filled frame if allowed; ``written`` reports the sent text.
    """

    is_open: Callable[[], bool]
    deliver: Callable[[list[Event]], None]
    frame: Callable[[EventKind], Frame | None]
    write: Callable[[bytes], bool]
    written: Callable[[EventKind, str], None]


@dataclass(frozen=True)
class PlainRun:
    """A run of sent plain text: its kind, its text, and the tokens generated until its end."""

    kind: EventKind
    text: str
    predicted: int


class PlainText:
    """Sends chunks of plain text as they arrive. ``flowing`` returns the current kind of plain text, if any."""

    def __init__(self, way: FastPath, flowing: Callable[[], EventKind | None]) -> None:
        self._way = way
        self._write = way.write
        self._flowing = flowing
        self._kind: EventKind | None = None
        self._frame: Frame | None = None
        self._texts: list[bytes] = []
        self._predicted = b"0"

    def take(self, chunks: bytes) -> bool:
        """Send the text of complete chunks if all of it is plain; return whether it was sent."""
        frame = self._frame or self._find_frame()
        if frame is None:
            return False
        texts: list[bytes] = []
        end = 0
        while end < len(chunks):
            found = _PLAIN(chunks, end)
            if found is None:
                return False
            size, text, predicted = found.groups()
            start, end = end, found.end()
            if int(size, 16) + len(size) + CHUNK_FRAMING != end - start or not (text.isascii() or _is_utf8(text)):
                return False
            texts.append(text)
        text = texts[0] if len(texts) == 1 else b"".join(texts)
        if not self._write(text.join(frame)):
            return False
        self._texts.append(text)
        self._predicted = predicted
        return True

    def end(self) -> PlainRun | None:
        """Return the run sent since the last call; the next text may be of another kind."""
        kind, texts = self._kind, self._texts
        self._frame = None
        if not texts or kind is None:
            return None
        run = PlainRun(kind, b"".join(texts).decode(), int(self._predicted))
        texts.clear()
        self._way.written(kind, run.text)
        return run

    def _find_frame(self) -> Frame | None:
        self._kind = self._flowing()
        self._frame = None if self._kind is None else self._way.frame(self._kind)
        return self._frame


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
