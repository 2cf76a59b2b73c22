"""From a URL and a template to a running gateway: ask the upstream what it is, then serve until told to stop."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from strata_pack.chat.library import list_templates, load_shipped, status_of
from strata_pack.chat.render.template import ChatTemplate, read_template
from strata_pack.errors import BadInput, EnvironmentFailure, StrataError, WrongUse
from strata_pack.files import read_bytes
from strata_pack.gateway.control_tokens import (
    ControlTokens,
    asked_control_tokens,
    gguf_control_tokens,
    template_literals,
)
from strata_pack.gateway.prompt import Prompts
from strata_pack.gateway.server.app import create_app
from strata_pack.gateway.server.browsers import ANY
from strata_pack.gateway.server.protocol import limited_protocol
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import LOOPBACK, UNKNOWN, Settings
from strata_pack.gateway.upstream import Upstream
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.server import LlamaServer
from strata_pack.parsing import CallFormat, dialect_of

ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#]+/?", re.IGNORECASE)
READY_SECONDS = 60.0
KEY_FILE_LIMIT = 1 << 20
RESTART_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before the restarts of a server that keeps dying; the last one goes on."""

WATCH_SECONDS = 0.5


@dataclass(frozen=True)
class TemplateChoice:
    """A template text with the id of the shipped one it is ("custom" for any other), and its status."""

    source: str
    id: str
    status: str
    call_format: CallFormat


def gateway_template(wanted: str | None, fallback: str) -> TemplateChoice:
    """Return the template that ``wanted`` names (a shipped id or a file), or ``fallback``, the upstream's own.

    Raises ``WrongUse`` if it names neither, ``BadInput`` if there is none at all.
    """
    source = fallback
    if wanted is not None:
        path = Path(wanted)
        source = read_template(path) if path.is_file() else load_shipped(wanted).source
    if not source.strip():
        raise BadInput("the upstream has no chat template", remedy="name one with --template")
    for shipped in list_templates():
        if shipped.source == source:
            form: CallFormat = "json" if shipped.formats == ("json",) else "auto"
            return TemplateChoice(source, shipped.id, status_of(source), form)
    return TemplateChoice(source, "custom", status_of(source), call_format_of(source))


def call_format_of(source: str) -> CallFormat:
    """Return the parser's ``call_format`` for an unknown template: "json" if it teaches calls as JSON."""
    return "json" if "<tool_call>" in source and "<function=" not in source else "auto"


def read_keys(key: str | None, key_file: Path | None) -> tuple[str, ...]:
    """Return the API keys: the one given and those of the file, one a line, ``#`` starts a comment line."""
    keys = [key] if key else []
    if key_file is not None:
        lines = read_bytes(key_file, KEY_FILE_LIMIT).decode("utf-8", "replace").splitlines()
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise BadInput("holds no key", where=key_file)
        keys += found
    return tuple(keys)


def check_exposure(host: str, keys: tuple[str, ...]) -> None:
    """Raise ``WrongUse`` for a gateway that others can reach, but that asks for no key."""
    if host not in LOOPBACK and not keys:
        raise WrongUse(f"--host {host} lets others in", remedy="demand a key with --api-key or --api-key-file")


