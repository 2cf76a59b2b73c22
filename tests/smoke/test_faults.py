"""Whatever goes wrong on the way is a clear line in the report, leaves no process behind, and sets the exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.chat.library import load_shipped
from strata_pack.cli.app import app
from strata_pack.errors import BadInput, WrongUse
from strata_pack.llama.runtimes import Runtime
from strata_pack.report import Check
from strata_pack.smoke import registry
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.run import SmokeOptions, run_smoke, run_smoke_url
from strata_pack.smoke.scenario import Scenario
from tests.llama.http_fault import body, drip, faulty_server, hang_up
from tests.llama.processes import children, gone, server_pid, tree
from tests.pack.tiny_pack import write_pack
from tests.smoke.tiny import write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")

FIRST, SECOND = "template-loaded", "repair-reasoning"


@pytest.fixture(autouse=True)
def _no_orphans():
    before = set(children(os.getpid()))
    yield
    assert gone(sorted(set(children(os.getpid())) - before))


@pytest.fixture
def two(options) -> SmokeOptions:
    return replace(options, only=(FIRST, SECOND))


def _play_with(monkeypatch, number: int) -> None:
    """Let the first scenario send the server signal ``number`` and then ask it something."""

    def play(stage: SmokeContext, scenario: Scenario) -> Iterable[Check]:
        os.kill(server_pid(stage.own_server().process.pid), number)
        stage.client.completion("x", n_predict=1)
        return [Check(scenario.id, scenario.proves, "passed")]

    monkeypatch.setattr("strata_pack.smoke.runner.SCENARIO_FUNCTIONS", {**registry.SCENARIO_FUNCTIONS, FIRST: play})


def test_a_server_that_dies_is_reported_and_the_next_scenario_gets_another(monkeypatch, tiny, two):
    _play_with(monkeypatch, signal.SIGKILL)
    report = run_smoke(tiny, options=two)
    died, after = report.checks
    assert (died.status, after.status, report.exit_code) == ("error", "passed", 3)
    assert "the server died" in died.detail
    assert "SIGKILL" in died.detail
    assert died.log


def test_a_server_that_hangs_is_given_up_at_the_time_limit_and_replaced(monkeypatch, tiny, two):
    _play_with(monkeypatch, signal.SIGSTOP)
    report = run_smoke(tiny, options=replace(two, limit_seconds=1.5))
    hung, after = report.checks
    assert (hung.status, after.status, report.exit_code) == ("error", "passed", 3)
    assert hung.detail == "no answer within the scenario's time limit of 1.5 s"


def test_a_server_that_keeps_dying_is_given_up(monkeypatch, tiny, two):
    _play_with(monkeypatch, signal.SIGKILL)
    monkeypatch.setattr("strata_pack.smoke.run.MAX_RESTARTS", 0)
    report = run_smoke(tiny, options=two)
    assert [check.id for check in report.checks] == [FIRST, "restart", SECOND]
    assert report.checks[1].status == "error"
    assert report.checks[2].detail == "not run: the server is gone"


def test_a_server_that_answers_garbage_is_reported(tiny, two, tmp_path):
    path = tmp_path / "llama-server"
    path.write_text(
        f"#!{sys.executable}\n"
        "import http.server, sys\n"
        "class Handler(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        text = b'{}' if self.path == '/health' else b'<html>hello</html>'\n"
        "        self.send_response(200)\n"
        "        self.send_header('Content-Length', str(len(text)))\n"
        "        self.end_headers()\n"
        "        self.wfile.write(text)\n"
        "    def do_POST(self):\n"
        "        self.do_GET()\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"
    )
    path.chmod(0o755)
    report = run_smoke(tiny, options=replace(two, runtime=Runtime("fake", "binary", path=path)))
    assert report.exit_code == 3
    assert "is not JSON: '<html>hello</html>'" in report.checks[0].detail


def test_a_port_that_is_taken_is_reported(tiny, two):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        report = run_smoke(tiny, options=replace(two, port=port))
    assert (report.checks[0].id, report.checks[0].status, report.exit_code) == ("start", "error", 3)
    assert f"port {port} is in use" in report.checks[0].detail
    assert {check.status for check in report.checks[1:]} == {"skipped"}


def test_a_template_that_the_server_refuses_is_the_pack_s_fault(tmp_path, two):
    model = write_tiny_model(tmp_path / "m.gguf", chat_template="{{ raise_exception('never') }}")
    report = run_smoke(model, options=two)
    assert (report.checks[0].id, report.checks[0].status, report.exit_code) == ("start", "failed", 1)
    assert "never" in report.checks[0].detail


def test_a_file_that_is_no_model_is_the_environment_s_or_the_user_s(tmp_path, two):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(BadInput):
        run_smoke(path, options=two)


def test_a_model_without_the_turn_markers_fails_and_names_them(tmp_path, options):
    source = load_shipped("qwen3.8-flash-next").source
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=source, special=("<|endoftext|>",), tags=())
    report = run_smoke(model, options=replace(options, only=("special-tokens",)))
    turns, tags, _ = report.checks
    assert (turns.status, tags.status, report.exit_code) == ("failed", "skipped", 1)
    assert "<|im_start|>, <|im_end|>" in turns.detail
    assert "<think>" in tags.detail


def test_out_of_memory_at_load_is_reported_on_the_command_line(smollm2):
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30));"
        "from strata_pack.cli.main import main; main()"
    )
    arguments = ("smoke", str(smollm2), "--context", "200000", "--anyway", "--only", FIRST, "--json")
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    (start, *_) = json.loads(done.stdout)["checks"]
    assert "not enough memory" in start["detail"]
    assert start["data"] == {"reason": "memory"}


def test_a_model_that_does_not_fit_is_not_started_and_what_needs_no_server_is_played_all_the_same(tiny, two):
    wanted = replace(two, only=("chat-template", FIRST), context=2_000_000_000)
    played, start, skipped = run_smoke(tiny, options=wanted).checks
    assert (played.id, played.status) == ("chat-template", "passed")
    assert (start.id, start.status, skipped.status) == ("start", "error", "skipped")
    assert "GB of KV cache and buffers" in start.detail
    assert start.detail.endswith("or start it anyway with --anyway")


def test_a_model_that_does_not_fit_is_started_all_the_same_with_anyway(tiny, two):
    # A runtime that says so instead of allocating: what counts is that it is started.
    binary = Runtime("fake", "binary", path=Path("/bin/false"))
    wanted = replace(two, context=2_000_000_000, anyway=True, runtime=binary)
    start = run_smoke(tiny, options=wanted).checks[0]
    assert (start.id, "ended with status 1" in start.detail) == ("start", True)


def _interrupted(command: list[str], ready) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Run ``command`` until ``ready(its pid)`` and press Ctrl-C; return how it ended and the processes there were."""
    code = "from strata_pack.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 90
    while not ready(process.pid) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    everyone = tree(process.pid)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told, errors = process.communicate(timeout=90)
    return subprocess.CompletedProcess(command, process.returncode, told, errors), everyone


