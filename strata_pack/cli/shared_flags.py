"""Defines the flags that every command has, and maps every error to an exit code.

A command is a function that takes ``out: Out``; ``with_shared_flags`` adds ``--json``, ``--quiet``, ``--debug``,
``--color`` and ``--progress``, and turns any ``StrataError`` into one sentence and an exit code.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from strata_pack.cli.output import Color, Out
from strata_pack.errors import EnvironmentFailure, StrataError, WrongUse, escaped
from strata_pack.progress import ProgressForm

OUTPUT = "Output"

JsonFlag = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout, everything else on stderr.", rich_help_panel=OUTPUT),
]
QuietFlag = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors.", rich_help_panel=OUTPUT)]
DebugFlag = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=OUTPUT)]
ColorFlag = Annotated[
    Color, typer.Option("--color", help="When to use colors; NO_COLOR is read too.", rich_help_panel=OUTPUT)
]
ProgressFlag = Annotated[
    ProgressForm, typer.Option("--progress", help="Format of the progress on stderr.", rich_help_panel=OUTPUT)
]
SHARED: tuple[tuple[str, Any, Any], ...] = (
    ("json_", JsonFlag, False),
    ("quiet", QuietFlag, False),
    ("debug", DebugFlag, False),
    ("color", ColorFlag, "auto"),
    ("progress_form", ProgressFlag, "auto"),
)
"""Parameter, annotation and default of the flags that every command has."""

INTERRUPTED = 130
TERMINATED = 143
FAULT = 70


class _Terminated(BaseException):
    """SIGTERM has come."""


def _terminate(_signum: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated


def fail(out: Out, error: StrataError, *, debug: bool) -> NoReturn:
    """Print the message of ``error`` and exit with its exit code."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    leave(out, str(error), error.exit_code)


def leave(out: Out, sentence: str, code: int) -> NoReturn:
    """Print ``sentence`` on stderr and, in JSON mode, the failure as an object on stdout; exit with ``code``."""
    sentence = out.as_given(sentence)
    with contextlib.suppress(OSError):  # a full disk that stderr writes to must not cost the exit code
        print(f"strata-pack: {escaped(sentence)}", file=sys.stderr, flush=True)
    # Last, so that a full disk or a closed pipe does not suppress the message.
    with contextlib.suppress(OSError):
        out.finish(code, sentence)
    raise SystemExit(code)


def os_failure(error: OSError) -> StrataError:
    """Return ``error`` as a failure with an exit code; an invalid path from the user is ``WrongUse``."""
    wrong = isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError)
    kind = WrongUse if wrong and error.filename else EnvironmentFailure
    return kind(str(error.strerror or error), where=str(error.filename) if error.filename else None)


def fault(out: Out, error: Exception, *, debug: bool) -> NoReturn:
    """Leave after an exception that no user can be blamed for."""
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    remedy = "report it with what --debug and `strata-pack env` print"
    leave(out, f"this is a fault of strata-pack ({said}); {remedy}", FAULT)


def with_shared_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command(..., out: Out)`` the shared flags and the error table."""

    @functools.wraps(command)
    def wrapper(
        *args: Any,
        json_: bool = False,
        quiet: bool = False,
        debug: bool = False,
        color: Color = "auto",
        progress_form: ProgressForm = "auto",
        **kwargs: Any,
    ) -> None:
        out = Out("json" if json_ else "quiet" if quiet else "terminal", color, progress_form, quiet=quiet)
        out.remember(kwargs.values())
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate)
            if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            command(*args, out=out, **kwargs)
            out.finish(0)
        except typer.Exit as end:
            out.finish(end.exit_code)
            raise
        except StrataError as error:
            fail(out, error, debug=debug)
        except KeyboardInterrupt:
            leave(out, "interrupted; what was finished is kept", INTERRUPTED)
        except _Terminated:
            leave(out, "terminated; what was finished is kept", TERMINATED)
        except BrokenPipeError:
            sys.stderr.close()
            raise SystemExit(0) from None
        except OSError as error:
            fail(out, os_failure(error), debug=debug)
        except MemoryError as error:
            failure = EnvironmentFailure("there is not enough memory", remedy="free some, or take a smaller model")
            fail(out, failure.with_traceback(error.__traceback__), debug=debug)
        except Exception as error:
            if hasattr(error, "format_message"):  # of typer's own click or of the installed one
                raise
            fault(out, error, debug=debug)

    signature = inspect.signature(command, eval_str=True)
    kept = [p for p in signature.parameters.values() if p.name != "out"]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in SHARED
    ]
    wrapper.__signature__ = signature.replace(parameters=[*kept, *shared])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in (*kept, *shared)}
    del wrapper.__wrapped__
    return wrapper
