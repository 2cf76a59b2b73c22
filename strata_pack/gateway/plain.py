"""The shortest way of a token: from the chunk of the server that holds it to the client's, without being taken apart.

Nearly every event of a stream is a few ordinary characters in the middle of the thinking or of the answer. Nothing is
decided there: the text stands in the client's chunk as it stands in the server's. What a token costs is mostly memory
that other processes have pushed out of the caches, so what touches little is cheap; the parser, the counters and the
writer learn of a run of such events at its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from strata_pack.parsing import Event, EventKind

Frame = tuple[bytes, ...]
"""What stands around a text in a client's event: ``text.join(frame)`` is the event."""

_PLAIN = re.compile(
    rb'([0-9a-f]{1,4})\r\ndata: \{"index":\d+,"content":"([^\x00-\x1f"\\<`]+)","tokens":\[[\d,]*\],"stop":false,'
    rb'"id_slot":-?\d+,"tokens_predicted":(\d{1,9}),"tokens_evaluated":\d+\}\n\n\r\n'
).match
"""A whole chunk with one whole event of a stream, as llama-server writes it, whose text is the same in any JSON."""

CHUNK_FRAMING = 4
"""Line ends around the body of a chunk."""


@dataclass(frozen=True)
class ShortWay:
    """How events reach the client from where they arrive, past the coroutines of the stream.

    ``is_open``: whether they may now; ``deliver`` sends events. ``frame`` is that of a plain text of a kind, ``None``
    where there is none; ``write`` sends a filled one unless it may not; ``written`` tells what went out like that.
    """

    is_open: Callable[[], bool]
    deliver: Callable[[list[Event]], None]
    frame: Callable[[EventKind], Frame | None]
    write: Callable[[bytes], bool]
    written: Callable[[EventKind, str], None]


@dataclass(frozen=True)
class PlainRun:
    """A run of plain text that went out: its kind, its text, and the tokens generated when it was over."""

    kind: EventKind
    text: str
    predicted: int


class PlainText:
    """Sends chunks of plain text as they come. ``flowing`` tells the kind that plain text has now, if there is one."""

    def __init__(self, way: ShortWay, flowing: Callable[[], EventKind | None]) -> None:
        self._way = way
        self._write = way.write
        self._flowing = flowing
        self._kind: EventKind | None = None
        self._frame: Frame | None = None
        self._texts: list[bytes] = []
        self._predicted = b"0"

    def take(self, chunks: bytes) -> bool:
        """Send what whole chunks of the server hold if all of it is plain text; return whether it was sent."""
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
        """Return what was sent since the last time; what comes next may be of another kind."""
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
