"""Text that is held back: cheap to append to in tiny pieces, close to its own size in memory."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO


class HeldText:
    """Text in segments. ``write`` appends to the present one, of which ``size`` is the number of characters."""

    __slots__ = ("_present", "_segments", "write")

    def __init__(self) -> None:
        self._segments: list[str] = []
        self._begin()

    def _begin(self) -> None:
        # A StringIO keeps one growing buffer; a list of 4-character pieces would cost 15 times their text.
        self._present = StringIO(newline="")
        self.write: Callable[[str], int] = self._present.write  # no call in between: this runs for every delta

    @property
    def size(self) -> int:
        """The characters of the present segment."""
        return self._present.tell()

    def head(self, count: int) -> str:
        """Return the first ``count`` characters of the present segment."""
        present = self._present
        end = present.tell()
        present.seek(0)
        text = present.read(count)
        present.seek(end)
        return text

    def tail(self, count: int) -> str:
        """Return the last ``count`` characters of the present segment."""
        present = self._present
        present.seek(max(0, present.tell() - count))
        return present.read()

    def present(self) -> str:
        """Return the present segment."""
        return self._present.getvalue()

    def cut(self) -> str:
        """Close the present segment, begin the next one, and return the closed one."""
        segment = self._present.getvalue()
        self._segments.append(segment)
        self._begin()
        return segment

    def text(self) -> str:
        """Return everything."""
        return "".join([*self._segments, self._present.getvalue()])

    def clear(self) -> None:
        """Forget everything."""
        self._segments.clear()
        self._begin()
