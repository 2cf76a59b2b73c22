"""Starts ``strata-pack``: answers top page and version at once and leaves the rest to ``strata_pack.cli.app``."""

import os
import sys

from strata_pack import __version__

MINIMUM = 40
INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        _print(f"strata-pack {__version__}\n")
    elif arguments in ([], ["--help"], ["-h"]) and "_STRATA_PACK_COMPLETE" not in os.environ:
        from strata_pack.cli.commands import top_page

        _print(top_page(_width(), styled=_styled()))
        raise SystemExit(0 if arguments else 2)
    else:
        import signal

        # Until the command itself runs, Ctrl-C ends the process as it ends any other: no import is worth a traceback.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        from strata_pack.cli.app import run

        run()


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # What could not be written must not be tried again when the interpreter leaves.
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
