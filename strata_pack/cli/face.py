"""The face shared by all commands: one ``Out`` object that knows terminal, JSON and quiet, and one error table.

A command is a function that takes an ``out: Out`` and is wrapped by ``face``; it gets ``--json``, ``--quiet`` and
``--debug`` without naming them, and any ``StrataError`` it raises becomes one sentence and an exit code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

import typer

from strata_pack.errors import EnvironmentFailure, StrataError
from strata_pack.progress import Progress

Mode = Literal["terminal", "json", "quiet"]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, all else on stderr.")]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

INTERRUPTED = 130
TERMINATED = 143


class Out:
    """Where a command prints. No command writes to stdout or stderr by itself."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._told = False

    def line(self, text: str = "") -> None:
        """Print one line of the command's answer (on stderr in JSON mode, nowhere in quiet mode)."""
        if self.mode != "quiet":
            print(text, file=sys.stderr if self.mode == "json" else sys.stdout, flush=True)

    def note(self, text: str) -> None:
        """Print one line that is not part of the answer, on stderr."""
        if self.mode != "quiet":
            print(text, file=sys.stderr, flush=True)

    def show(self, renderable: Any) -> None:
        """Print a rich table or text (its plain form when piped)."""
        if self.mode == "quiet":
            return
        from rich.console import Console

        stream = sys.stderr if self.mode == "json" else sys.stdout
        width = None if stream.isatty() else 120
        Console(file=stream, width=width, highlight=False, soft_wrap=False).print(renderable)

    def result(self, value: Any) -> None:
        """Print ``value`` as the one JSON object of this command, in JSON mode only (a second one is dropped)."""
        if self.mode == "json" and not self._told:
            self._told = True
            text = json.dumps(value, ensure_ascii=False, indent=2)
            try:
                text.encode(sys.stdout.encoding or "utf-8")
            except UnicodeEncodeError:
                # A terminal that is not UTF-8, or a file's name that is no text.
                text = json.dumps(value, indent=2)
            print(text, flush=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Yield a ``Progress``: bars on a terminal, plain lines when piped, nothing with ``--quiet``."""
        from strata_pack.cli.bars import open_progress

        with open_progress(quiet=self.mode == "quiet") as progress:
            yield progress


def _terminate(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)


def fail(out: Out, error: StrataError, *, debug: bool) -> NoReturn:
    """Print the sentence of ``error`` and leave with its exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    leave(out, str(error), error.exit_code)


def leave(out: Out, sentence: str, code: int) -> NoReturn:
    """Print ``sentence`` on stderr, in JSON mode the object of the failure on stdout, and leave with ``code``."""
    print(f"strata-pack: {sentence}", file=sys.stderr, flush=True)
    # Last: a full disk or a reader that left must not cost the sentence.
    with contextlib.suppress(OSError):
        out.result({"ok": False, "error": sentence, "exit_code": code})
    raise SystemExit(code)


def face(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(..., out: Out)`` the three shared flags and the error table."""

    @functools.wraps(command)
    def wrapper(*args: Any, json_: bool = False, quiet: bool = False, debug: bool = False, **kwargs: Any) -> None:
        out = Out("json" if json_ else "quiet" if quiet else "terminal")
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate)
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            command(*args, out=out, **kwargs)
        except StrataError as error:
            fail(out, error, debug=debug)
        except KeyboardInterrupt:
            leave(out, "interrupted; what was finished is kept", INTERRUPTED)
        except BrokenPipeError:
            sys.stderr.close()
            raise SystemExit(0) from None
        except OSError as error:
            if debug:
                traceback.print_exc()
            where = f"{error.filename}: " if error.filename else ""
            leave(out, f"{where}{error.strerror or error}", EnvironmentFailure.exit_code)

    signature = inspect.signature(command, eval_str=True)
    kept = [p for p in signature.parameters.values() if p.name != "out"]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("json_", JsonFlag), ("quiet", QuietFlag), ("debug", DebugFlag))
    ]
    wrapper.__signature__ = signature.replace(parameters=[*kept, *shared])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*kept, *shared)}
    del wrapper.__wrapped__
    return wrapper
