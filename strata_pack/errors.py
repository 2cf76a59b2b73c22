"""Defines the exceptions: each message is one sentence that names the file, URL or option, the reason and the remedy.

The command line prints ``str(error)`` and exits with ``error.exit_code``; the library raises the same objects.
"""

from __future__ import annotations

from pathlib import Path


def escaped(text: str, keep: str = "") -> str:
    r"""Return ``text`` with the characters that control or confuse a terminal escaped, as ``\x1b`` or ``\u202e``.

    These are control and format characters (such as a change of direction), line separators, and bytes of a path that
    are not valid text. The characters in ``keep`` are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


class StrataError(Exception):
    """A failure with a message for the user.

    ``problem`` says what is wrong, ``where`` names the file, URL or option, ``remedy`` says what to do about it.
    """

    exit_code = 3

    def __init__(self, problem: str, *, where: str | Path | None = None, remedy: str | None = None) -> None:
        self.problem = problem
        self.where = None if where is None else str(where)
        self.remedy = remedy
        text = problem if self.where is None else f"{escaped(self.where)}: {problem}"
        super().__init__(text if remedy is None else f"{text}; {remedy}")


class CheckFailed(StrataError):
    """A check was completed and found a difference (golden, smoke, verify, lint, compare)."""

    exit_code = 1


class WrongUse(StrataError):
    """An invalid argument or combination of arguments."""

    exit_code = 2


class BadInput(WrongUse):
    """A file or message that is missing, damaged, malicious or of an unsupported kind."""


class EnvironmentFailure(StrataError):
    """The environment failed: network, disk, memory, a missing runtime, a server that does not answer."""

    exit_code = 3


class Declined(StrataError):
    """The user said no to a question."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("stopped at the question; nothing was replaced or removed")


MEANINGS = {
    0: "fine",
    1: "the check ran and failed",
    2: "wrong use, or an input that is missing, damaged or unsupported",
    3: "the environment: network, disk, memory, a missing runtime, a dead server",
    70: "a fault of strata-pack",
    130: "interrupted, or a question answered with no",
    143: "terminated",
}
"""The exit codes of the commands."""
