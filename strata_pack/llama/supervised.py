"""Runs an external program, yields its output line by line, and ends all its processes if this process ends first."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence


def run_supervised(
    command: Sequence[str],
    heard: Callable[[str], None],
    *,
    environment: Mapping[str, str],
    timeout_seconds: float = threading.TIMEOUT_MAX,
) -> int:
    """Run a program that ends, with what it started, when this process ends; return its exit status.

    ``heard`` gets its output lines, which also end at carriage returns, because of progress bars. After
    ``timeout_seconds`` the program is ended.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "strata_pack.llama.supervisor", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The supervisor ends the program when its standard input closes.
        limit = threading.Timer(timeout_seconds, process.stdin.close)
        limit.daemon = True
        limit.start()
        try:
            rest = b""
            while data := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
                *lines, rest = re.split(rb"[\r\n]", rest + data)
                for line in lines:
                    if line.strip():
                        heard(line.decode("utf-8", "replace"))
            if rest.strip():
                heard(rest.decode("utf-8", "replace"))
        finally:
            limit.cancel()
            process.stdin.close()
            process.stdout.close()
    return process.returncode
