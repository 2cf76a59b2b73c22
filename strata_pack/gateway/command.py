"""What ``strata-pack serve`` does with its options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import WrongUse
from strata_pack.gateway.server.run import (
    bind,
    check_exposure,
    check_origins,
    kept_alive,
    make_gateway,
    read_keys,
    serve_gateway,
    url_of,
)
from strata_pack.gateway.settings import LOOPBACK, Limits, Served, Settings
from strata_pack.llama.runtimes import pick_runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.pack.layout import Pack
from strata_pack.pack.recovery import recover
from strata_pack.parsing import ImplicitEnd


@dataclass(frozen=True)
class Options:
    """The command's options. ``pack`` may be a GGUF; times in seconds, ``context`` in tokens of one slot."""

    pack: Path | None
    upstream: str | None
    template: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    api_key_file: Path | None = None
    upstream_key: str | None = None
    parallel: int | None = None
    queue: int = 64
    context: int = 32768
    runtime: str | None = None
    reasoning_budget: int | None = None
    cors: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    store: bool = True
    implicit_end: ImplicitEnd = "guarded"
    model_name: str | None = None
    start_timeout: float = 600
    request_timeout: float = 7200
    drain: float = 30


def run(options: Options, announce: Callable[[dict[str, Any], str], Any], note: Callable[[str], Any]) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` is told the facts and one line when the gateway listens."""
    if (options.pack is None) == (options.upstream is None):
        raise WrongUse("serve needs either a PACK or --upstream URL")
    keys = read_keys(options.api_key, options.api_key_file)
    check_exposure(options.host, keys)
    check_origins(options.cors, keys)
    _log_to_stderr()
    with ExitStack() as stack:
        sock = stack.enter_context(bind(options.host, options.port))
        served, model_file = _served(options)
        url = options.upstream
        template = options.template
        if model_file is not None:
            url, template = _start(options, model_file, stack, note)
        assert url is not None
        limits = Limits(
            parallel=options.parallel or (1 if model_file else 0),
            queue=options.queue,
            request_seconds=options.request_timeout,
            drain_seconds=options.drain,
            **({} if options.store else {"store_bytes": 0}),
        )
        settings = Settings(
            served=served,
            limits=limits,
            api_keys=keys,
            hosts=(*LOOPBACK, options.host, *options.allow_hosts),
            cors=options.cors,
            reasoning_budget=options.reasoning_budget,
            implicit_end=options.implicit_end,
        )
        gateway = make_gateway(
            url,
            settings,
            template=template,
            model_file=model_file,
            upstream_key=options.upstream_key,
            ready_seconds=options.start_timeout,
        )
        served = gateway.settings.served
        facts = {
            "ok": True,
            "url": url_of(sock),
            "model": served.model,
            "template": {"id": served.template_id, "status": served.template_status},
            "upstream": url,
        }
        announce(facts, f"{served.model} at {facts['url']} (template {served.template_id}, {served.template_status})")
        serve_gateway(gateway, sock)


def _served(options: Options) -> tuple[Served, Path | None]:
    """Return what is served, and the (first) model file if we start the server ourselves."""
    if options.pack is None:
        return Served(model=options.model_name or "", runtime="upstream"), None
    runtime = pick_runtime(options.runtime).name
    if options.pack.suffix == ".gguf":
        recover(options.pack)
        return Served(model=options.model_name or options.pack.stem, runtime=runtime), options.pack
    pack = Pack.open(options.pack)
    model, recipe = pack.manifest["model"], pack.manifest["recipe"]
    facts = {
        "name": model["name"],
        "architecture": model["architecture"],
        "parameters": model["parameters"],
        "preset": recipe["preset"],
    }
    served = Served(model=options.model_name or model["name"], quant=recipe["preset"], runtime=runtime, pack=facts)
    return served, pack.model_files[0]


def _start(options: Options, model: Path, stack: ExitStack, note: Callable[[str], Any]) -> tuple[str, str | None]:
    """Start the llama.cpp server; return its URL and the template of the gateway."""
    runtime = pick_runtime(options.runtime)

    def start(port: int | None) -> LlamaServer:
        return LlamaServer.start(
            model,
            runtime=runtime,
            port=port,
            context=options.context,
            parallel=options.parallel or 1,
            timeout_s=options.start_timeout,
        )

    template = options.template
    if template is None and options.pack is not None and options.pack.is_dir():
        template = str(Pack.open(options.pack).template_path)
    return stack.enter_context(kept_alive(start, note)).url, template


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("strata_pack.gateway", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
