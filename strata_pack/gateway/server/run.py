"""Make a gateway from a URL and a template, reading the upstream's properties, and serve until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import re
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from strata_pack.chat.library import list_templates, named_template, status_of
from strata_pack.chat.render.template import ChatTemplate, read_template
from strata_pack.errors import BadInput, EnvironmentFailure, StrataError, WrongUse
from strata_pack.files import read_bytes
from strata_pack.gateway.control_tokens import (
    ControlTokens,
    asked_control_tokens,
    gguf_control_tokens,
    template_literals,
)
from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.server.access import Sink
from strata_pack.gateway.server.app import create_app
from strata_pack.gateway.server.browsers import ANY
from strata_pack.gateway.server.keys import Keys
from strata_pack.gateway.server.listening import Tls
from strata_pack.gateway.server.protocol import ConnectionLimits, LimitedConfig
from strata_pack.gateway.server.rereading import reread
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import LOOPBACK, UNKNOWN, Served, Settings
from strata_pack.gateway.token_ids import TokenPieces, tags_are_tokens
from strata_pack.gateway.upstream import Upstream
from strata_pack.gateway.vision import vision_of
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.server import LlamaServer
from strata_pack.parsing import DIALECTS, CallFormat, dialect_of

log = logging.getLogger("strata_pack.gateway")

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+/?", re.IGNORECASE)
READY_SECONDS = 60.0
ANSWER_SECONDS = 0.7
SAY_AGAIN_SECONDS = 30.0
KEY_FILE_LIMIT = 1 << 20
COLLECTED_AFTER = (20_000, 10, 10)
"""Thresholds of Python's garbage collector."""

RESTART_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each restart of a server that keeps dying; the last value repeats."""

WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class TemplateChoice:
    """A template text with its shipped id ("custom" for any other), and its status."""

    source: str
    id: str
    status: str
    call_format: CallFormat


def gateway_template(wanted: str | None, fallback: str) -> TemplateChoice:
    """Return the template named by ``wanted`` (a shipped id or a file), or ``fallback``, the upstream's template.

    Raises ``WrongUse`` if ``wanted`` is neither, ``BadInput`` if there is no template.
    """
    source = fallback
    if wanted is not None:
        named = named_template(wanted)
        source = read_template(named) if isinstance(named, Path) else named.source
    if not source.strip():
        raise BadInput("the upstream has no chat template", remedy="name one with --template")
    for shipped in list_templates():
        if shipped.source == source:
            form: CallFormat = "json" if shipped.formats == ("json",) else "auto"
            return TemplateChoice(source, shipped.id, status_of(source), form)
    return TemplateChoice(source, "custom", status_of(source), call_format_of(source))


def call_format_of(source: str) -> CallFormat:
    """Return the parser's ``call_format`` for an unknown template: "json" if it teaches calls as JSON."""
    if dialect_of(source) is not DIALECTS["qwen"]:
        return "auto"
    return "json" if "<tool_call>" in source and "<function=" not in source else "auto"


def read_keys(key: str | None, key_file: Path | None) -> tuple[str, ...]:
    """Return the API keys: ``key`` and those in the file, one per line; ``#`` starts a comment line."""
    keys = [key] if key else []
    if key_file is not None:
        lines = read_bytes(key_file, KEY_FILE_LIMIT).decode("utf-8-sig", "replace").splitlines()
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise BadInput("has no key in it", where=key_file, remedy="write one key a line")
        keys += found
    return tuple(keys)


def check_exposure(host: str, keys: tuple[str, ...]) -> None:
    """Raise ``WrongUse`` for a gateway reachable from other machines without API keys."""
    if host not in LOOPBACK and not keys:
        raise WrongUse(
            f"--host {host} makes the gateway reachable from other machines",
            remedy="require a key with --api-key or --api-key-file",
        )


