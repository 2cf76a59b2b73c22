"""What the gateway adds to a stream: latency, tokens lost, CPU per token, memory.

A replaying llama-server sends 100 tokens a second per stream; the gateway runs in a process of its own, and so do the
replay and the clients. Tokens per second are compared with the bare upstream, with the same client; the added time to
the first token comes from a probe that asks bare and through the gateway in turn while the streams run.
``--real MODEL`` measures before a real llama.cpp server too.

The replay and the clients compute on the same machine: their cost per token is reported too, because with two cores it
decides how long the gateway waits for one. The gateway's own figure is the time that its process ran.

``--busy N`` lets N processes compute all the time beside it, which is what a gateway next to a model has.

    python bench/gateway.py [--streams 1 8 64] [--tokens 600] [--busy 2] [--real model.gguf]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

TEMPLATE = "qwen3.8-flash-next"
RATE = 100.0
ROUNDS = 3
SPREAD = 0.97
"""Seconds over which the streams of a round start, so that they do not beat in step."""

TEXT = ["Let", " me", " think", " about", " this", ",", " step", " by", " step", ".", "\n"]
BODY = {"messages": [{"role": "user", "content": "Which jobs run?"}], "stream": True}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    }
]


@dataclass
class Stream:
    """What one client saw: seconds to the first token, seconds from first to last, tokens."""

    first: float
    span: float
    tokens: int


@dataclass(frozen=True)
class Request:
    """What a client asks whom; a token is an occurrence of ``mark`` in the answer."""

    host: str
    port: int
    path: str
    body: dict
    mark: bytes


async def read_stream(request: Request) -> Stream:
    """Post the body and read to the end."""
    data = json.dumps(request.body).encode()
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection(request.host, request.port)
    writer.write(
        f"POST {request.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    first = last = 0.0
    tokens = 0
    while part := await reader.read(65536):
        found = part.count(request.mark)
        if found:
            last = time.perf_counter()
            first = first or last
            tokens += found
    writer.close()
    return Stream(first - began, last - first, tokens)


async def round_of(count: int, request: Request) -> list[Stream]:
    """Run ``count`` streams that start one after the other within ``SPREAD`` seconds."""

    async def one(number: int) -> Stream:
        await asyncio.sleep(SPREAD * number / count)
        return await read_stream(request)

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads, in the scheduler's nanoseconds: a clock tick is as long as 100 tokens."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


REPLAY = """
import asyncio, sys, uvloop
sys.path.insert(0, {root!r})
from tests.gateway.replay import Replay, ReplayServer
async def main():
    server = ReplayServer(Replay({text!r} * {repeats}, delay={delay}), keep_bodies=False)
    server.props["total_slots"] = 256
    print(await server.start(), flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


@contextmanager
def process(command: list[str], pick: str):
    """Start ``command`` and yield its pid and the first word of its stdout that starts with ``pick``."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        url = ""
        while not url:
            line = child.stdout.readline()
            if not line:
                raise SystemExit(f"{command[0]} ended")
            url = next((word for word in line.split() if word.startswith(pick)), "")
        yield child.pid, url
    finally:
        child.terminate()
        child.wait()


@contextmanager
def busy(count: int):
    """Let ``count`` processes compute while the block runs."""
    children = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def replay_command(tokens: int) -> list[str]:
    repeats = max(1, tokens // len(TEXT))
    return [sys.executable, "-c", REPLAY.format(root=str(ROOT), text=TEXT, repeats=repeats, delay=1 / RATE)]


def gateway_command(url: str, template: str | None) -> list[str]:
    chosen = ["--template", template] if template else []
    return [
        str(Path(sys.executable).parent / "strata-pack"),
        "serve",
        "--upstream",
        url,
        *chosen,
        "--port",
        "0",
        "--parallel",
        "256",
    ]


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


async def probe(bare: Request, through: Request, until: asyncio.Event) -> list[tuple[float, float]]:
    """Return pairs of seconds to the first token, bare and through the gateway, asked in turn until ``until``.

    Pairs, because what else the machine does hits both alike.
    """
    pairs: list[tuple[float, float]] = []
    while not until.is_set():
        first = await read_stream(bare)
        second = await read_stream(through)
        pairs.append((first.first, second.first))
        await asyncio.sleep(0.02)
    return pairs


async def rounds(
    count: int, bare: Request, through: Request, short: tuple[Request, Request], pids: tuple[int, int]
) -> dict:
    """Run ``count`` streams bare, through the gateway, and again through it with a probe; return what was measured."""
    plain = await round_of(count, bare)
    before, own = [cpu_seconds(pid) for pid in pids], time.process_time()
    streams = await round_of(count, through)
    own = time.process_time() - own
    spent, replay = (cpu_seconds(pid) - began for pid, began in zip(pids, before, strict=True))
    over = asyncio.Event()
    probing = asyncio.create_task(probe(*short, over))
    await round_of(count, through)
    over.set()
    return {"bare": plain, "through": streams, "cpu": spent, "replay": replay, "clients": own, "pairs": await probing}


def measure(
    streams: int,
    upstream: str,
    gateway: str,
    pids: tuple[int, int],
    bare_body: dict,
    label: str,
    more: dict | None = None,
) -> dict:
    """Run ``ROUNDS`` rounds and return the row.

    ``pids`` are those of the gateway and of what it asks; ``more`` are further fields of the gateway's requests.
    """
    limit = {"max_tokens": bare_body["n_predict"]} if "n_predict" in bare_body else {}
    bare = Request(*address(upstream), "/completion", bare_body, b'"content":')
    body = {**BODY, "tools": TOOLS, **limit, **(more or {})}
    through = Request(*address(gateway), "/v1/chat/completions", body, b'"finish_reason":null')
    short = (
        replace(bare, body={**bare_body, "n_predict": 1}),
        replace(through, body={**body, "max_tokens": 1}),
    )
    asyncio.run(round_of(8, short[1]))
    found = [asyncio.run(rounds(streams, bare, through, short, pids)) for _ in range(ROUNDS)]
    pairs = sorted(second - first for one in found for first, second in one["pairs"])
    tokens = sum(stream.tokens - 1 for one in found for stream in one["through"])  # a chunk with the role is no token
    probed = len(pairs)
    bare_rate = rate_of([stream for one in found for stream in one["bare"]], 0)
    cpu, replay, clients = (sum(one[name] for one in found) for name in ("cpu", "replay", "clients"))
    return {
        "upstream": label,
        "streams": streams,
        "added_first_token_median_ms": 1000 * statistics.median(pairs),
        "added_first_token_p99_ms": 1000 * pairs[max(0, -(-probed * 99 // 100) - 1)],
        "probes": probed,
        "tokens_per_second_of_bare_percent": 100
        * rate_of([stream for one in found for stream in one["through"]], 1)
        / bare_rate,
        "cpu_us_per_token": 1e6 * cpu / tokens,
        "upstream_cpu_us_per_token": 1e6 * replay / tokens,
        "clients_cpu_us_per_token": 1e6 * clients / tokens,
        "cpu_s_per_1000_tokens": 1000 * cpu / tokens,
        "memory_mb": memory_mb(pids[0]),
        "tokens": tokens,
    }


def rate_of(streams: list[Stream], extra: int) -> float:
    """Return the mean tokens per second of streams that have ``extra`` chunks without a token."""
    return statistics.mean((one.tokens - extra) / one.span for one in streams if one.span)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--streams", type=int, nargs="+", default=[1, 8, 64])
    options.add_argument("--tokens", type=int, default=600)
    options.add_argument("--busy", type=int, default=0)
    options.add_argument("--real", type=Path, default=None)
    given = options.parse_args()
    rows = []
    with (
        process(replay_command(given.tokens), "http://") as (replay, upstream),
        process(gateway_command(upstream, TEMPLATE), "http://") as (pid, gateway),
    ):
        bare_body = {"prompt": "x", "stream": True}
        for processes in sorted({0, given.busy}):
            label = "replay, 100 tokens/s" + (f", {processes} busy" if processes else "")
            with busy(processes):
                for streams in given.streams:
                    rows.append(measure(streams, upstream, gateway, (pid, replay), bare_body, label))
                    show(rows[-1])
    if given.real is not None:
        rows += real_rows(given.real)
    machine = {
        "cpu": next(
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    out = ROOT / "bench/results/gateway.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")


def real_rows(model: Path) -> list[dict]:
    """Return rows for a real llama.cpp server with two slots, 256 tokens a stream; both sides send the same prompt."""
    from strata_pack.chat.library import load_shipped
    from strata_pack.chat.render.template import ChatTemplate
    from strata_pack.llama.server import LlamaServer

    prompt = ChatTemplate(load_shipped(TEMPLATE).source).render(BODY["messages"], add_generation_prompt=True)
    rows = []
    with (
        LlamaServer.start(model, parallel=2, context=2048, threads=1) as server,
        process(gateway_command(server.url, TEMPLATE), "http://") as (pid, gateway),
    ):
        (end,) = server.client.tokenize(server.client.props().eos_token)
        for streams in (1, 2):
            bare = {
                "prompt": prompt,
                "stream": True,
                "n_predict": 256,
                "cache_prompt": True,
                "logit_bias": [[end, -100]],
            }
            # No tools: a call that the model begins is held back, and so would be its tokens.
            more = {"logit_bias": {str(end): -100}, "tools": None}
            rows.append(
                measure(streams, server.url, gateway, (pid, server.process.pid), bare, "llama.cpp, SmolLM2-135M", more)
            )
            show(rows[-1])
    return rows


def show(row: dict) -> None:
    print(
        f"{row['upstream']:28} {row['streams']:3} streams  first token +{row['added_first_token_median_ms']:.2f} ms "
        f"(p99 +{row['added_first_token_p99_ms']:.2f})  {row['tokens_per_second_of_bare_percent']:.1f} % of bare  "
        f"{row['cpu_us_per_token']:.1f} us/token (upstream {row['upstream_cpu_us_per_token']:.1f}, "
        f"clients {row['clients_cpu_us_per_token']:.1f})  {row['memory_mb']:.0f} MB",
        flush=True,
    )


if __name__ == "__main__":
    main()
