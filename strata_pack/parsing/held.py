"""Stores held text so that appending small pieces is fast and memory use is close to the text's size."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

_PART = 4096
"""Characters after which a new part of a segment is begun."""


class HeldText:
    """Text in segments. ``write`` appends to the current segment; ``size`` is its number of characters."""

    __slots__ = ("_before", "_parts", "_present", "_segments", "write")

    def __init__(self) -> None:
        self._segments: list[str] = []
        self._present: StringIO | None = None
        self._begin()

    def _begin(self) -> None:
        self._parts: list[str] = []
        self._before = 0
        self._begin_part()

    def _begin_part(self) -> None:
        if self._present is not None:
            self._present = None
            del self.write

    def __getattr__(self, name: str) -> Callable[[str], int]:
        """Create the buffer when ``write`` is needed for the first time: most replies hold no text."""
        if name != "write":
            raise AttributeError(name)
        # A StringIO keeps one growing buffer; a list of 4-character pieces would cost 15 times their text.
        self._present = StringIO(newline="")
        self.write: Callable[[str], int] = self._present.write  # bound directly, because it runs for every delta
        return self.write

    @property
    def size(self) -> int:
        """The number of characters of the current segment."""
        return self._before + (0 if self._present is None else self._present.tell())

    def _fresh(self) -> str:
        """Return the text that is not in a part yet."""
        return "" if self._present is None else self._present.getvalue()

    def _settle(self) -> list[str]:
        """Return the parts of the current segment; further text begins a new part."""
        # Never read from a StringIO that is still written to: after a read it keeps four bytes per character.
        fresh = self._fresh()
        if fresh:
            if self._parts and len(self._parts[-1]) < _PART:
                self._parts[-1] += fresh
            else:
                self._parts.append(fresh)
            self._before += len(fresh)
            self._begin_part()
        return self._parts

    def head(self, count: int) -> str:
        """Return the first ``count`` characters of the current segment, at most its first part."""
        parts = self._settle()
        return parts[0][:count] if parts else ""

    def tail(self, count: int) -> str:
        """Return the last ``count`` characters of the current segment."""
        text = ""
        for part in reversed(self._settle()):
            text = part[-count:] + text if len(part) >= count else part + text
            if len(text) >= count:
                break
        return text[-count:] if count else ""

    def present(self) -> str:
        """Return the current segment."""
        return "".join([*self._parts, self._fresh()])

    def cut(self) -> str:
        """Close the current segment, begin the next one, and return the closed one."""
        segment = self.present()
        self._segments.append(segment)
        self._begin()
        return segment

    def text(self) -> str:
        """Return the whole text, all segments."""
        return "".join([*self._segments, self.present()])

    def clear(self) -> None:
        """Remove all text."""
        self._segments.clear()
        self._begin()
