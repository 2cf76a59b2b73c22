"""The command ``strata-pack serve``, without its option parsing."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from strata_pack.errors import WrongUse
from strata_pack.gateway.api.responses.store import Store
from strata_pack.gateway.fleet import Fleet
from strata_pack.gateway.models import Loaded, LoadingStopped, Models, NoMemory
from strata_pack.gateway.options import ServeOptions
from strata_pack.gateway.server.access import access_log
from strata_pack.gateway.server.listening import Tls, bind, url_of
from strata_pack.gateway.server.rereading import noted_hangups
from strata_pack.gateway.server.run import (
    check_exposure,
    check_origins,
    kept_alive,
    make_engine,
    make_gateway,
    read_keys,
    serve_gateway,
)
from strata_pack.gateway.server.telemetry import telemetry
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.settings import LOOPBACK, GatewayLimits, Served, Settings
from strata_pack.llama.arguments import embedded_params
from strata_pack.llama.runtimes import Runtime, pick_runtime
from strata_pack.llama.server import LlamaServer, StartFailed
from strata_pack.pack.drafting import BLIND_DRAFTING, Drafting, architecture_of, plan_drafting
from strata_pack.pack.fit import DoesNotFit, fit_of, refuse_misfit
from strata_pack.pack.layout import Pack
from strata_pack.pack.projector import check_pair, refuse_other_kinds
from strata_pack.pack.recovery import recover
from strata_pack.weights.gguf.file import GgufFile

OWN_ARGUMENTS = {
    **dict.fromkeys(("-m", "--model"), "name the pack or the GGUF"),
    **dict.fromkeys(("--host", "--port", "--api-key", "--api-key-file"), "give it before the --"),
    **dict.fromkeys(("-c", "--ctx-size"), "use --context, the tokens of one slot"),
    **dict.fromkeys(("-np", "--parallel"), "use --parallel"),
    **dict.fromkeys(("--chat-template", "--chat-template-file"), "use --template"),
    **dict.fromkeys(("-mm", "--mmproj"), "give it before the --"),
    "--spec-type": "use --spec",
    **dict.fromkeys(("-a", "--alias"), "use --model-name"),
}
"""Arguments of llama-server that the gateway sets itself -> the alternative."""

DRAFT_MODEL = ("-md", "--model-draft", "--spec-draft-model")
"""Arguments of llama-server for a separate draft model file."""


def run(options: ServeOptions, announce: Callable[[dict[str, Any], str], Any], note: Callable[[str], Any]) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` gets the facts and one line when the gateway listens."""
    if bool(options.packs) == (options.upstream is not None):
        raise WrongUse("serve needs either a PACK or --upstream URL")
    if options.model_name is not None and len(options.packs) > 1:
        raise WrongUse("--model-name is for one PACK", remedy="leave it out; each of several packs has its own name")
    if options.mmproj is not None and (len(options.packs) > 1 or not options.images):
        raise WrongUse("--mmproj needs exactly one GGUF, and cannot be combined with --no-mmproj")
    if not options.packs:
        for given, what in (
            (options.server_arguments, "arguments after -- are"),
            (options.max_loaded, "--max-loaded is"),
            (options.idle_seconds, "--idle is"),
            (options.mmproj, "--mmproj is"),
            (options.spec != "auto", "--spec is"),
        ):
            if given:
                raise WrongUse(f"{what} only for a PACK, not for --upstream")
    keys = read_keys(options.api_key, options.api_key_file)
    check_exposure(options.host, keys)
    check_origins(options.cors, keys)
    tls = _tls(options)
    telemetry_sinks, end_telemetry = telemetry()
    sinks = [*access_log(options.access_log), *telemetry_sinks]
    _log_to_stderr()
    with ExitStack() as stack:
        hung_up = stack.enter_context(noted_hangups())
        stack.callback(end_telemetry)
        sock = stack.enter_context(bind(options.host, options.port))
        on_demand = len(options.packs) > 1 or options.idle_seconds is not None or options.max_loaded is not None
        stopping = threading.Event()
        if on_demand:
            making = _on_demand(options, keys, note, stopping)
        else:
            making = _at_once(options, keys, stack, note, stopping)
        url = url_of(sock, secure=tls is not None)
        line = f"{making.summary} at {url}"
        announce({"ok": True, "url": url, **making.facts}, line)
        serve_gateway(
            making.served,
            sock,
            read_again=partial(read_keys, options.api_key, options.api_key_file) if options.api_key_file else None,
            sinks=sinks,
            tls=tls,
            close=making.close,
            begin_end=stopping.set,
            hung_up=hung_up,
        )


@dataclass(frozen=True)
class _Made:
    """The served gateways, the facts to announce, and a summary in words."""

    served: Gateway | Fleet
    facts: dict[str, Any]
    summary: str
    close: Callable[[], Awaitable[None]] | None = None


