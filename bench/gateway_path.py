"""What the ways of a request and of a token through the gateway cost, without sockets: chunks of llama-server in, the
client's out.

The processor time of one thread, which other processes change little but for the caches: ``--between`` megabytes of
other memory are read between two tokens, because that is what a gateway next to other programs meets. ``floor`` is a
loop that writes each chunk as it is.

    python bench/gateway_path.py [--streams 64] [--tokens 22] [--rounds 5] [--between 0 1 4] [--requests 600]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

from bench.gateway import BODY, TEMPLATE, TEXT, TOOLS  # noqa: E402
from strata_pack.chat.library import load_shipped  # noqa: E402
from strata_pack.chat.render.template import ChatTemplate  # noqa: E402
from strata_pack.gateway.control_tokens import ControlTokens  # noqa: E402
from strata_pack.gateway.engine import RunningModel  # noqa: E402
from strata_pack.gateway.prompt import Prompts  # noqa: E402
from strata_pack.gateway.server.protocol import LimitedConfig, LimitedProtocol  # noqa: E402
from strata_pack.gateway.server.run import uvicorn_config  # noqa: E402
from strata_pack.gateway.service import Gateway  # noqa: E402
from strata_pack.gateway.settings import GatewayLimits, Served, Settings  # noqa: E402
from strata_pack.gateway.upstream import Upstream  # noqa: E402
from strata_pack.gateway.wire import Wire  # noqa: E402

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Transport:
    """A connection whose other end takes everything."""

    written: list[bytes] = field(default_factory=list)
    closing: bool = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    close = abort

    def get_extra_info(self, *_: Any) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0


class UnconnectedUpstream(Upstream):
    """An upstream whose connections are fed by hand."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9")
        self.wires: list[Wire] = []

    async def _send(self, request: bytes, idle_seconds: float, until: float = math.inf) -> Wire:
        wire = Wire(asyncio.get_running_loop(), idle_seconds, until)
        wire.connection_made(Transport())  # type: ignore[arg-type]
        wire.write(request)
        self.wires.append(wire)
        return wire


def chunk_of(number: int) -> bytes:
    """Return token ``number`` of a stream as llama-server writes it."""
    event = {"index": 0, "content": TEXT[number % len(TEXT)], "tokens": [number], "stop": False, "id_slot": -1}
    counted = {**event, "tokens_predicted": number + 1, "tokens_evaluated": 900}
    data = b"data: " + json.dumps(counted, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def gateway_of(parallel: int) -> tuple[UnconnectedUpstream, LimitedConfig, bytes]:
    """Return an upstream, the configuration of its gateway, and the bytes of a request."""
    upstream = UnconnectedUpstream()
    template = ChatTemplate(load_shipped(TEMPLATE).source)
    control = ControlTokens(["<|im_start|>", "<|im_end|>"], guess=False)
    engine = RunningModel(upstream, Prompts(template, control, upstream))
    limits = GatewayLimits(parallel=parallel)
    config = uvicorn_config(Gateway(Settings(Served(model="m"), limits), engine))
    config.load()
    body = json.dumps({**BODY, "tools": TOOLS}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return upstream, config, head.encode() + body  # type: ignore[return-value]


def asked(config: LimitedConfig, request: bytes) -> tuple[LimitedProtocol, Transport]:
    """Return a client's connection on which ``request`` has arrived."""
    protocol = LimitedProtocol(config, ServerState(), {}, _loop=asyncio.get_running_loop())
    transport = Transport()
    protocol.connection_made(transport)  # type: ignore[arg-type]
    protocol.data_received(request)
    return protocol, transport


async def begun(streams: int) -> list[Wire]:
    """Return the upstream's ends of ``streams`` streams that wait for their first token."""
    upstream, config, request = gateway_of(streams)
    for _ in range(streams):
        asked(config, request)
    while len(upstream.wires) < streams:
        await asyncio.sleep(0)
    for wire in upstream.wires:
        wire.data_received(HEAD)
    await asyncio.sleep(0.1)
    return upstream.wires


async def request_costs(count: int, between: int) -> list[float]:
    """Return the median seconds of processor time of a request until the upstream has it, from its first token until
    the client has that, and until the end."""
    upstream, config, request = gateway_of(1)
    end = json.dumps({"content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 1, "tokens_evaluated": 900})
    last = f"{len(end) + 8:x}\r\ndata: {end}\n\n\r\n0\r\n\r\n".encode()
    other = bytearray(between << 20)
    costs: list[list[float]] = [[], [], []]
    for _ in range(count):
        other.count(1)
        times = [time.thread_time()]
        protocol, client = asked(config, request)
        while not upstream.wires:
            await asyncio.sleep(0)
        times.append(time.thread_time())
        wire = upstream.wires.pop()
        for data, mark in ((HEAD + chunk_of(0), b'"finish_reason":null'), (last, b"[DONE]")):
            other.count(1)
            began = time.thread_time()
            wire.data_received(data)
            while not any(mark in piece for piece in client.written):
                await asyncio.sleep(0)
            times.append(time.thread_time() - began)
        protocol.connection_lost(None)
        wire.connection_lost(None)
        for found, value in zip(costs, (times[1] - times[0], *times[2:]), strict=True):
            found.append(value)
    return [statistics.median(found[len(found) // 5 :]) for found in costs]


async def cost(wires: list[Wire], chunks: list[bytes], between: int, *, floor: bool) -> float:
    """Return the seconds of processor time a token; ``floor``: with nothing but the writing."""
    other = bytearray(between << 20)
    sink = Transport()
    spent = 0.0
    for chunk in chunks:
        for wire in wires:
            other.count(1)
            before = time.thread_time()
            (sink.write if floor else wire.data_received)(chunk)
            await asyncio.sleep(0)
            spent += time.thread_time() - before
    return spent / len(chunks) / len(wires)


async def measure(given: argparse.Namespace) -> None:
    wires = await begun(given.streams)
    chunks = [chunk_of(number) for number in range(given.tokens)]
    for between in given.between:
        through, floor = [
            min([await cost(wires, chunks, between, floor=floor) for _ in range(given.rounds)])
            for floor in (False, True)
        ]
        print(
            f"{between} MB between two tokens: {1e6 * through:.1f} us a token, floor {1e6 * floor:.1f} us", flush=True
        )
        asking, first, ending = [1e6 * seconds for seconds in await request_costs(given.requests, between)]
        print(
            f"{between} MB before each step of a request: {asking:.0f} us to the upstream, {first:.0f} us for the "
            f"first token, {ending:.0f} us for the end",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--streams", type=int, default=64)
    options.add_argument("--tokens", type=int, default=22)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--requests", type=int, default=600)
    options.add_argument("--between", type=int, nargs="+", default=[0, 1, 4])
    uvloop.run(measure(options.parse_args()))


if __name__ == "__main__":
    main()
