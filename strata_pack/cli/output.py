"""Prints a command's output: text on a terminal, one JSON object with ``--json``, nothing with ``--quiet``."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from strata_pack.errors import MEANINGS, escaped
from strata_pack.progress import Progress, ProgressForm, ProgressTask

OutputMode = Literal["terminal", "json", "quiet"]
Color = Literal["auto", "always", "never"]

PIPED_WIDTH = 120
"""Width in columns of a table that is not shown on a terminal."""


class Out:
    """The output of a command. No command writes to stdout or stderr directly."""

    def __init__(
        self, mode: OutputMode, color: Color = "auto", progress: ProgressForm = "auto", *, quiet: bool = False
    ) -> None:
        self.mode = mode
        self._quiet = quiet or mode == "quiet"
        self._color = color
        self._progress = progress
        self._result: dict[str, Any] | None = None
        self._printed = False
        self._given: list[tuple[str, str]] = []
        self.paused: Callable[[], AbstractContextManager[None]] = nullcontext
        """Hides the progress bars during a question."""

    def remember(self, values: Iterable[object]) -> None:
        """Record the paths that the user gave, so that messages print them in that spelling."""
        for value in values:
            if isinstance(value, list | tuple):
                self.remember(value)
            elif _is_relative_path(value):
                self._given.append((os.path.abspath(str(value)), str(value)))
                self._given.append((str(Path(str(value)).absolute()), str(value)))
        self._given.sort(key=lambda pair: -len(pair[0]))

    def as_given(self, text: str) -> str:
        """Return ``text`` with every recorded path, and every path below it, in the user's spelling."""
        for absolute, given in self._given:
            text = re.sub(rf"(?<![\w/]){re.escape(absolute)}(?![\w-])", lambda _, given=given: given, text)  # type: ignore[misc]
        return text

    def line(self, text: str = "") -> None:
        """Print lines of the command's answer (on stderr in JSON mode, nowhere with ``--quiet``).

        Control characters, which a path or a template may hold, are escaped.
        """
        self.raw(escaped(self.as_given(text), keep="\n\t"))

    def raw(self, text: str) -> None:
        """Print ``text`` unchanged, for output that is redirected to a file."""
        if not self._quiet:
            print(text, file=sys.stderr if self.mode == "json" else sys.stdout, flush=True)

    def note(self, text: str) -> None:
        """Print one line that is not part of the answer, on stderr."""
        if not self._quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """Print why the command fails, on stderr; with ``--quiet`` too."""
        print(escaped(self.as_given(text), keep="\n\t"), file=sys.stderr, flush=True)

    def show(self, renderable: Any) -> None:
        """Print a rich table or text (its plain form when piped). On a narrow terminal cells are wrapped, never cut."""
        if self._quiet:
            return
        from rich.console import Console
        from rich.table import Table

        if isinstance(renderable, Table):
            for column in renderable.columns:
                column.overflow = "fold"
        stream = sys.stderr if self.mode == "json" else sys.stdout
        width = None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH
        console = Console(
            file=stream,
            width=width,
            highlight=False,
            soft_wrap=False,
            force_terminal=True if self._color == "always" else None,
            no_color=True if self._color == "never" else None,
        )
        console.print(renderable)

    def result(self, value: Mapping[str, Any]) -> None:
        """Set the JSON object of this command; it is printed at the end, in JSON mode only.

        ``finish`` adds ``ok``, which is false if and only if the exit code is not 0.
        """
        self._result = dict(value)

    def announce(self, value: Mapping[str, Any]) -> None:
        """Print the object now, for a command that runs until it is stopped."""
        self._print({"ok": True, **value})

    def finish(self, code: int, error: str | None = None) -> None:
        """Print the object once, with ``ok`` first and, if the command failed, its error."""
        failure = {"exit_code": code, "meaning": MEANINGS.get(code, "unknown")} if code else {}
        if error is not None:
            failure = {"error": error, **failure}
        known = {key: value for key, value in (self._result or {}).items() if key != "ok"}
        if self._result is not None or code:
            self._print({"ok": code == 0, **failure, **known})

    def _print(self, value: dict[str, Any]) -> None:
        if self.mode != "json" or self._printed:
            return
        self._printed = True
        value = self._spelled(value)
        text = json.dumps(value, ensure_ascii=False, indent=2)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            # The terminal is not UTF-8, or a file name is not valid text.
            text = json.dumps(value, indent=2)
        print(text, flush=True)

    def _spelled(self, value: Any) -> Any:
        """Return JSON data in which every path that was given, and what lies in it, is spelled as it was given.

        JSON has no infinite numbers and no NaN: they become null.
        """
        if isinstance(value, dict):
            return {key: self._spelled(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self._spelled(one) for one in value]
        if isinstance(value, str) and value.startswith(tuple(absolute for absolute, _ in self._given)):
            return self.as_given(value)
        return None if isinstance(value, float) and not math.isfinite(value) else value

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Yield a ``Progress``: bars on a terminal, plain lines when piped, nothing with ``--quiet``."""
        from strata_pack.cli.bars import open_progress

        form = "none" if self._quiet and self._progress == "auto" else self._progress
        with open_progress(form) as progress:
            self.paused = getattr(progress, "paused", nullcontext)
            try:
                yield _AsGiven(progress, self.as_given)
            finally:
                self.paused = nullcontext


class _AsGiven:
    """A ``Progress`` whose texts spell paths as the user did."""

    def __init__(self, progress: Progress, spell: Callable[[str], str]) -> None:
        self._progress, self._spell = progress, spell

    def task(self, label: str, total: int | None = None, unit: str = "bytes") -> ProgressTask:
        return self._progress.task(self._spell(label), total, unit)

    def note(self, text: str) -> None:
        self._progress.note(self._spell(text))


def _is_relative_path(value: object) -> bool:
    """Return whether ``value`` is a relative path: a ``Path``, or a text that names an existing file."""
    if isinstance(value, str):
        return bool(value) and "://" not in value and not os.path.isabs(value) and _is_there(value)
    return isinstance(value, Path) and not value.is_absolute() and str(value) != "-"


def _is_there(text: str) -> bool:
    try:
        return os.path.lexists(text)
    except ValueError:  # a NUL in a text that is no path
        return False
