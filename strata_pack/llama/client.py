"""Implements a typed client of llama.cpp servers, and of the OpenAI-compatible API of other servers.

Every request ends at its own time limit or at the deadline of the enclosing ``time_limit`` block, whichever comes
first, even if the server keeps sending single bytes. Read-only requests (properties, rendering, tokens) are retried if
the connection breaks; generations are retried only if the connection could not be opened, because they are not
idempotent.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import httpx2 as httpx

from strata_pack.llama.answers import (
    ChatReply,
    Completion,
    GarbledAnswer,
    Props,
    RequestRefused,
    ServerGone,
    ServerTimeout,
)

REQUEST_SECONDS = 300.0
"""Default time limit of one request, in seconds."""

ANSWER_LIMIT = 64 << 20
"""Maximum bytes of one answer."""

LINE_LIMIT = 8 << 20
"""Maximum bytes of one event of a stream."""

CONNECT_TRIES = 3
RETRY_PAUSE_SECONDS = 0.2

Message = Mapping[str, Any]


class Process(Protocol):
    """The process of a server started by us, which explains a broken connection better than the connection error."""

    @property
    def running(self) -> bool:
        """Whether the process is running."""

    def death(self) -> str | None:
        """Return how the process ended, with its last error lines; ``None`` while it runs."""


class LlamaClient:
    """One server at ``url``. Safe to use from several threads; ``close`` ends its connections.

    ``process`` is the server's process if we started it.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_seconds: float = REQUEST_SECONDS,
        process: Process | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self._process = process
        self._deadline: float | None = None
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # A generation must not be sent twice, so it must not use a kept-alive connection that the server is closing.
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=0)
        # Reading the system's certificates takes 0.1 s and is only needed for https.
        verify = True if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # trust_env=False: requests to a server on loopback must not go through a proxy of the environment.
        self._http = httpx.Client(headers=headers, trust_env=False, limits=limits, verify=verify)

    def close(self) -> None:
        """Close the connections. The server keeps running."""
        self._http.close()

    @contextmanager
    def time_limit(self, seconds: float) -> Iterator[None]:
        """End every request inside the block, in any thread, at the latest ``seconds`` from now."""
        before = self._deadline
        wanted = time.monotonic() + seconds
        self._deadline = wanted if before is None else min(wanted, before)
        try:
            yield
        finally:
            self._deadline = before

    # Properties of the server

    def health(self) -> bool:
        """Return whether the server reports that it is ready (``GET /health``)."""
        try:
            self._json("GET", "/health", timeout_seconds=5.0)
        except (RequestRefused, ServerGone, ServerTimeout, GarbledAnswer):
            return False
        return True

    def props(self) -> Props:
        """Return the server's properties (``GET /props``, llama.cpp only)."""
        return Props.from_dict(self._json("GET", "/props"))

    def models(self) -> list[str]:
        """Return the ids of the models that the server lists (``GET /v1/models``)."""
        data = self._json("GET", "/v1/models").get("data")
        if not isinstance(data, list):
            raise GarbledAnswer('there is no "data" in the list of models', where=self.url)
        return [entry["id"] for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]

    # From messages to a prompt, from text to tokens

    def apply_template(self, messages: Sequence[Message], tools: Sequence[Message] | None = None, **extra: Any) -> str:
        """Return the prompt that the server renders for ``messages`` (``POST /apply-template``, llama.cpp only).

        ``extra`` is added to the body: ``chat_template_kwargs={...}``, ``add_generation_prompt``, ...
        Raises ``RequestRefused`` with the template's own message if the template refuses the conversation.
        """
        body: dict[str, Any] = {"messages": list(messages), **extra}
        if tools is not None:
            body["tools"] = list(tools)
        prompt = self._json("POST", "/apply-template", body, safe=True).get("prompt")
        if not isinstance(prompt, str):
            raise GarbledAnswer('there is no "prompt" in the answer to /apply-template', where=self.url)
        return prompt

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Return the token ids of ``text`` (``POST /tokenize``, llama.cpp only).

        ``parse_special``: the text of a control token becomes that token, as in a prompt.
        """
        body = {"content": text, "add_special": add_special, "parse_special": parse_special}
        tokens = self._json("POST", "/tokenize", body, safe=True).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise GarbledAnswer('there is no list of "tokens" in the answer to /tokenize', where=self.url)
        return tokens

    # Generating

    def completion(self, prompt: str | Sequence[int] | Mapping[str, Any], **options: Any) -> Completion:
        """Generate after ``prompt`` and return the whole answer (``POST /completion``, llama.cpp only).

        A prompt with images is an object of ``prompt_string`` and ``multimodal_data``. ``options`` are llama.cpp's own
        (``n_predict``, ``grammar``, ``seed``, ``cache_prompt``, ...) and ``timeout_seconds``.
        """
        timeout_seconds = options.pop("timeout_seconds", None)
        body = {**options, "prompt": prompt if isinstance(prompt, (str, Mapping)) else list(prompt)}
        return Completion.from_dict(self._json("POST", "/completion", body, timeout_seconds=timeout_seconds))

    def stream_completion(self, prompt: str | Sequence[int], **options: Any) -> Iterator[Completion]:
        """Generate after ``prompt`` and yield the chunks as they arrive; the last one has ``stop`` and the timings."""
        timeout_seconds = options.pop("timeout_seconds", None)
        body = {**options, "prompt": prompt if isinstance(prompt, str) else list(prompt), "stream": True}
        last = False
        for event in self._events("/completion", body, timeout_seconds=timeout_seconds):
            chunk = Completion.from_dict(event)
            last = last or chunk.stop
            yield chunk
        if not last:
            raise ServerGone("the stream ended before the answer did", where=f"{self.url}/completion")

    def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, **options: Any
    ) -> ChatReply:
        """Ask for one chat reply and return it whole (``POST /v1/chat/completions``, any OpenAI-compatible server)."""
        return ChatReply.from_dict(self.chat_answer(messages, tools, **options))

    def chat_answer(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, **options: Any
    ) -> Mapping[str, Any]:
        """Ask for one chat reply and return the server's raw answer, for callers that check the answer itself."""
        timeout_seconds = options.pop("timeout_seconds", None)
        body = _chat_body(messages, tools, options)
        return self._json("POST", "/v1/chat/completions", body, timeout_seconds=timeout_seconds)

    def stream_chat(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, **options: Any
    ) -> Iterator[Mapping[str, Any]]:
        """Ask for one chat reply and yield its chunks as the server sends them.

        Raises ``GarbledAnswer`` for a content type other than ``text/event-stream`` and for a stream without ``[DONE]``
        at its end.
        """
        timeout_seconds = options.pop("timeout_seconds", None)
        body = {**_chat_body(messages, tools, options), "stream": True}
        yield from self._events("/v1/chat/completions", body, timeout_seconds=timeout_seconds, strict=True)

    # HTTP

    def _remaining(self, end: float, path: str) -> float:
        deadline = end if self._deadline is None else min(end, self._deadline)
        left = deadline - time.monotonic()
        if left <= 0:
            raise ServerTimeout("no answer within the time limit", where=self.url + path)
        return left

    def _alive(self) -> bool:
        """Return whether a retry can succeed."""
        return self._process is None or self._process.running

    @contextmanager
    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, end: float, tries: int
    ) -> Iterator[httpx.Response]:
        """Send one request, with retries after a refused connection, and yield the response with its body unread."""
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        headers = {} if body is None else {"Content-Type": "application/json"}
        for attempt in range(tries):
            left = self._remaining(end, path)
            request = self._http.build_request(
                method, self.url + path, content=content, headers=headers, timeout=httpx.Timeout(left)
            )
            try:
                response = self._http.send(request, stream=True)
            except httpx.ConnectError as error:
                if attempt + 1 == tries or not self._alive():
                    raise self._gone(path, error) from error
                time.sleep(min(RETRY_PAUSE_SECONDS, self._remaining(end, path)))
            except httpx.TimeoutException as error:
                raise ServerTimeout("no answer within the time limit", where=self.url + path) from error
            except httpx.HTTPError as error:
                raise self._gone(path, error) from error
            else:
                try:
                    yield response
                finally:
                    response.close()
                return

    def _gone(self, path: str, error: Exception) -> ServerGone:
        """Return the error for a broken connection; it names the death of the process, if that is the cause."""
        death = None if self._process is None else self._process.death()
        problem = death or f"the connection to the server failed ({error or type(error).__name__})"
        return ServerGone(problem, where=self.url + path)

    def _bytes(self, response: httpx.Response, path: str, end: float) -> Iterator[bytes]:
        """Yield the body in pieces, enforcing the deadline and the size limit."""
        size = 0
        try:
            for piece in response.iter_bytes():
                size += len(piece)
                if size > ANSWER_LIMIT:
                    raise GarbledAnswer(f"the answer is larger than {ANSWER_LIMIT} bytes", where=self.url + path)
                yield piece
                self._remaining(end, path)
        except httpx.TimeoutException as error:
            raise ServerTimeout("no answer within the time limit", where=self.url + path) from error
        except httpx.HTTPError as error:
            raise self._gone(path, error) from error

    def _json(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_seconds: float | None = None,
        safe: bool = False,
    ) -> dict[str, Any]:
        """Send one request and return the JSON object of its answer. ``safe``: it may be sent twice."""
        end = time.monotonic() + (self.timeout_seconds if timeout_seconds is None else timeout_seconds)
        again = 2 if safe or method == "GET" else 1
        for attempt in range(again):
            try:
                with self._send(method, path, body, end=end, tries=CONNECT_TRIES) as response:
                    raw = b"".join(self._bytes(response, path, end))
                    status, target = response.status_code, response.headers.get("location")
                break
            except ServerGone:
                if attempt + 1 == again or not self._alive():
                    raise
        if status != 200:
            raise RequestRefused(status, _refusal(status, raw, target), where=self.url + path)
        return _object(raw, self.url + path)

    def _events(
        self, path: str, body: Mapping[str, Any], *, timeout_seconds: float | None, strict: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Send one request and yield the JSON objects of its server-sent events, up to ``[DONE]`` or the end.

        ``strict``: the content type must be that of events, and ``[DONE]`` must be there.
        """
        end = time.monotonic() + (self.timeout_seconds if timeout_seconds is None else timeout_seconds)
        where = self.url + path
        with self._send("POST", path, body, end=end, tries=CONNECT_TRIES) as response:
            if response.status_code != 200:
                raw = b"".join(self._bytes(response, path, end))
                message = _refusal(response.status_code, raw, response.headers.get("location"))
                raise RequestRefused(response.status_code, message, where=where)
            kind = response.headers.get("content-type", "")
            if strict and not kind.lower().startswith("text/event-stream"):
                raise GarbledAnswer(f"the content type of the stream is {kind!r}, not text/event-stream", where=where)
            for line in _lines(self._bytes(response, path, end), where):
                name, _, data = line.partition(b":")
                if name == b"error":
                    raise RequestRefused(500, refusal_message(data), where=where)
                if name != b"data":
                    continue  # comments and event names are not used
                if data.strip() == b"[DONE]":
                    return
                event = _object(data, where)
                if "error" in event and "choices" not in event:
                    raise RequestRefused(500, refusal_message(data), where=where)
                yield event
            if strict:
                raise GarbledAnswer("the stream ends without `data: [DONE]`", where=where)


def _chat_body(
    messages: Sequence[Message], tools: Sequence[Message] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    body: dict[str, Any] = {**options, "messages": list(messages)}
    if tools is not None:
        body["tools"] = list(tools)
    return body


def _lines(pieces: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Split the pieces into lines. Each byte is examined once, so the time is linear in the length."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for line in whole:
            held.append(line)
            yield b"".join(held).rstrip(b"\r")
            held, size = [], 0
        if rest:
            held.append(rest)
            size += len(rest)
            if size > LINE_LIMIT:
                raise GarbledAnswer(f"one event is larger than {LINE_LIMIT} bytes", where=where)
    if held:
        yield b"".join(held).rstrip(b"\r")


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        shown = raw[:80].decode("utf-8", "replace")
        raise GarbledAnswer(f"the answer of the server is not JSON: {shown!r}", where=where) from None
    if not isinstance(value, dict):
        raise GarbledAnswer("the answer of the server is JSON, but not an object", where=where)
    return value


def _refusal(status: int, raw: bytes, target: str | None) -> str:
    """Return the reason of a refusal; for a redirection, which is not followed, its target."""
    redirected = 300 <= status < 400 and target
    return f"it redirects to {target}; use that URL" if redirected else refusal_message(raw)


def refusal_message(raw: bytes) -> str:
    """Return the message of an error body: llama.cpp's and OpenAI's ``error.message``, else the text itself."""
    text = raw[:4000].decode("utf-8", "replace").strip()
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return text
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else text
