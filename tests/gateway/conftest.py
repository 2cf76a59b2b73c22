"""A gateway on a real socket before a replaying upstream, both in one thread with one event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2 as httpx
import pytest
import uvicorn

from strata_pack.chat.library import load_shipped
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.gateway.control_tokens import ControlTokens
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.server.listening import bind, url_of
from strata_pack.gateway.server.run import GatewayServer, make_gateway, uvicorn_config
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import GatewayLimits, Served, Settings
from strata_pack.gateway.upstream import Upstream
from strata_pack.llama.server import LlamaServer
from tests.gateway.replay import Replay, ReplayServer, prompt_text
from tests.pack.tiny_gguf import write_tiny
from tests.smoke.tiny import write_tiny_model

T = TypeVar("T")
DATA = Path(__file__).parent.parent / "data"
PATIENCE = 60.0
"""Seconds after which a test gives up what should come at once; only a failure, never a busy machine, reaches it."""
TEMPLATE_ID = "qwen3.8-flash-next"
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
SETTINGS = Settings(
    Served("test-model", quant="Q4_K_M", template_id=TEMPLATE_ID, build="b1-replay"),
    GatewayLimits(parallel=4, queue=8, drain_seconds=2),
)


def cases(name: str) -> list[dict[str, Any]]:
    """Return the cases of a JSON-lines file below tests/data."""
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """Return an OpenAI tool."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


LIST_JOBS = tool("list_jobs")
LOOKUP = tool("lookup", q={"type": "string"}, limit={"type": "integer"})
IMPLICIT = "Go.\n\n<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"


class House:
    """The thread: ``replay`` is the stub upstream, ``gateway`` the gateway's state, ``url`` where it listens."""

    def __init__(self, settings: Settings = SETTINGS, *, upstream_url: str | None = None, idle: float = 300.0) -> None:
        self.settings = settings
        self.replay = ReplayServer()
        self._upstream_url = upstream_url
        self._idle = idle
        self._ready = threading.Event()
        # One client: each new one reads all certificate authorities of the machine.
        self.http = httpx.Client(timeout=2 * PATIENCE, verify=False, trust_env=False)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.gateway = await self.make()
        sock = bind("127.0.0.1", 0)
        self.url = url_of(sock)
        self.server = GatewayServer(self.config_of(self.gateway), self.gateway)
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._ready.set()
        await self.server._serve(sockets=[sock])
        await self.replay.stop()
        sock.close()

    def config_of(self, gateway: Gateway) -> uvicorn.Config:
        """Return how ``gateway`` is served."""
        return uvicorn_config(gateway)

    async def make(self) -> Gateway:
        self.upstream_url = self._upstream_url or await self.replay.start()
        upstream = Upstream(self.upstream_url, idle_seconds=self._idle)
        template = ChatTemplate(load_shipped(TEMPLATE_ID).source)
        prompts = Prompts(template, ControlTokens(CONTROL, guess=False), upstream)
        return Gateway(self.settings, RunningModel(upstream, prompts))

    def __enter__(self) -> House:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.server.should_exit = True
        self._thread.join(20)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    # Asking

    def post(self, body: dict[str, Any], path: str = "/v1/chat/completions", **more: Any) -> httpx.Response:
        return self.http.post(self.url + path, json=body, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.http.get(self.url + path, **more)

    def chat(self, text: str | list[str], **fields: Any) -> dict[str, Any]:
        """Return the reply to a chat request whose upstream generates ``text``."""
        self.says(text)
        answer = self.post({"messages": [{"role": "user", "content": "Hi"}], **fields})
        assert answer.status_code == 200, answer.text
        value: dict[str, Any] = answer.json()
        return value

    def stream(self, text: str | list[str], path: str = "/v1/chat/completions", **fields: Any) -> list[dict[str, Any]]:
        """Return the data of all events of a streamed reply, without ``[DONE]``."""
        self.says(text)
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **fields}
        answer = self.post(body, path)
        assert answer.status_code == 200, answer.text
        return events(answer.text)

    def says(self, text: str | list[str], **more: Any) -> None:
        """Let the next completion generate ``text``, cut into deltas of three characters unless it is a list."""
        deltas = [text[i : i + 3] for i in range(0, len(text), 3)] if isinstance(text, str) else text
        self.replay.script.append(Replay(deltas, **more))

    def emptied(self) -> Self:
        """Forget the script and what the upstream got; the totals go on counting."""
        self.replay.script.clear()
        self.replay.bodies.clear()
        return self

    @property
    def prompt(self) -> str:
        """The last prompt that the upstream got, as text."""
        return prompt_text(self.replay.bodies[-1]["prompt"])

    def totals(self) -> dict[str, Any]:
        value: dict[str, Any] = self.get("/metrics").json()["totals"]
        return value

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait until ``condition`` holds; False after ``PATIENCE``, which only a failure reaches."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def events(text: str) -> list[dict[str, Any]]:
    """Return the JSON of every ``data:`` line."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def join_chunks(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return reasoning, content, calls and finish reason of the chunks of one choice."""
    reasoning, content, finish = "", "", None
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            reasoning += delta.get("reasoning_content") or ""
            content += delta.get("content") or ""
            finish = choice["finish_reason"] or finish
            for piece in delta.get("tool_calls", []):
                call = calls.setdefault(piece["index"], {"name": "", "arguments": "", "id": piece.get("id")})
                call["name"] += piece["function"].get("name", "")
                call["arguments"] += piece["function"].get("arguments", "")
    return {"reasoning": reasoning, "content": content, "calls": list(calls.values()), "finish": finish}


