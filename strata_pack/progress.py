"""Defines the interface through which long work reports its progress.

A function takes a ``Progress`` and opens one ``ProgressTask`` for each piece of work. The command line passes an object
that draws progress bars; library users may pass their own or none.
"""

from __future__ import annotations

from typing import Literal, Protocol

ProgressForm = Literal["auto", "bar", "plain", "json", "none"]
"""How progress is shown: "auto" is bars on a terminal and lines where stderr is a file or a pipe."""


class ProgressTask(Protocol):
    """One piece of work, with a known or unknown total."""

    def advance(self, amount: int) -> None:
        """Report that ``amount`` more units are done."""

    def done(self) -> None:
        """Report that the work is finished."""


class Progress(Protocol):
    """The receiver of progress."""

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        """Open a task; ``unit`` is ``"bytes"`` or the plural name of what is counted."""

    def note(self, text: str) -> None:
        """Show one line of text to the user now."""


class SilentTask:
    def advance(self, amount: int) -> None:
        pass

    def done(self) -> None:
        pass


class Silent:
    """A ``Progress`` that shows nothing: the default of every function that takes one."""

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:  # noqa: ARG002
        return SilentTask()

    def note(self, text: str) -> None:
        pass
