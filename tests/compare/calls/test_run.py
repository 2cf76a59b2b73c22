"""The command against a scripted server: the same numbers twice, planted damage found."""

from __future__ import annotations

import http.server
import json
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.compare.calls.run import CallsOptions, ask_model, ask_url, trained_context
from strata_pack.compare.calls.tasks import make_tasks
from strata_pack.errors import BadInput
from tests.compare.calls.test_score import written
from tests.conftest import ROOT
from tests.pack.tiny_gguf import STOCK, metadata, write_tiny

TEMPLATE = ROOT / "templates/qwen3.8-flash-next/chat_template.jinja"


class Scripted(http.server.ThreadingHTTPServer):
    """Answers ``/completion`` with what a perfect model would write, spoiled by ``damage`` for some tasks."""

    def __init__(self, damage: Callable[[str, str], str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.damage = damage
        self.answers = {str(task.messages[-1]["content"]): (task.id, written(task)) for task in make_tasks(0)}
        self.asked: list[dict[str, object]] = []
        self.context = 8192


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Scripted)
        self._answer({"default_generation_settings": {"n_ctx": server.context}})

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Scripted)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer({"tokens": [0] * (len(body["content"]) // 4)})
            return
        server.asked.append(body)
        # Every user's text stands in the prompt; the last of them is the task's.
        found = max(server.answers, key=lambda text: body["prompt"].rfind(text.strip()))
        task, reply = server.answers[found]
        text = "Let me see.\n</think>\n\n" + server.damage(task, reply)
        self._answer({"content": text, "stop": True, "stop_type": "eos"})

    def _answer(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Scripted]]:
    servers: list[Scripted] = []

    def start(damage: Callable[[str, str], str] = lambda _task, reply: reply) -> Scripted:
        servers.append(Scripted(damage))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def url(server: Scripted) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def noisy(task: str, reply: str) -> str:
    """Lose a letter of every third reply: what a damaged tensor does to a model that can call."""
    draw = random.Random(task)
    place = draw.randrange(len(reply))
    return reply if draw.random() < 0.67 else reply[:place] + reply[place + 1 :]


def test_a_model_that_calls_right_has_every_task(serve: Callable[..., Scripted]) -> None:
    result = ask_url(url(serve()), TEMPLATE, CallsOptions())
    assert [one.task for one in result.scores if not one.right] == []


def test_two_runs_give_the_same_numbers(serve: Callable[..., Scripted]) -> None:
    server = serve(noisy)
    first, second = (ask_url(url(server), TEMPLATE, CallsOptions()) for _ in range(2))
    assert first.to_dict() == second.to_dict()


def test_replies_are_asked_for_greedily_and_without_a_grammar(serve: Callable[..., Scripted]) -> None:
    server = serve()
    ask_url(url(server), TEMPLATE, CallsOptions(per_kind=1))
    assert {body["temperature"] for body in server.asked} == {0.0}
    assert not any("grammar" in body or "json_schema" in body for body in server.asked)


def test_planted_damage_is_found(serve: Callable[..., Scripted]) -> None:
    sound, damaged = (ask_url(url(serve(damage)), TEMPLATE, CallsOptions()) for damage in (lambda _, r: r, noisy))
    assert damaged.total.interval[1] < sound.total.value


def test_the_gate_fails_below_the_share_and_names_it(serve: Callable[..., Scripted], tmp_path: Path) -> None:
    page, card = tmp_path / "calls.html", tmp_path / "calls.svg"
    arguments = ["calls", "--url", url(serve(noisy)), "--template", str(TEMPLATE), "--min", "0.95"]
    result = CliRunner().invoke(app, [*arguments, "--html", str(page), "--svg", str(card), "--json"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    assert "right calls are below 95.0%" in result.stderr
    assert b"none-needed" in page.read_bytes()
    assert b"none-needed" in card.read_bytes()


def test_too_small_a_context_is_found_before_the_first_task(serve: Callable[..., Scripted]) -> None:
    server = serve()
    server.context = 512
    result = CliRunner().invoke(app, ["calls", "--url", url(server), "--template", str(TEMPLATE)])
    assert result.exit_code == 2
    assert re.search(r"its context is 512 tokens; the longest prompt has [\d,]+ and a reply up to 768", result.stderr)
    assert server.asked == []


def test_a_context_with_room_for_shorter_replies_names_their_limit(serve: Callable[..., Scripted]) -> None:
    server = serve()
    server.context = 3000
    with pytest.raises(BadInput, match=r"use --limit \d+") as caught:
        ask_url(url(server), TEMPLATE, CallsOptions(limit=2500))
    assert caught.value.remedy is not None
    limit = int(caught.value.remedy.split()[-1])
    assert ask_url(url(server), TEMPLATE, CallsOptions(limit=limit, per_kind=1)).total.tasks == 9


def test_the_context_that_a_model_was_trained_with_is_in_its_header(tmp_path: Path) -> None:
    assert trained_context(write_tiny(tmp_path / "m.gguf")) == metadata(STOCK)["llama.context_length"].value


def test_a_reference_that_is_not_there_is_found_before_the_models_tasks(serve: Callable[..., Scripted]) -> None:
    server = serve()
    arguments = ["calls", "--url", url(server), "--template", str(TEMPLATE), "--against", "none.gguf"]
    assert CliRunner().invoke(app, arguments).exit_code == 2
    assert server.asked == []


def test_a_model_and_a_url_exclude_each_other() -> None:
    result = CliRunner().invoke(app, ["calls", "model.gguf", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2


def test_a_url_needs_a_template() -> None:
    result = CliRunner().invoke(app, ["calls", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "needs a --template" in result.stderr


@pytest.mark.slow
def test_a_real_model_is_asked_the_same_twice(smollm2: Path) -> None:
    options = CallsOptions(per_kind=1, limit=48, template=TEMPLATE)
    assert ask_model(smollm2, options).to_dict() == ask_model(smollm2, options).to_dict()


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("{{ messages[0].content }}", 0, "does not show the tools to the model"),
        ("{{ raise_exception('no system') }}", 2, "refuses the conversation: no system; name another template"),
    ],
)
def test_a_template_that_does_not_suit_the_tasks_is_named(
    serve: Callable[..., Scripted], tmp_path: Path, text: str, code: int, words: str
) -> None:
    (tmp_path / "template.jinja").write_text(text)
    server = url(serve())
    arguments = ["calls", "--url", server, "--template", str(tmp_path / "template.jinja"), "--tasks", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code
    assert re.search(rf"{server}: .*{words}", result.stderr)
