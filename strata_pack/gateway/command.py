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
from strata_pack.gateway.server.access import AccessFormat, access_log
from strata_pack.gateway.server.run import (
    Tls,
    bind,
    check_exposure,
    check_origins,
    kept_alive,
    make_gateway,
    read_keys,
    serve_gateway,
    url_of,
)
from strata_pack.gateway.server.telemetry import telemetry
from strata_pack.gateway.settings import LOOPBACK, Limits, Served, Settings
from strata_pack.llama.runtimes import pick_runtime
from strata_pack.llama.server import LlamaServer
from strata_pack.pack.layout import Pack
from strata_pack.pack.recovery import recover
from strata_pack.parsing import ImplicitEnd
from strata_pack.weights.gguf.file import GgufFile

GPU_LAYERS = ("-ngl", "--gpu-layers", "--n-gpu-layers")
OWN_ARGUMENTS = {
    **dict.fromkeys(("-m", "--model"), "name the pack or the GGUF"),
    **dict.fromkeys(("--host", "--port", "--api-key", "--api-key-file"), "give it before the --"),
    **dict.fromkeys(("-c", "--ctx-size"), "use --context, the tokens of one slot"),
    **dict.fromkeys(("-np", "--parallel"), "use --parallel"),
    **dict.fromkeys(("--chat-template", "--chat-template-file"), "use --template"),
}
"""Arguments of llama-server that the gateway sets itself -> what to do instead."""


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
    access_log: AccessFormat = "off"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    pass_native: bool = False
    server_arguments: tuple[str, ...] = ()
    start_timeout: float = 600
    request_timeout: float = 7200
    drain: float = 30


def run(options: Options, announce: Callable[[dict[str, Any], str], Any], note: Callable[[str], Any]) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` is told the facts and one line when the gateway listens."""
    if (options.pack is None) == (options.upstream is None):
        raise WrongUse("serve needs either a PACK or --upstream URL")
    if options.server_arguments and options.pack is None:
        raise WrongUse("arguments after -- are for the llama-server that is started on a PACK")
    keys = read_keys(options.api_key, options.api_key_file)
    check_exposure(options.host, keys)
    check_origins(options.cors, keys)
    tls = _tls(options)
    telemetry_sinks, end_telemetry = telemetry()
    sinks = [*access_log(options.access_log), *telemetry_sinks]
    _log_to_stderr()
    with ExitStack() as stack:
        stack.callback(end_telemetry)
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
            pass_native=options.pass_native,
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
            note=note,
        )
        served = gateway.settings.served
        facts = {
            "ok": True,
            "url": url_of(sock, secure=tls is not None),
            "model": served.model,
            "template": {"id": served.template_id, "status": served.template_status},
            "upstream": url,
        }
        announce(facts, f"{served.model} at {facts['url']} (template {served.template_id}, {served.template_status})")
        serve_gateway(
            gateway,
            sock,
            read_again=lambda: read_keys(options.api_key, options.api_key_file),
            sinks=sinks,
            tls=tls,
        )


def _tls(options: Options) -> Tls | None:
    """Return the certificate to serve; raises ``WrongUse`` for half of one, ``BadInput`` for one that cannot be."""
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise WrongUse("--tls-cert and --tls-key belong together")
    tls = Tls(options.tls_cert, options.tls_key)
    tls.check()
    return tls


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
    with GgufFile.open(model):
        pass  # what is damaged is told in one sentence; the server would tell it in its log, and much later
    layers, extra = _server_arguments(options.server_arguments, embedded=runtime.kind == "embedded")

    def start(port: int | None) -> LlamaServer:
        return LlamaServer.start(
            model,
            runtime=runtime,
            port=port,
            context=options.context,
            parallel=options.parallel or 1,
            timeout_s=options.start_timeout,
            gpu_layers=layers,
            extra=extra,
        )

    template = options.template
    if template is None and options.pack is not None and options.pack.is_dir():
        template = str(Pack.open(options.pack).template_path)
    return stack.enter_context(kept_alive(start, note)).url, template


def _server_arguments(given: tuple[str, ...], *, embedded: bool) -> tuple[int | None, tuple[str, ...]]:
    """Return the GPU layers, and what else llama-server is given; the embedded server can be given the first alone.

    Raises ``WrongUse`` for what is the gateway's own matter, or not the embedded server's.
    """
    for argument in given:
        if argument.partition("=")[0] in OWN_ARGUMENTS:
            raise WrongUse(f"{argument} is the gateway's own matter", remedy=OWN_ARGUMENTS[argument.partition("=")[0]])
    if not embedded:
        return None, given
    if len(given) == 2 and given[0] in GPU_LAYERS and given[1].isascii() and given[1].isdigit():
        return int(given[1]), ()
    if given:
        raise WrongUse(
            f"the embedded llama.cpp takes no arguments of llama-server but -ngl N, not {' '.join(given)!r}",
            remedy="use a llama-server with --runtime; `strata-pack runtime list` shows those there are",
        )
    return None, ()


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    bare = logging.StreamHandler(sys.stderr)
    for name, level, form in (
        ("strata_pack.gateway", logging.INFO, handler),
        ("strata_pack.access", logging.INFO, bare),
        ("uvicorn", logging.WARNING, handler),
    ):
        logger = logging.getLogger(name)
        logger.addHandler(form)
        logger.setLevel(level)
        logger.propagate = False