def check_origins(origins: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """Raise ``WrongUse`` for a value that is no origin, and for ``*`` without API keys."""
    for origin in origins:
        if origin == ANY:
            if not keys:
                raise WrongUse(
                    "--cors '*' allows every web page", remedy="name the origins, or require a key with --api-key"
                )
        elif not ORIGIN.fullmatch(origin):
            raise WrongUse(f"--cors {origin} is no origin", remedy="write it as https://HOST or http://HOST:PORT")


def make_gateway(
    url: str,
    settings: Settings,
    *,
    template: str | None = None,
    model_file: Path | None = None,
    upstream_key: str | None = None,
    fetch_images: bool = False,
    ready_seconds: float = READY_SECONDS,
    note: Callable[[str], Any] = lambda _: None,
) -> Gateway:
    """Return the gateway of the llama-server at ``url``, whose properties are read first.

    ``template`` is a shipped id or a file, ``None`` for the upstream's own; ``model_file`` the GGUF that the upstream
    serves, to read the vocabulary's control tokens from; ``fetch_images``: images at https addresses are fetched.
    Raises ``EnvironmentFailure`` if the upstream is not ready within ``ready_seconds``; ``note`` gets a message within
    a second of waiting.
    """
    engine = make_engine(
        url,
        settings.served,
        template=template,
        model_file=model_file,
        upstream_key=upstream_key,
        fetch_images=fetch_images,
        ready_seconds=ready_seconds,
        note=note,
    )
    limits = settings.limits
    if limits.parallel < 1:
        limits = replace(limits, parallel=engine.slots)
    return Gateway(replace(settings, limits=limits), engine)


def make_engine(
    url: str,
    served: Served,
    *,
    template: str | None = None,
    model_file: Path | None = None,
    upstream_key: str | None = None,
    fetch_images: bool = False,
    ready_seconds: float = READY_SECONDS,
    note: Callable[[str], Any] = lambda _: None,
) -> RunningModel:
    """Return the ``RunningModel`` of the llama-server at ``url``; the arguments are those of ``make_gateway``."""
    upstream = Upstream(url, api_key=upstream_key)
    with contextlib.closing(LlamaClient(url, api_key=upstream_key)) as client:
        _wait_until_ready(client, ready_seconds, note)
        props = client.props()
        chosen = gateway_template(template, props.chat_template)
        control = _control_tokens(chosen.source, client, model_file or Path(props.model_path))
        dialect = dialect_of(chosen.source)
        reliable = tags_are_tokens(dialect, client.tokenize)
        adds_bos = bool(props.bos_token) and client.tokenize("", add_special=True) == client.tokenize(props.bos_token)
    compiled = ChatTemplate(chosen.source, bos_token=props.bos_token, eos_token=props.eos_token)
    prompts = Prompts(
        compiled,
        control,
        upstream,
        call_format=chosen.call_format,
        bos=props.bos_token,
        adds_bos=adds_bos,
        vision=vision_of(props.raw, upstream, control.known, fetch=fetch_images),
    )
    alias, kind = str(props.raw.get("model_alias") or props.model_path), str(props.raw.get("model_ftype") or "")
    served = replace(
        served,
        model=served.model or Path(alias).name.removesuffix(".gguf") or "model",
        quant=kind if served.quant == UNKNOWN and kind else served.quant,
        build=str(props.raw.get("build_info") or ""),
        template_id=chosen.id,
        template_status=chosen.status,
    )
    pieces = TokenPieces(upstream, dialect, reliable=reliable)
    return RunningModel(upstream, prompts, chosen.call_format, served, props.slots, pieces)


def _wait_until_ready(client: LlamaClient, seconds: float, note: Callable[[str], Any]) -> None:
    began = time.monotonic()
    said = -math.inf
    while not _is_ready(client):
        now = time.monotonic()
        if now - began >= seconds:
            raise EnvironmentFailure(
                f"no llama-server was ready there within {seconds:.0f} s",
                where=client.url,
                remedy="start it, or name its URL with --upstream",
            )
        if now - said >= SAY_AGAIN_SECONDS:
            said = now
            note(f"waiting for a llama-server at {client.url}, for up to {math.ceil(seconds - now + began)} s")
        time.sleep(0.2)


def _is_ready(client: LlamaClient) -> bool:
    """Return whether the server reports that it is ready within a moment; a silent one is not ready."""
    with client.time_limit(ANSWER_SECONDS):
        return client.health()


def _control_tokens(source: str, client: LlamaClient, model_file: Path) -> ControlTokens:
    """Return the control tokens, from the model file if it is readable, otherwise by asking the server."""
    if model_file.is_file():
        try:
            known = gguf_control_tokens(model_file)
        except BadInput:
            known = []
        if known:
            return ControlTokens(known, guess=False)
    asked = asked_control_tokens(
        template_literals(source), lambda text, special: client.tokenize(text, parse_special=special)
    )
    return ControlTokens(asked, guess=True)


class GatewayServer(uvicorn.Server):
    """uvicorn's server, which notifies the gateway when draining starts.

    ``reread`` is called on SIGHUP, and at the start if ``hung_up`` is set, ``begin_end`` when draining starts,
    ``close`` is awaited at the end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        served: Gateway | Fleet,
        reread: Callable[[], None] | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
        begin_end: Callable[[], None] = lambda: None,
        hung_up: threading.Event | None = None,
    ) -> None:
        super().__init__(config)
        self._fleet = served if isinstance(served, Fleet) else Fleet([served])
        self._reread = reread
        self._close = close
        self._begin_end = begin_end
        self._hung_up = hung_up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._reread is not None and hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reread)
            if self._hung_up is not None and self._hung_up.is_set():
                self._reread()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._fleet.drain()
        self._begin_end()
        await super().shutdown(sockets)
        if self._close is not None:
            await self._close()


def uvicorn_config(
    served: Gateway | Fleet, *, keys: Keys | None = None, sinks: Sequence[Sink] = (), tls: Tls | None = None
) -> uvicorn.Config:
    """Return uvicorn's configuration for one gateway or several."""
    limits = (served.first if isinstance(served, Fleet) else served).settings.limits
    return LimitedConfig(
        create_app(served, keys, sinks),
        ConnectionLimits(limits.header_bytes, limits.header_seconds, limits.stalled_client_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.drain_seconds),
        ssl_certfile=None if tls is None else str(tls.certificate),
        ssl_keyfile=None if tls is None else str(tls.key),
    )


def serve_gateway(
    served: Gateway | Fleet,
    sock: socket.socket,
    *,
    read_again: Callable[[], tuple[str, ...]] | None = None,
    sinks: Sequence[Sink] = (),
    tls: Tls | None = None,
    close: Callable[[], Awaitable[None]] | None = None,
    begin_end: Callable[[], None] = lambda: None,
    hung_up: threading.Event | None = None,
) -> None:
    """Serve on ``sock`` until SIGINT or SIGTERM, then finish running requests within ``drain_seconds``.

    On SIGHUP, ``read_again`` returns the new keys, and the files of ``tls`` are read again; at once if ``hung_up`` is
    set. ``begin_end`` is called when draining starts, ``close`` is awaited at the end.
    """
    keys = Keys((served.first if isinstance(served, Fleet) else served).settings.api_keys)
    config = uvicorn_config(served, keys=keys, sinks=sinks, tls=tls)
    # Existing objects are permanent, so no later collection scans them. A request creates thousands of
    # objects, nearly all without cycles: with Python's default of 700 each would be scanned several times.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    on_hangup = partial(reread, config, keys, read_again, tls)
    GatewayServer(config, served, on_hangup, close, begin_end, hung_up).run(sockets=[sock])


@contextmanager
def kept_alive(
    start: Callable[[int | None, threading.Event], LlamaServer], note: Callable[[str], Any], stopping: threading.Event
) -> Iterator[LlamaServer]:
    """Yield a started llama.cpp server, and restart it on the same port whenever it dies.

    ``start(port, stopping)`` starts one, and stops trying when ``stopping`` is set, at the end of the block;
    ``note`` gets one line for every death.
    """
    server = start(None, stopping)
    port = server.settings.port or int(server.url.rpartition(":")[2])

    def watch() -> None:
        nonlocal server
        deaths = 0
        while not stopping.wait(WATCH_SECONDS):
            if server.running:
                continue
            note(f"the llama.cpp server died; starting it again ({server.process.log_tail(2)})")
            server.stop()
            while not stopping.wait(RESTART_PAUSES[min(deaths, len(RESTART_PAUSES) - 1)]):
                deaths += 1
                try:
                    server = start(port, stopping)
                    note("the llama.cpp server is running again")
                    break
                except StrataError as error:
                    note(f"the llama.cpp server does not start: {error}")

    watcher = threading.Thread(target=watch, name="llama-watch", daemon=True)
    watcher.start()
    try:
        yield server
    finally:
        stopping.set()
        watcher.join()
        server.stop()
