"""Starts ``strata-pack``: prints the top page or the version directly and runs ``strata_pack.cli.app`` for all else."""

import os
import sys

from strata_pack import __version__

MINIMUM = 40
INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process with its exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        _print(f"strata-pack {__version__}\n")
    elif arguments in ([], ["--help"], ["-h"]) and "_STRATA_PACK_COMPLETE" not in os.environ:
        from strata_pack.cli.commands import top_page

        _print(top_page(_width(), styled=_styled()))
        raise SystemExit(0 if arguments else 2)
    else:
        import signal

        # Until the command runs, Ctrl-C ends the process by the signal, without a traceback out of an import.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from strata_pack.cli.app import run

        run()


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # The interpreter must not try to flush the unwritten output again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise SystemExit(0 if isinstance(error, BrokenPipeError) else 3) from None


def _width() -> int:
    try:
        columns = int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
    except (OSError, ValueError):
        columns = 80
    return max(MINIMUM, min(columns, 100))


def _styled() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
