"""Finds the runtimes: xllamacpp's embedded server, any ``llama-server`` binary, and our own builds.

A ``Runtime`` knows how to turn ``ServerSettings`` into a command; it starts nothing itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.files import dump_json, read_bytes, write_atomic
from strata_pack.llama.devices import embedded_devices, nvidia_devices
from strata_pack.resources import cache_dir
from strata_pack.suggest import unknown

Backend = Literal["cpu", "cuda", "vulkan", "hip", "metal"]
RuntimeKind = Literal["embedded", "binary"]

EMBEDDED_NAME = "embedded"
BINARY_NAME = "llama-server"
AUTO = "auto"

BUILD_RECORD = "runtime.json"
RECORD_LIMIT = 1 << 16

VERBOSITY = 4
"""The level at which llama.cpp logs the devices it uses and the layers it puts there."""


@dataclass(frozen=True)
class ServerSettings:
    """How to serve one model.

    ``context`` is in tokens of one slot, or of all of them together if it is ``shared``; ``gpu_layers`` None means all
    that fit.
    """

    model: Path
    host: str
    port: int
    context: int
    parallel: int
    shared: bool = False
    template_file: Path | None = None
    gpu_layers: int | None = None
    threads: int | None = None
    prefill_assistant: bool = True
    warmup: bool = True
    extra: tuple[str, ...] = ()

    @property
    def total_context(self) -> int:
        """Tokens of the whole KV cache."""
        return self.context if self.shared else self.context * self.parallel


@dataclass(frozen=True)
class Runtime:
    """One llama.cpp that can be started. ``path`` is the binary; None for the embedded one.

    ``origin`` says in words where it was found; ``details`` is what is known of its making.
    """

    name: str
    kind: RuntimeKind
    backend: Backend = "cpu"
    path: Path | None = None
    origin: str = field(default="", compare=False)
    details: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)

    def command(self, settings: ServerSettings, ready: Path) -> list[str]:
        """Return the command that serves ``settings``; the embedded server writes its URL into ``ready``."""
        if self.path is None:
            return _embedded_command(settings, ready)
        return _binary_command(self.path, settings)


def embedded() -> Runtime:
    """Return the embedded runtime; what it computes with is asked only where there is a GPU to ask about."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("xllamacpp")
    except PackageNotFoundError:
        raise EnvironmentFailure("xllamacpp is not installed", remedy="pip install strata-pack") from None
    on_cuda = bool(nvidia_devices()) and any(device.name.startswith("CUDA") for device in embedded_devices())
    backend: Backend = "cuda" if on_cuda else "cpu"
    return Runtime(EMBEDDED_NAME, "embedded", backend, origin=f"the Python package xllamacpp {found}")


def _embedded_command(settings: ServerSettings, ready: Path) -> list[str]:
    if settings.extra:
        raise WrongUse("options of llama-server cannot be given to the embedded server")
    params: dict[str, Any] = {
        "model.path": str(settings.model),
        "hostnames": [settings.host],
        "port": settings.port,
        "n_ctx": settings.total_context,
        "n_parallel": settings.parallel,
        "kv_unified": settings.shared,
        "prefill_assistant": settings.prefill_assistant,
        "warmup": settings.warmup,
        "ui": False,
        "offline": True,
        "verbosity": VERBOSITY,
        "n_gpu_layers": -1 if settings.gpu_layers is None else settings.gpu_layers,
    }
    if settings.template_file is not None:
        # As llama-server reads --chat-template-file: the bytes as they are.
        params["chat_template"] = settings.template_file.read_bytes().decode("utf-8", "surrogateescape")
    if settings.threads is not None:
        params["cpuparams.n_threads"] = settings.threads
    return [sys.executable, "-m", "strata_pack.llama.child", json.dumps({"params": params, "ready": str(ready)})]


def _binary_command(path: Path, settings: ServerSettings) -> list[str]:
    command = [
        *(str(path), "--model", str(settings.model)),
        *("--host", settings.host, "--port", str(settings.port)),
        *("--ctx-size", str(settings.total_context), "--parallel", str(settings.parallel)),
        *("--jinja", "--no-webui", "--verbosity", str(VERBOSITY)),
    ]
    valued: Mapping[str, Any] = {
        "--n-gpu-layers": settings.gpu_layers,
        "--chat-template-file": settings.template_file,
        "--threads": settings.threads,
    }
    switches: Mapping[str, bool] = {
        "--kv-unified": settings.shared,
        "--no-prefill-assistant": not settings.prefill_assistant,
        "--no-warmup": not settings.warmup,
    }
    for option, value in valued.items():
        command += [] if value is None else [option, str(value)]
    command += [switch for switch, on in switches.items() if on]
    return [*command, *settings.extra]