@pytest.mark.parametrize("processes", [2, 3], ids=["while the server starts", "while scenarios are played"])
def test_ctrl_c_ends_the_run_with_130_and_no_process_and_leaves_an_earlier_page(tiny, tmp_path, processes):
    page = tmp_path / "report.html"
    page.write_text("an earlier one")
    arguments = ["smoke", str(tiny), "--only", "long-argument", "--only", "parallel", "--html", str(page)]
    done, everyone = _interrupted([*arguments, "--json"], lambda pid: len(tree(pid)) >= processes)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (130, 130), done.stderr
    assert page.read_text() == "an earlier one"
    assert gone(everyone)


def test_ctrl_c_in_prove_leaves_the_reports_of_the_pack_as_they_are(tmp_path):
    pack = write_pack(tmp_path / "p")
    reports = pack / "reports"
    reports.mkdir(exist_ok=True)
    (reports / "smoke.json").write_text("an earlier one")
    done, everyone = _interrupted(["prove", str(pack)], lambda pid: len(tree(pid)) >= 2)
    assert done.returncode == 130, done.stderr
    assert "Go on with" not in done.stdout
    assert {path.name: path.read_text() for path in reports.iterdir()} == {"smoke.json": "an earlier one"}
    assert gone(everyone)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (body(b"<html>"), "is not JSON"),
        (body(b'{"error": {"message": "who are you"}}', 401), "HTTP 401: who are you"),
        (hang_up, "the connection to the server failed"),
        (drip, "no answer within the time limit"),
    ],
)
def test_a_url_that_does_not_serve_is_reported(answer, words):
    with faulty_server(answer) as (url, _):
        report = run_smoke_url(url, options=SmokeOptions(start_seconds=1.0))
    assert (report.checks[0].id, report.checks[0].status, report.exit_code) == ("start", "error", 3)
    assert words in report.checks[0].detail


def test_what_was_asked_wrongly_is_refused_at_once(tiny, tmp_path):
    with pytest.raises(WrongUse, match=r"no scenario is called .nonsense."):
        run_smoke(tiny, options=SmokeOptions(only=("nonsense",)))
    with pytest.raises(WrongUse, match="no template 'no-such-template'"):
        run_smoke(tiny, template="no-such-template")
    with pytest.raises(WrongUse, match="not an http"):
        run_smoke_url("ftp://x")
    with pytest.raises(BadInput, match="no such pack or GGUF"):
        run_smoke(tmp_path / "none.gguf")


@pytest.mark.parametrize("arguments", [(), ("a.gguf", "--url", "http://127.0.0.1:9")])
def test_a_target_or_a_url_is_needed_not_both(arguments):
    done = CliRunner().invoke(app, ["smoke", *arguments])
    assert done.exit_code == 2
    assert "needs exactly one of TARGET and --url" in done.stderr
