"""Defines the exceptions: each is one sentence with the place, the reason and the remedy.

The command line prints ``str(error)`` and exits with ``error.exit_code``; the library raises the same objects.
"""

from __future__ import annotations

from pathlib import Path


def escaped(text: str, keep: str = "") -> str:
    r"""Return ``text`` with what would drive or confuse a terminal spelled out, as ``\x1b`` or ``\u202e``.

    These are controls, formats such as a change of direction, line separators and bytes of a path that are no text;
    the characters in ``keep`` stay.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


class StrataError(Exception):
    """A failure that has a sentence for the user.

    ``problem`` says what is wrong; ``where`` names the file, URL or option; ``remedy`` says what to do.
    """

    exit_code = 3

    def __init__(self, problem: str, *, where: str | Path | None = None, remedy: str | None = None) -> None:
        self.problem = problem
        self.where = None if where is None else str(where)
        self.remedy = remedy
        text = problem if self.where is None else f"{escaped(self.where)}: {problem}"
        super().__init__(text if remedy is None else f"{text}; {remedy}")


class CheckFailed(StrataError):
    """A check ran to its end and found a difference (golden, smoke, verify, lint, compare)."""

    exit_code = 1


class WrongUse(StrataError):
    """An argument or a combination of arguments that cannot work."""

    exit_code = 2


class BadInput(WrongUse):
    """A file or a message that is missing, damaged, hostile or of an unsupported kind."""


class EnvironmentFailure(StrataError):
    """The machine could not do it: network, disk, memory, a missing runtime, a dead server."""

    exit_code = 3