def runtimes_dir() -> Path:
    """Return the folder of our own builds; each has a folder of its own with a ``runtime.json`` in it, written last."""
    return cache_dir() / "runtimes"


def find_binary(given: str | Path | None = None) -> Runtime | None:
    """Return the ``llama-server`` named by ``given``, ``STRATA_LLAMA_SERVER`` or ``PATH``, in this order.

    ``BadInput`` if a named one is not an executable file; None if none is named and none is on the path.
    """
    for text, origin in ((given, "--llama-server"), (os.environ.get("STRATA_LLAMA_SERVER"), "STRATA_LLAMA_SERVER")):
        if text:
            # A path loses its "./" on the way here; a file that is there is meant before a name on the search path.
            local = Path(text)
            found = shutil.which(local.absolute()) if local.is_file() else shutil.which(str(text))
            if found is None:
                raise BadInput("is not an executable llama-server", where=str(text), remedy=f"correct {origin}")
            return Runtime(BINARY_NAME, "binary", path=Path(found).absolute(), origin=origin)
    found = shutil.which(BINARY_NAME)
    return None if found is None else Runtime(BINARY_NAME, "binary", path=Path(found).absolute(), origin="PATH")


def built_runtimes() -> list[Runtime]:
    """Return our own finished builds, ordered by name; a folder whose record cannot be read does not count."""
    found = []
    for record in sorted(runtimes_dir().glob(f"*/{BUILD_RECORD}")):
        try:
            details = json.loads(read_bytes(record, RECORD_LIMIT))
            binary = record.parent / details["binary"]
            runtime = Runtime(record.parent.name, "binary", details["backend"], binary, "built here", details)
        except (BadInput, ValueError, KeyError, TypeError):
            continue
        if binary.is_file():
            found.append(runtime)
    return found


def list_runtimes() -> list[Runtime]:
    """Return every runtime that can be started here, the embedded one first."""
    binary = find_binary()
    return [embedded(), *([binary] if binary else []), *built_runtimes()]


def _choice_file() -> Path:
    return runtimes_dir() / "use.json"


def used_runtime() -> str:
    """Return the name given to ``use_runtime`` last, ``"auto"`` if none was."""
    try:
        name = json.loads(read_bytes(_choice_file(), RECORD_LIMIT))["use"]
    except (BadInput, ValueError, KeyError, TypeError):
        return AUTO
    return name if isinstance(name, str) else AUTO


def use_runtime(name: str) -> Runtime:
    """Make ``name`` the runtime that is taken when none is named; return what that is now."""
    chosen = _named(name) if name != AUTO else _best()
    write_atomic(_choice_file(), dump_json({"use": name}))
    return chosen


def pick_runtime(name: str | None = None, llama_server: Path | None = None) -> Runtime:
    """Return the runtime to start.

    ``llama_server`` (a binary) wins, then ``STRATA_LLAMA_SERVER`` if no name is given, then ``name``, then the one of
    ``use_runtime``; ``"auto"`` takes a CUDA runtime where ``nvidia-smi`` shows a device, else the embedded one.
    """
    if llama_server is not None:
        binary = find_binary(llama_server)
        assert binary is not None
        return binary
    if name in (None, AUTO):
        if os.environ.get("STRATA_LLAMA_SERVER"):
            named = find_binary()
            assert named is not None
            return named
        name = used_runtime()
    return _best() if name == AUTO else _named(str(name))


def _named(name: str) -> Runtime:
    known = list_runtimes()
    for runtime in known:
        if runtime.name == name:
            return runtime
    raise unknown("runtime", name, [AUTO, *(runtime.name for runtime in known)])


def _best() -> Runtime:
    ours = embedded()
    if ours.backend == "cuda" or not nvidia_devices():
        return ours
    return next((runtime for runtime in built_runtimes() if runtime.backend == "cuda"), ours)
