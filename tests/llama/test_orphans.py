"""No death of ours leaves a server running, whichever process dies and however."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from strata_pack.llama.server import LlamaServer
from strata_pack.llama.supervised import run_supervised
from tests.llama.processes import gone, server_pid, tree, wait_for

pytestmark = pytest.mark.xdist_group("tiny-server")


def _owner(tiny: Path, told: Path, then: str = "signal.pause()") -> subprocess.Popen[bytes]:
    """Start a process that owns a server, tells the supervisor's id in ``told``, and then does ``then``."""
    code = f"""
        import os, signal, sys
        from pathlib import Path
        from strata_pack.llama.server import LlamaServer
        server = LlamaServer.start(Path({str(tiny)!r}), context=256, warmup=False, threads=1)
        Path({str(told)!r}).write_text(str(server.process.pid))
        {then}
        """
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_when_the_owner_is_killed_the_server_ends(tiny, tmp_path, number):
    owner = _owner(tiny, tmp_path / "pid")
    supervisor = int(wait_for(tmp_path / "pid"))
    everyone = tree(supervisor)
    assert len(everyone) == 2
    owner.send_signal(number)
    owner.wait()
    assert gone(everyone)


def test_when_the_owner_simply_forgets_the_server_it_ends(tiny, tmp_path):
    owner = _owner(tiny, tmp_path / "pid", then="os._exit(0)")
    supervisor = int(wait_for(tmp_path / "pid"))
    owner.wait()
    assert gone([supervisor])


def test_when_the_supervisor_is_killed_the_server_ends(tiny):
    with LlamaServer.start(tiny, context=256, warmup=False, threads=1) as server:
        child = server_pid(server.process.pid)
        os.kill(server.process.pid, signal.SIGKILL)
        assert gone([child])


def test_an_owner_that_left_a_copy_of_itself_still_takes_the_server_along(tiny, tmp_path):
    # The copy holds the pipe open; the supervisor must notice that its parent is another one.
    owner = _owner(tiny, tmp_path / "pid", then="os.fork() or os.execlp('sleep', 'sleep', '20'); os._exit(0)")
    supervisor = int(wait_for(tmp_path / "pid"))
    owner.wait()
    assert gone([supervisor])


def test_a_server_started_by_a_thread_survives_the_thread(tiny):
    started: list[LlamaServer] = []

    def start() -> None:
        started.append(LlamaServer.start(tiny, context=256, warmup=False, threads=1))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with started[0] as server:
        assert server.client.completion("x", n_predict=1, temperature=0.0).timings.predicted_n == 1


def test_a_stopped_process_is_ended_all_the_same(tiny):
    server = LlamaServer.start(tiny, context=256, warmup=False, threads=1)
    everyone = tree(server.process.pid)
    os.kill(server_pid(server.process.pid), signal.SIGSTOP)
    server.stop()
    assert gone(everyone)


def test_an_interrupted_program_takes_along_what_it_started():
    told: list[int] = []

    def heard(line: str) -> None:
        told.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_supervised(["sh", "-c", "sleep 1000 >/dev/null & echo $!; wait"], heard, environment=os.environ)
    assert gone(told)
