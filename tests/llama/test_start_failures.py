"""A server that does not come up: the reason, the last words, and nothing left running."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from strata_pack.errors import BadInput
from strata_pack.llama.runtimes import Runtime
from strata_pack.llama.server import LlamaServer, StartFailed
from tests.llama.processes import children

pytestmark = pytest.mark.xdist_group("tiny-server")


def _failure(model: Path, **options) -> StartFailed:
    before = set(children(os.getpid()))
    with pytest.raises(StartFailed) as caught:
        LlamaServer.start(model, warmup=False, **options)
    assert set(children(os.getpid())) <= before
    return caught.value


def _script(folder: Path, text: str) -> Runtime:
    """A stand-in for a llama-server binary that fails in a way the real one does only on broken machines."""
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Runtime("script", "binary", path=path)


def test_a_missing_model_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        LlamaServer.start(tmp_path / "none.gguf")


def test_a_file_that_is_no_model_is_named_as_the_reason(tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    failure = _failure(path)
    assert failure.reason == "model"
    assert "bad GGUF version" in str(failure)


def test_a_template_that_does_not_parse_is_named_as_the_reason(tiny, tmp_path):
    file = tmp_path / "bad.jinja"
    file.write_text("{{ nope( }}")
    failure = _failure(tiny, template_file=file)
    assert failure.reason == "template"
    assert "Unexpected token" in failure.log_tail


def test_a_template_that_refuses_every_conversation_is_named_as_the_reason(tiny, tmp_path):
    file = tmp_path / "never.jinja"
    file.write_text("{{ raise_exception('not today') }}")
    failure = _failure(tiny, template_file=file)
    assert failure.reason == "template"
    assert "not today" in str(failure)


def test_a_port_that_is_taken_is_named_before_anything_is_loaded(tiny):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        failure = _failure(tiny, port=port)
    assert (failure.reason, failure.log_tail) == ("port", "")
    assert str(port) in str(failure)


def test_a_server_that_is_not_ready_in_time_is_ended(tiny, tmp_path):
    runtime = _script(tmp_path, "import time\ntime.sleep(600)")
    failure = _failure(tiny, runtime=runtime, timeout_seconds=0.5)
    assert failure.reason == "timeout"


def test_a_server_that_ends_at_once_gives_its_status_and_last_words(tiny, tmp_path):
    runtime = _script(tmp_path, "import sys\nprint('error: strange weather', file=sys.stderr)\nsys.exit(7)")
    failure = _failure(tiny, runtime=runtime)
    assert failure.reason == "died"
    assert "status 7" in str(failure)
    assert "strange weather" in str(failure)


def test_a_server_killed_while_loading_is_taken_for_out_of_memory(tiny, tmp_path):
    runtime = _script(tmp_path, "import os\nos.kill(os.getpid(), 9)")
    assert _failure(tiny, runtime=runtime).reason == "memory"


def test_the_last_words_of_an_earlier_server_in_the_same_log_do_not_count(tiny, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("E old: failed to allocate, out of memory\n")
    runtime = _script(tmp_path, "import sys\nsys.exit(7)")
    failure = _failure(tiny, runtime=runtime, log_path=log)
    assert (failure.reason, failure.log_tail) == ("died", "")


def test_a_binary_that_cannot_be_run_is_named(tiny, tmp_path):
    path = tmp_path / "llama-server"
    path.write_text("not a program")
    failure = _failure(tiny, runtime=Runtime("text", "binary", path=path))
    assert failure.reason == "died"
    assert "Permission denied" in failure.log_tail


def test_a_free_port_that_is_snatched_is_replaced_by_another(tiny, tmp_path):
    runtime = _script(
        tmp_path,
        f"""
        import pathlib, sys
        tries = pathlib.Path({str(tmp_path / "tries")!r})
        tries.write_text((tries.read_text() if tries.exists() else "") + sys.argv[sys.argv.index("--port") + 1] + "\\n")
        print("error: couldn't bind HTTP server socket", file=sys.stderr)
        sys.exit(1)
        """,
    )
    assert _failure(tiny, runtime=runtime).reason == "port"
    ports = (tmp_path / "tries").read_text().split()
    assert len(ports) == 3


def test_too_little_memory_for_the_context_is_named_as_the_reason(smollm2):
    code = f"""
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        from pathlib import Path
        from strata_pack.llama.server import LlamaServer, StartFailed
        try:
            LlamaServer.start(Path({str(smollm2)!r}), context=200_000, warmup=False)
        except StartFailed as failure:
            print(failure.reason)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "memory", done.stderr
