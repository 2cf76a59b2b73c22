"""What ``strata-pack serve`` does with its options."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from strata_pack.errors import WrongUse
from strata_pack.gateway.api.responses.store import Store
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.models import Loaded, Models, NoMemory
from strata_pack.gateway.server.access import AccessFormat, access_log
from strata_pack.gateway.server.run import (
    Tls,
    bind,
    check_exposure,
    check_origins,
    kept_alive,
    make_engine,
    make_gateway,
    read_keys,
    serve_gateway,
    url_of,
)
from strata_pack.gateway.server.telemetry import telemetry
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import LOOPBACK, GatewayLimits, Served, Settings
from strata_pack.llama.runtimes import Runtime, pick_runtime
from strata_pack.llama.server import LlamaServer, StartFailed
from strata_pack.pack.drafting import BLIND_DRAFTING, Drafting, Spec, architecture_of, plan_drafting
from strata_pack.pack.fit import DoesNotFit, fit_of, refuse_misfit
from strata_pack.pack.layout import Pack
from strata_pack.pack.projector import check_pair
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
    **dict.fromkeys(("-mm", "--mmproj"), "give it before the --"),
    "--spec-type": "use --spec",
}
"""Arguments of llama-server that the gateway sets itself -> what to do instead."""

DRAFT_MODEL = ("-md", "--model-draft", "--spec-draft-model")
"""Arguments of llama-server that name a draft model in a file of its own."""


@dataclass(frozen=True)
class Options:
    """The command's options. A pack may be a GGUF; times in seconds, ``context`` in tokens of one slot.

    ``mmproj`` is the projector of the one GGUF; ``images`` False leaves a pack's own out. ``max_loaded`` and ``idle``
    are those of ``Models``; with either, or with several packs, a model is loaded when it is asked for. ``anyway``:
    also if it needs more memory than there is.
    """

    packs: tuple[Path, ...]
    upstream: str | None
    max_loaded: int | None = None
    idle: float | None = None
    template: str | None = None
    mmproj: Path | None = None
    images: bool = True
    fetch_images: bool = False
    spec: Spec = "auto"
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    api_key_file: Path | None = None
    upstream_key: str | None = None
    parallel: int | None = None
    queue: int = 64
    context: int = 32768
    runtime: str | None = None
    anyway: bool = False
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
    start_seconds: float = 600
    request_seconds: float = 7200
    drain: float = 30


def run(options: Options, announce: Callable[[dict[str, Any], str], Any], note: Callable[[str], Any]) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` is told the facts and one line when the gateway listens."""
    if bool(options.packs) == (options.upstream is not None):
        raise WrongUse("serve needs either a PACK or --upstream URL")
    if options.mmproj is not None and (len(options.packs) > 1 or not options.images):
        raise WrongUse("--mmproj is the projector of one GGUF", remedy="serve one, and without --no-mmproj")
    if not options.packs:
        for given, what in (
            (options.server_arguments, "arguments after -- are"),
            (options.max_loaded, "--max-loaded is"),
            (options.idle, "--idle is"),
            (options.mmproj, "--mmproj is"),
            (options.spec != "auto", "--spec is"),
        ):
            if given:
                raise WrongUse(f"{what} for a llama-server that is started on a PACK")
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
        on_demand = len(options.packs) > 1 or options.idle is not None or options.max_loaded is not None
        making = _on_demand(options, keys, note) if on_demand else _at_once(options, keys, stack, note)
        url = url_of(sock, secure=tls is not None)
        line = f"{making.told} at {url}"
        announce({"ok": True, "url": url, **making.facts}, line)
        serve_gateway(
            making.served,
            sock,
            read_again=lambda: read_keys(options.api_key, options.api_key_file),
            sinks=sinks,
            tls=tls,
            close=making.close,
        )


@dataclass(frozen=True)
class _Made:
    """What is served, the facts that are announced of it, and the same in words."""

    served: Gateway | Fleet
    facts: dict[str, Any]
    told: str
    close: Callable[[], Awaitable[None]] | None = None


def _settings(options: Options, served: Served, keys: tuple[str, ...]) -> Settings:
    limits = GatewayLimits(
        parallel=options.parallel or (1 if options.packs else 0),
        queue=options.queue,
        request_seconds=options.request_seconds,
        drain_seconds=options.drain,
        **({} if options.store else {"store_bytes": 0}),
    )
    return Settings(
        served=served,
        limits=limits,
        api_keys=keys,
        hosts=(*LOOPBACK, options.host, *options.allow_hosts),
        cors=options.cors,
        pass_native=options.pass_native,
        reasoning_budget=options.reasoning_budget,
        implicit_end=options.implicit_end,
    )


def _at_once(options: Options, keys: tuple[str, ...], stack: ExitStack, note: Callable[[str], Any]) -> _Made:
    """Return the gateway before the one upstream, which is started first if it is ours."""
    url, template, served = options.upstream, options.template, Served(options.model_name or "", runtime="upstream")
    source: _Source | None = None
    if options.packs:
        source = _source(options, options.packs[0], note)
        served, template = source.served, source.template
        url = stack.enter_context(kept_alive(source.start, note)).url
    assert url is not None
    gateway = make_gateway(
        url,
        _settings(options, served, keys),
        template=template,
        model_file=source.file if source else None,
        upstream_key=options.upstream_key,
        fetch_images=options.fetch_images,
        ready_seconds=options.start_seconds,
        note=note,
    )
    served = gateway.settings.served
    facts = {
        "model": served.model,
        "template": {"id": served.template_id, "status": served.template_status},
        "upstream": url,
    }
    return _Made(gateway, facts, f"{served.model} (template {served.template_id}, {served.template_status})")


