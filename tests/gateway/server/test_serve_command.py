"""``strata-pack serve`` as a whole: its options, a server of its own that dies and comes back, and a graceful end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.errors import BadInput, WrongUse
from strata_pack.gateway.server.listening import bind
from strata_pack.gateway.server.run import call_format_of, check_exposure, gateway_template, read_keys
from tests.e2e.command import run
from tests.gateway.conftest import TEMPLATE_ID, events
from tests.gateway.server.served import Served


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "either a PACK or --upstream"),
        (["x.gguf", "--upstream", "http://127.0.0.1:1"], "either a PACK or --upstream"),
        (["--upstream", "http://127.0.0.1:1", "--host", "0.0.0.0"], "require a key"),
        (["--upstream", "nonsense", "--port", "0"], "not the URL of a server"),
        (["--upstream", "http://127.0.0.1:1", "--cors", "*"], "allows every web page"),
        (["--upstream", "http://127.0.0.1:1", "--cors", "page.example"], "is no origin"),
        (["/nowhere/pack", "--port", "0"], "no such pack"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options: list[str], words: str) -> None:
    done = run("serve", *options)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_an_upstream_that_is_not_there_is_an_environment_failure() -> None:
    done = run("serve", "--upstream", "http://127.0.0.1:9", "--port", "0", "--start-timeout", "1")
    assert done.code == 3
    assert "no llama-server was ready there" in done.err


def test_keys_come_from_the_option_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst\n\n  second  \n", encoding="utf-8")
    assert read_keys("zero", path) == ("zero", "first", "second")
    path.write_text("# none\n", encoding="utf-8")
    with pytest.raises(BadInput, match="has no key in it"):
        read_keys(None, path)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_other_addresses_demand_a_key(host: str) -> None:
    with pytest.raises(WrongUse, match="reachable from other machines"):
        check_exposure(host, ())
    check_exposure(host, ("key",))


def test_a_template_is_an_id_a_file_or_the_upstreams_own(tmp_path: Path) -> None:
    shipped = load_shipped(TEMPLATE_ID)
    path = tmp_path / "t.jinja"
    path.write_text(shipped.source, encoding="utf-8")
    for chosen in (
        gateway_template(TEMPLATE_ID, ""),
        gateway_template(str(path), "x"),
        gateway_template(None, shipped.source),
    ):
        assert (chosen.id, chosen.status) == (TEMPLATE_ID, "repaired")
    assert gateway_template(None, "{{ messages }}").id == "custom"
    with pytest.raises(WrongUse):
        gateway_template("no-such-template", "x")
    with pytest.raises(BadInput, match="no chat template"):
        gateway_template(None, "")


def test_the_form_of_calls_is_read_off_an_unknown_template() -> None:
    assert call_format_of("<tool_call>{{ x|tojson }}</tool_call>") == "json"
    assert call_format_of("<tool_call>\n<function={{ name }}>") == "auto"


def test_a_taken_port_is_an_error() -> None:
    from strata_pack.errors import EnvironmentFailure

    with bind("127.0.0.1", 0) as taken, pytest.raises(EnvironmentFailure, match="choose another --port"):
        bind("127.0.0.1", taken.getsockname()[1])


@pytest.fixture(scope="module")
def served(small_model: Path) -> Iterator[Served]:
    one = Served(str(small_model), "--template", TEMPLATE_ID, "--context", "2048")
    yield one
    if one.process.poll() is None:
        one.process.kill()
    one.process.communicate()


@pytest.mark.xdist_group("serve-command")
class TestServe:
    def test_it_announces_itself_and_answers(self, served: Served) -> None:
        assert served.facts["model"] == "small"
        assert served.facts["template"] == {"id": TEMPLATE_ID, "status": "repaired"}
        answer = served.post()
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 2

    def test_a_llama_server_that_dies_is_started_again(self, served: Served) -> None:
        os.kill(served.descendants()[-1], signal.SIGKILL)
        statuses = set()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status = served.post().status_code
            statuses.add(status)
            if status == 200 and 503 in statuses:
                break
            time.sleep(0.05)
        assert statuses == {200, 503}

    def test_sigterm_lets_a_stream_end_and_leaves_no_process(self, served: Served) -> None:
        llama = served.descendants()
        assert llama
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "stream": True}
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=120) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            served.process.send_signal(signal.SIGTERM)
            text = "\n".join([first, *lines])
        assert text.rstrip().endswith("data: [DONE]")
        assert events(text)[-1]["choices"][0]["finish_reason"] in ("length", "stop")
        _, errors = served.process.communicate(timeout=120)
        assert served.process.returncode == 143
        assert "Traceback" not in errors
        assert not any(Path(f"/proc/{pid}").exists() for pid in llama)