def _settings(options: ServeOptions, served: Served, keys: tuple[str, ...]) -> Settings:
    limits = GatewayLimits(
        parallel=options.parallel or (1 if options.packs else 0),
        queue=options.queue,
        request_seconds=options.request_seconds,
        drain_seconds=options.drain_seconds,
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


def _at_once(
    options: ServeOptions,
    keys: tuple[str, ...],
    stack: ExitStack,
    note: Callable[[str], Any],
    stopping: threading.Event,
) -> _Made:
    """Return the gateway of one upstream; its server is started first unless ``--upstream`` is given."""
    url, template, served = options.upstream, options.template, Served(options.model_name or "", runtime="upstream")
    source: _Source | None = None
    if options.packs:
        source = _source(options, options.packs[0], note)
        served, template = source.served, source.template
        url = stack.enter_context(kept_alive(source.start, note, stopping)).url
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
    served = gateway.served
    facts = {
        "model": served.model,
        "template": {"id": served.template_id, "status": served.template_status},
        "upstream": url,
    }
    return _Made(gateway, facts, f"{served.model} (template {served.template_id}, {served.template_status})")


def _on_demand(
    options: ServeOptions, keys: tuple[str, ...], note: Callable[[str], Any], stopping: threading.Event
) -> _Made:
    """Return the gateways of all packs, which are loaded on demand."""
    sources = [_source(options, pack, note) for pack in options.packs]
    names = [source.served.model for source in sources]
    for name in names:
        if names.count(name) > 1:
            raise WrongUse(f"two of the packs are named {name!r}", remedy="serve packs of different names")
    models = Models(options.max_loaded or len(sources), options.idle_seconds)
    store: Store | None = None
    gateways = []
    for source in sources:
        host = models.add(source.served.model, partial(_loaded, source, options, stopping))
        gateway = Gateway(_settings(options, source.served, keys), None, host=host, store=store)
        store = gateway.store
        gateways.append(gateway)
    summary = f"{', '.join(names)} (each loaded when it is asked for)"
    return _Made(Fleet(gateways), {"models": names}, summary, models.close)


def _loaded(source: _Source, options: ServeOptions, stopping: threading.Event) -> Loaded:
    """Start the server of ``source`` and read its properties."""
    try:
        server = source.start(None, stopping)
    except DoesNotFit as error:
        raise NoMemory(error.problem, where=error.where, remedy=error.remedy) from error
    except StartFailed as error:
        if error.reason == "ended":
            raise LoadingStopped(str(error)) from error
        if error.reason == "memory":
            raise NoMemory(error.problem, where=error.where, remedy=error.remedy) from error
        raise
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


def _tls(options: ServeOptions) -> Tls | None:
    """Return the TLS certificate. Raises ``WrongUse`` if certificate or key is missing, ``BadInput`` if they are
    unusable."""
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise WrongUse("--tls-cert and --tls-key belong together")
    tls = Tls(options.tls_cert, options.tls_key)
    tls.check()
    return tls


@dataclass(frozen=True)
class _Source:
    """A pack or a GGUF to serve: its (first) model file, its template, and how its server is started."""

    served: Served
    file: Path
    template: str | None
    start: Callable[[int | None, threading.Event], LlamaServer]


def _source(options: ServeOptions, path: Path, note: Callable[[str], Any]) -> _Source:
    """Return the source at ``path``. Raises ``BadInput`` if it is neither a pack nor a valid GGUF."""
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
    # What is damaged, or belongs to another model, is summary in one sentence; the server would tell it in its log, and
    # much later.
    with GgufFile.open(file) as opened:
        refuse_other_kinds(opened.metadata, str(file))
        if projector is not None:
            with GgufFile.open(projector) as eyes:
                check_pair(opened.metadata, eyes.metadata, projector)
    extra = _server_arguments(options.server_arguments, embedded=runtime.kind == "embedded")
    drafting = _drafting(options, file, runtime, sees=projector is not None)
    if drafting.reason:
        note(f"{path}: served without its draft head: {drafting.reason}")
    served = replace(served, drafts=drafting.on or _names_draft_model(options))

    slots = options.parallel or 1

    def start(port: int | None, stopping: threading.Event) -> LlamaServer:
        if not options.anyway:
            refuse_misfit(path, fit_of(path, options.context * slots, runtime, slots, projector))
        return LlamaServer.start(
            file,
            runtime=runtime,
            port=port,
            context=options.context,
            parallel=slots,
            timeout_seconds=options.start_seconds,
            projector=projector,
            drafts=drafting.on,
            alias=served.model,
            extra=extra,
            end=stopping,
        )

    return _Source(served, file, template, start)


def _drafting(options: ServeOptions, model: Path, runtime: Runtime, *, sees: bool) -> Drafting:
    """Return whether to draft; a draft model given by the user replaces the model's draft head."""
    if not _names_draft_model(options):
        return plan_drafting(model, runtime, options.spec, sees=sees)
    if sees and architecture_of(model) in BLIND_DRAFTING:
        raise WrongUse("llama.cpp cannot draft and see images with this model", where=model, remedy="use --no-mmproj")
    if options.spec == "mtp":
        raise WrongUse("--spec mtp drafts with the model's own head", remedy="leave the draft model out")
    return plan_drafting(model, runtime, "off" if options.spec == "auto" else options.spec, sees=sees)


def _names_draft_model(options: ServeOptions) -> bool:
    return any(argument.partition("=")[0] in DRAFT_MODEL for argument in options.server_arguments)


def _server_arguments(given: tuple[str, ...], *, embedded: bool) -> tuple[str, ...]:
    """Return the additional arguments of llama-server.

    Raises ``WrongUse`` for arguments that the gateway sets, and for those that the embedded server does not take.
    """
    for argument in given:
        if argument.partition("=")[0] in OWN_ARGUMENTS:
            raise WrongUse(f"{argument} is set by the gateway", remedy=OWN_ARGUMENTS[argument.partition("=")[0]])
    if embedded:
        embedded_params(given)
    return given


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
