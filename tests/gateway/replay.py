"""A stub llama-server that replays given texts over the ``/completion`` protocol of the real one (b11549).

It answers what the gateway asks: ``/completion`` (stream or not, with ``stop``, ``n_predict``, ``n_probs`` and
``response_fields``), ``/tokenize``, ``/props``, ``/health``, ``/slots``, ``/v1/completions`` and, for prompts with
images, ``/v1/chat/completions/input_tokens``. A token is one delta, an image is ``IMAGE_TOKENS``.
Standard library only; one event loop; a closed connection ends its replay, as with the real server.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

SPECIAL = re.compile(r"<\|[a-z_]+\|>")
MARKER = "<__media_R3pl4y__>"
IMAGE_TOKENS = 66
TAG = re.compile(r"</?[a-z_:]+>")
SPECIAL_TEXTS: dict[int, str] = {}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@dataclass
class Replay:
    """One answer: its ``deltas``, why it ends, and the ways in which it can misbehave."""

    deltas: Sequence[str]
    stop_type: str = "eos"
    delay: float = 0.0
    """Seconds between two deltas."""
    break_after: int | None = None
    """Deltas after which the connection drops."""
    status: int = 200
    error: dict[str, Any] | None = None
    cached: int = 0
    ids: Sequence[int] = ()
    """The token ids of the deltas; without them each one's number."""


@dataclass
class ReplayServer:
    """The server's state. ``script`` answers requests in order; when it is empty, ``default`` does."""

    default: Replay = field(default_factory=lambda: Replay(["Hello", " there"]))
    script: deque[Replay | Callable[[dict[str, Any]], Replay]] = field(default_factory=deque)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The paths of all requests that are no generation."""
    running: int = 0
    completed: int = 0
    dropped: int = 0
    ready: bool = True
    props: dict[str, Any] = field(default_factory=lambda: {
        "total_slots": 4, "model_path": "/nowhere/replay.gguf", "model_alias": "replay", "model_ftype": "Q4_K_M",
        "chat_template": TEMPLATE, "bos_token": "", "eos_token": "<|im_end|>", "build_info": "replay",
        "default_generation_settings": {"n_ctx": 4096},
    })  # fmt: skip
    keep_bodies: bool = True
    embeds: bool = False
    pieces: dict[int, str] | None = None
    """The vocabulary: tags that it holds are one token, and ``/detokenize`` knows it."""
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def start(self, port: int = 0) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, backlog=1024)
        host, number = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{number}"

    async def stop(self) -> None:
        """Stop listening and drop every connection, as a killed server does."""
        if self._server is not None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        size = re.search(r"content-length: (\d+)", head, re.I)
        data = await reader.readexactly(int(size[1])) if size else b""
        body = json.loads(data) if data else {}
        if path == "/completion":
            await self._completion(body, reader, writer)
            return False
        if path == "/v1/completions" and body.get("stream"):
            _stream_head(writer)
            writer.write(
                _chunk(b'data: {"choices":[{"text":"passed"}]}\n\n')
                + _chunk(b'data: {"choices":[],"timings":{"cache_n":3,"prompt_n":4,"predicted_n":2}}\n\n')
                + _chunk(b"data: [DONE]\n\n")
                + _chunk(b"")
            )
            return False
        self.asked.append(path)
        _answer(writer, *self._plain(method, path, body))
        await writer.drain()
        return "connection: close" not in head.lower()

    def _plain(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if not self.ready:
            return 503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
        if (method, path) == ("POST", "/tokenize"):
            tokens = tokenize(body["content"], parse_special=body.get("parse_special", True))
            if TAG.fullmatch(body["content"]):
                tokens = [token for token, text in (self.pieces or {}).items() if text == body["content"]] or tokens
            return 200, {"tokens": tokens}
        if self.pieces is not None and path == "/detokenize":
            return 200, {"content": "".join(self.pieces[token] for token in body["tokens"])}
        if path == "/props":
            return 200, self.props
        if path == "/v1/chat/completions/input_tokens":
            images = sum(part["type"] == "image_url" for part in body["messages"][0]["content"])
            return 200, {"object": "response.input_tokens", "input_tokens": 9 + images * IMAGE_TOKENS}
        if path == "/health":
            return 200, {"status": "ok"}
        if path == "/slots":
            slots = range(self.props["total_slots"])
            return 200, [{"id": number, "is_processing": number < self.running} for number in slots]
        if path in ("/v1/embeddings", "/v1/rerank"):
            message = "This server does not support embeddings. Start it with `--embeddings`"
            unable = {"error": {"code": 501, "message": message, "type": "not_supported_error"}}
            return (200, {"object": "list", "asked": body}) if self.embeds else (501, unable)
        if path == "/v1/completions":
            usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
            choice = {"index": 0, "text": "passed", "logprobs": None}
            return 200, {"object": "text_completion", "choices": [choice], "usage": usage}
        return 404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}

    async def _completion(
        self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:  # fmt: skip
        if not self.ready:
            _answer(writer, *self._plain("POST", "/completion", body))
            return
        if self.keep_bodies:
            self.bodies.append(body)
        prompt = body.get("prompt")
        if isinstance(prompt, dict) and prompt["prompt_string"].count(MARKER) != len(prompt["multimodal_data"]):
            message = "Failed to tokenize prompt"
            _answer(writer, 400, {"error": {"code": 400, "message": message, "type": "invalid_request_error"}})
            return
        step = self.script.popleft() if self.script else self.default
        replay = step(body) if callable(step) else step
        if replay.error is not None:
            _answer(writer, replay.status, {"error": replay.error})
            return
        deltas, stop_type, word = cut(list(replay.deltas), body, replay.stop_type)
        final = _final(body, deltas, stop_type, word, replay.cached)
        if not body.get("stream"):
            _answer(writer, 200, {**final, "content": "".join(deltas)})
            return
        self.running += 1
        gone = asyncio.ensure_future(reader.read(1))
        try:
            _stream_head(writer)
            if body.get("return_progress"):
                writer.write(_event(_progress(body)))
            for number, delta in enumerate(deltas):
                if number == replay.break_after:
                    return
                if replay.delay:
                    await asyncio.wait({gone}, timeout=replay.delay)
                if gone.done():
                    self.dropped += 1
                    return
                writer.write(_event(_partial(body, number, delta, len(deltas), replay)))
                await writer.drain()
            writer.write(_event(final) + _chunk(b""))
            await writer.drain()
            self.completed += 1
        finally:
            self.running -= 1
            gone.cancel()


def cut(deltas: list[str], body: dict[str, Any], stop_type: str) -> tuple[list[str], str, str]:
    """Cut ``deltas`` at the first stop string and at ``n_predict``; return them with the stop type and the word."""
    limit = body.get("n_predict", -1)
    word = ""
    text = "".join(deltas)
    found = [(text.find(stop), stop) for stop in body.get("stop") or () if stop in text]
    if found:
        end, word = min(found)
        kept: list[str] = []
        for delta in deltas:
            kept.append(delta[: max(0, end)])
            end -= len(delta)
            if end <= 0:
                break
        deltas, stop_type = kept, "word"
    if 0 <= limit < len(deltas):
        return deltas[:limit], "limit", ""
    return deltas, stop_type, word


def tokenize(text: str, *, parse_special: bool) -> list[int]:
    """Return one id per byte, and, with ``parse_special``, one per ``<|name|>``."""
    if not parse_special:
        return list(text.encode("utf-8"))
    tokens: list[int] = []
    position = 0
    for found in SPECIAL.finditer(text):
        tokens += text[position : found.start()].encode("utf-8")
        number = 1000 + sum(found.group().encode())
        SPECIAL_TEXTS[number] = found.group()
        tokens.append(number)
        position = found.end()
    return [*tokens, *text[position:].encode("utf-8")]


def prompt_text(prompt: str | list[int | str] | dict[str, Any]) -> str:
    """Return the text of a prompt as it came over the wire."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, dict):
        return str(prompt["prompt_string"])
    parts = [
        bytes([part]) if isinstance(part, int) and part < 256 else str(SPECIAL_TEXTS.get(part, part)).encode("utf-8")  # type: ignore[arg-type]
        for part in prompt
    ]
    return b"".join(parts).decode("utf-8")