def check_origins(origins: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """Raise ``WrongUse`` for what is no origin of a page, and for all pages at once where no key is asked for."""
    for origin in origins:
        if origin == ANY:
            if not keys:
                raise WrongUse("--cors '*' lets every web page in", remedy="name the origins, or demand a key")
        elif not ORIGIN.fullmatch(origin):
            raise WrongUse(f"--cors {origin} is no origin", remedy="write it as https://HOST or http://HOST:PORT")


def make_gateway(
    url: str,
    settings: Settings,
    *,
    template: str | None = None,
    model_file: Path | None = None,
    upstream_key: str | None = None,
    ready_seconds: float = READY_SECONDS,
) -> Gateway:
    """Return the gateway before the llama-server at ``url``, which it asks what it is.

    ``template`` is a shipped id or a file, ``None`` for the upstream's own; ``model_file`` the GGUF that the upstream
    serves, to read the vocabulary's control tokens from. Raises ``EnvironmentFailure`` if the upstream is not ready
    within ``ready_seconds``.
    """
    upstream = Upstream(url, api_key=upstream_key)
    with contextlib.closing(LlamaClient(url, api_key=upstream_key)) as client:
        _wait_until_ready(client, ready_seconds)
        props = client.props()
        chosen = gateway_template(template, props.chat_template)
        control = _control_tokens(chosen.source, client, model_file or Path(props.model_path))
        adds_bos = bool(props.bos_token) and client.tokenize("", add_special=True) == client.tokenize(props.bos_token)
    compiled = ChatTemplate(chosen.source, bos_token=props.bos_token, eos_token=props.eos_token)
    prompts = Prompts(
        compiled, control, upstream, call_format=chosen.call_format, bos=props.bos_token, adds_bos=adds_bos
    )
    served = settings.served
    alias, kind = str(props.raw.get("model_alias") or props.model_path), str(props.raw.get("model_ftype") or "")
    served = replace(
        served,
        model=served.model or Path(alias).name.removesuffix(".gguf") or "model",
        quant=kind if served.quant == UNKNOWN and kind else served.quant,
    )
    served = replace(served, template_id=chosen.id, template_status=chosen.status)
    limits = settings.limits
    if limits.parallel < 1:
        limits = replace(limits, parallel=props.slots)
    return Gateway(
        replace(settings, served=served, limits=limits), upstream, prompts, call_format=chosen.call_format,
        dialect=dialect_of(chosen.source),
    )  # fmt: skip


def _wait_until_ready(client: LlamaClient, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not client.health():
        if time.monotonic() >= deadline:
            raise EnvironmentFailure(
                "no llama-server answers there", where=client.url, remedy="start it, or name its URL with --upstream"
            )
        time.sleep(0.2)


def _control_tokens(source: str, client: LlamaClient, model_file: Path) -> ControlTokens:
    """Return the control tokens, of the vocabulary if its file can be read here, else of what the server tells."""
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
    """uvicorn, saying so to the gateway when it starts to drain."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.draining = True
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raises ``EnvironmentFailure`` if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot listen ({error.strerror})", where=f"{host}:{port}", remedy="choose another --port"
        ) from error


def url_of(sock: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_config(gateway: Gateway) -> uvicorn.Config:
    """Return how uvicorn serves ``gateway``."""
    limits = gateway.settings.limits
    return uvicorn.Config(
        create_app(gateway),
        http=limited_protocol(limits.header_bytes, limits.header_seconds, limits.stalled_client_seconds),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.drain_seconds),
    )


def serve_gateway(gateway: Gateway, sock: socket.socket) -> None:
    """Serve on ``sock`` until SIGINT or SIGTERM, then finish what runs, for at most ``drain_seconds``."""
    GatewayServer(uvicorn_config(gateway), gateway).run(sockets=[sock])


@contextmanager
def kept_alive(start: Callable[[int | None], LlamaServer], note: Callable[[str], Any]) -> Iterator[LlamaServer]:
    """Yield a started llama.cpp server and start it again, on the same port, whenever it dies.

    ``start(port)`` starts one; ``note`` is told of every death in one line.
    """
    server = start(None)
    port = server.settings.port or int(server.url.rpartition(":")[2])
    stopping = threading.Event()

    def watch() -> None:
        nonlocal server
        deaths = 0
        while not stopping.wait(WATCH_SECONDS):
            if server.running:
                continue
            note(f"the llama.cpp server died; starting it again ({server.log_tail(2)})")
            server.stop()
            while not stopping.wait(RESTART_PAUSES[min(deaths, len(RESTART_PAUSES) - 1)]):
                deaths += 1
                try:
                    server = start(port)
                    note("the llama.cpp server is back")
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
