"""Runs one server process and ends it when its owner ends, for whatever reason.

``python -m strata_pack.llama.supervisor COMMAND...`` starts COMMAND and reads standard input. The owner keeps the other
end of that pipe open; when it closes (a clean stop, a crash, SIGKILL), the supervisor ends COMMAND and its process
group, such as the compilers of a build. The kernel kills COMMAND if the supervisor dies (parent-death signal), so no
order of deaths leaves an orphan. That signal belongs to the *thread* that started the process, and an owner may start
servers from a thread that ends early; so the parent is this separate, single-threaded process with few imports.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and SIGKILL."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """On Linux, ask the kernel to kill this process when the thread that started it ends."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _started_by(parent: int) -> None:
    die_with_parent()
    if os.getppid() != parent:  # the parent died before the request
        os._exit(1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End ``process`` and what it started, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def supervise(command: list[str]) -> int:
    """Run ``command`` until it ends or standard input closes; return its exit status (negative: the signal)."""
    me, owner = os.getpid(), os.getppid()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _started_by(me), process_group=0)
    watched = sys.stdin.fileno()
    try:
        while process.poll() is None:
            # The time limit is for the case that another process has inherited the owner's pipe end.
            ready, _, _ = select.select([watched], [], [], 0.2)
            if (ready and not os.read(watched, 4096)) or os.getppid() != owner:
                break
    finally:
        _end(process)
    return process.returncode


def main() -> None:
    """Supervise the command in the arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the owner, which then closes the pipe
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    try:
        status = supervise(sys.argv[1:])
    except OSError as error:
        print(f"supervisor: {sys.argv[1]}: {error.strerror}", file=sys.stderr, flush=True)
        sys.exit(127)
    if status < 0:
        name = signal.Signals(-status).name
        print(f"supervisor: ended by {name} after {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
        sys.exit(128 - status)
    sys.exit(status)


if __name__ == "__main__":
    main()
