"""Reports the progress of long work to whoever listens.

A room takes a ``Progress`` and opens one ``ProgressTask`` per unit of work; the command line passes an object that
draws bars, a library user may pass nothing.
"""

from __future__ import annotations

from typing import Literal, Protocol

ProgressForm = Literal["auto", "bar", "plain", "json", "none"]
"""How progress is shown: "auto" is bars on a terminal and lines where stderr is a file or a pipe."""


class ProgressTask(Protocol):
    """One piece of work with a known or unknown total."""

    def advance(self, amount: int) -> None:
        """Say that ``amount`` more units are done."""

    def done(self) -> None:
        """Say that the work is finished."""


class Progress(Protocol):
    """The receiver of progress."""

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        """Open a task; ``unit`` is ``"bytes"`` or the plural name of what is counted."""

    def note(self, text: str) -> None:
        """Say one line that a person should see now."""


class SilentTask:
    def advance(self, amount: int) -> None:
        pass

    def done(self) -> None:
        pass


class Silent:
    """A ``Progress`` that nobody watches: the default of every function that takes one."""

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:  # noqa: ARG002
        return SilentTask()

    def note(self, text: str) -> None:
        pass
