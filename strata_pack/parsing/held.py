"""Text that is held back: cheap to append to in tiny pieces, close to its own size in memory."""

from __future__ import annotations

from io import StringIO


class HeldText:
    """Text in segments; ``size`` counts the characters of the present one."""

    __slots__ = ("_present", "_segments", "size")

    def __init__(self) -> None:
        # A StringIO keeps one growing buffer; a list of 4-character pieces would cost 15 times their text.
        self._present = StringIO(newline="")
        self._segments: list[str] = []
        self.size = 0

    def write(self, text: str) -> None:
        """Append ``text``."""
        self._present.write(text)
        self.size += len(text)

    def cut(self) -> str:
        """Close the present segment, begin the next one, and return the closed one."""
        segment = self._present.getvalue()
        self._present = StringIO(newline="")
        self._segments.append(segment)
        self.size = 0
        return segment

    def text(self) -> str:
        """Return everything."""
        return "".join([*self._segments, self._present.getvalue()])

    def last(self) -> str:
        """Return the segment closed last."""
        return self._segments[-1]

    def clear(self) -> None:
        """Forget everything."""
        self.__init__()  # type: ignore[misc]