def _size(body: dict[str, Any]) -> int:
    prompt = body.get("prompt", "")
    return len(prompt) if isinstance(prompt, (str, list)) else 0


def _partial(body: dict[str, Any], number: int, delta: str, count: int, replay: Replay) -> dict[str, Any]:
    event: dict[str, Any] = {
        "index": 0,
        "content": delta,
        "tokens": [replay.ids[number] if replay.ids else number],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": number + 1,
        "tokens_evaluated": _size(body),
    }
    if body.get("n_probs"):
        event["completion_probabilities"] = [_probability(delta, body["n_probs"])]
    if body.get("timings_per_token"):
        event["timings"] = _timings(body, replay.cached, count)
    return event


def _progress(body: dict[str, Any]) -> dict[str, Any]:
    size = _size(body)
    counts = {"tokens_predicted": 0, "tokens_evaluated": size}
    progress = {"total": size, "cache": 0, "processed": size, "time_ms": 5}
    return {"index": 0, "content": "", "tokens": [], "stop": False, "id_slot": 0, **counts, "prompt_progress": progress}


def _probability(delta: str, top: int) -> dict[str, Any]:
    entry = {"id": 7, "token": delta, "bytes": list(delta.encode()), "logprob": -0.5}
    return {**entry, "top_logprobs": [{**entry, "logprob": -0.5 - rank} for rank in range(top)]}


def _timings(body: dict[str, Any], cached: int, count: int) -> dict[str, Any]:
    return {"cache_n": cached, "prompt_n": _size(body) - cached, "predicted_n": count, "predicted_ms": 1.0}


def _final(body: dict[str, Any], deltas: list[str], stop_type: str, word: str, cached: int) -> dict[str, Any]:
    final = {
        "index": 0,
        "content": "",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "replay",
        "tokens_predicted": len(deltas),
        "tokens_evaluated": _size(body),
        "generation_settings": {},
        "prompt": "the prompt again",
        "truncated": False,
        "stop_type": stop_type,
        "stopping_word": word,
        "tokens_cached": cached,
        "timings": _timings(body, cached, len(deltas)),
    }
    wanted = body.get("response_fields")
    return {name: value for name, value in final.items() if name in wanted} if wanted else final


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(value: dict[str, Any]) -> bytes:
    return _chunk(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


def _stream_head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")


def _answer(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    data = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