@pytest.fixture(scope="session")
def shared_house() -> Iterator[House]:
    with House() as house:
        yield house


@pytest.fixture
def house(shared_house: House) -> House:
    """The shared gateway with an empty script; its totals go on counting."""
    return shared_house.emptied()


@pytest.fixture
def fresh_house() -> Iterator[House]:
    """A gateway of one test's own, whose counters start at zero."""
    with House() as house:
        yield house


def with_limits(**limits: Any) -> Settings:
    return replace(SETTINGS, limits=replace(SETTINGS.limits, **limits))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# Before a real llama.cpp server

REAL_SETTINGS = Settings(Served(), GatewayLimits(parallel=0, queue=8))


class RealHouse(House):
    """A gateway made as the command makes it."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.settings)
        self._made = gateway

    async def make(self) -> Gateway:
        return self._made


@contextmanager
def sent_prompts(house: House) -> Iterator[list[Any]]:
    """Yield a list to which the prompts that the gateway sends to its server during the block are added."""
    sent: list[Any] = []
    upstream = house.gateway.engine.upstream
    opened = upstream.open

    async def spy(path: str, body: Any, **more: Any) -> Any:
        sent.append(body["prompt"])
        return await opened(path, body, **more)

    upstream.open = spy  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        del upstream.open  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with ChatML's tokens: a server's protocol needs no trained weights (``tests/e2e`` has those)."""
    folder = tmp_path_factory.mktemp("small")
    return write_tiny_model(folder / "small.gguf", chat_template=load_shipped(TEMPLATE_ID).source, tags=())


@pytest.fixture(scope="module")
def server(small_model: Path) -> Iterator[LlamaServer]:
    with LlamaServer.start(small_model, context=8192, parallel=2, warmup=False, threads=1) as started:
        yield started


@pytest.fixture(scope="module")
def byte_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """A server of a tiny model whose tokens are bytes: what grammars do needs no trained weights."""
    model = write_tiny(tmp_path_factory.mktemp("bytes") / "tiny.gguf")
    with LlamaServer.start(model, context=256, parallel=1, warmup=False, threads=1) as started:
        yield started


@pytest.fixture(scope="module")
def real(server: LlamaServer) -> Iterator[House]:
    gateway = make_gateway(server.url, REAL_SETTINGS, template="qwen3.8-flash-next")
    with RealHouse(gateway) as house:
        yield house