def _on_demand(options: Options, keys: tuple[str, ...], note: Callable[[str], Any]) -> _Made:
    """Return the gateways of all packs, none of which is loaded yet."""
    sources = [_source(options, pack, note) for pack in options.packs]
    names = [source.served.model for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise WrongUse(f"two of the packs are called {name!r}", remedy="serve packs of different names")
    models = Models(options.max_loaded or len(sources), options.idle)
    store: Store | None = None
    gateways = []
    for source in sources:
        host = models.add(source.served.model, partial(_loaded, source, options))
        gateway = Gateway(_settings(options, source.served, keys), None, None, host=host, store=store)
        store = gateway.store
        gateways.append(gateway)
    told = f"{', '.join(names)} (each loaded when it is asked for)"
    return _Made(Fleet(gateways), {"models": names}, told, models.close)


def _loaded(source: _Source, options: Options) -> Loaded:
    """Start the server of ``source`` and ask it what it is."""
    try:
        server = source.start(None)
    except DoesNotFit as error:
        raise NoMemory(str(error)) from error
    except StartFailed as error:
        raise (NoMemory(str(error)) if error.reason == "memory" else error) from error
    try:
        engine = make_engine(
            server.url,
            source.served,
            template=source.template,
            model_file=source.file,
            fetch_images=options.fetch_images,
            ready_seconds=options.start_seconds,
        )
    except BaseException:
        server.stop()
        raise
    return Loaded(server, engine)


def _tls(options: Options) -> Tls | None:
    """Return the certificate to serve; raises ``WrongUse`` for half of one, ``BadInput`` for one that cannot be."""
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise WrongUse("--tls-cert and --tls-key belong together")
    tls = Tls(options.tls_cert, options.tls_key)
    tls.check()
    return tls


@dataclass(frozen=True)
class _Source:
    """A pack or a GGUF: what is served of it, its (first) model file, its template, and how its server is started."""

    served: Served
    file: Path
    template: str | None
    start: Callable[[int | None], LlamaServer]


def _source(options: Options, path: Path, note: Callable[[str], Any]) -> _Source:
    """Return what ``path`` is; raises ``BadInput`` for what is no pack and no sound GGUF."""
    runtime = pick_runtime(options.runtime)
    template, projector = options.template, options.mmproj
    if path.suffix == ".gguf":
        recover(path)
        served, file = Served(options.model_name or path.stem, runtime=runtime.name), path
    else:
        if projector is not None:
            raise WrongUse("--mmproj is for a GGUF; a pack has its own", where=path)
        pack = Pack.open(path)
        model, recipe = pack.manifest["model"], pack.manifest["recipe"]
        facts = {
            "name": model["name"],
            "architecture": model["architecture"],
            "parameters": model["parameters"],
            "preset": recipe["preset"],
        }
        served = Served(options.model_name or model["name"], quant=recipe["preset"], runtime=runtime.name, pack=facts)
        file, projector = pack.model_files[0], pack.projector_path if options.images else None
        template = template or str(pack.template_path)
    # What is damaged, or belongs to another model, is told in one sentence; the server would tell it in its log, and
    # much later.
    with GgufFile.open(file) as opened:
        if projector is not None:
            with GgufFile.open(projector) as eyes:
                check_pair(opened.metadata, eyes.metadata, projector)
    layers, extra = _server_arguments(options.server_arguments, embedded=runtime.kind == "embedded")
    drafting = _drafting(options, file, runtime, sees=projector is not None)
    if drafting.reason:
        note(f"{path}: served without its draft head: {drafting.reason}")
    served = replace(served, drafts=drafting.on)

    slots = options.parallel or 1

    def start(port: int | None) -> LlamaServer:
        if not options.anyway:
            refuse_misfit(path, fit_of(path, options.context * slots, runtime, slots, projector))
        return LlamaServer.start(
            file,
            runtime=runtime,
            port=port,
            context=options.context,
            parallel=slots,
            timeout_seconds=options.start_seconds,
            gpu_layers=layers,
            projector=projector,
            drafts=drafting.on,
            extra=extra,
        )

    return _Source(served, file, template, start)


def _drafting(options: Options, model: Path, runtime: Runtime, *, sees: bool) -> Drafting:
    """Return whether to draft; a draft model of the user's own takes the place of the model's head."""
    own = any(argument.partition("=")[0] in DRAFT_MODEL for argument in options.server_arguments)
    if not own:
        return plan_drafting(model, runtime, options.spec, sees=sees)
    if sees and architecture_of(model) in BLIND_DRAFTING:
        raise WrongUse("llama.cpp cannot draft and see images with this model", where=model, remedy="use --no-mmproj")
    if options.spec == "mtp":
        raise WrongUse("--spec mtp drafts with the model's own head", remedy="leave the draft model out")
    return plan_drafting(model, runtime, "off" if options.spec == "auto" else options.spec, sees=sees)


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
