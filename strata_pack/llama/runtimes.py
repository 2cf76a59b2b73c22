"""Finds the runtimes: xllamacpp's embedded server, any ``llama-server`` binary, runtimes built or installed here.

A ``Runtime`` converts ``ServerSettings`` to a command; it starts nothing itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import dump_json, read_state, write_atomic
from strata_pack.llama.arguments import embedded_params
from strata_pack.llama.devices import Device, binary_devices, child_command, embedded_devices, nvidia_devices
from strata_pack.resources import cache_dir
from strata_pack.suggest import unknown

Backend = Literal["cpu", "cuda", "vulkan", "hip", "metal"]
RuntimeKind = Literal["embedded", "binary"]

EMBEDDED_NAME = "embedded"
BINARY_NAME = "llama-server"
AUTO = "auto"

BUILD_RECORD = "runtime.json"
RECORD_LIMIT = 1 << 16

MTP = "draft-mtp"
EMBEDDED_MTP = "COMMON_SPECULATIVE_TYPE_DRAFT_MTP"
"""The name of drafting with the model's own head in llama-server and the embedded server."""

HELP_SECONDS = 20.0

VERBOSITY = 4
"""The log level at which llama.cpp logs its devices and the layers on them."""


@dataclass(frozen=True)
class ServerSettings:
    """How to serve one model.

    ``context`` is the number of tokens per slot, or of all slots together if ``shared``; ``gpu_layers`` None means all
    that fit. ``projector`` is the file of a vision projector; ``drafts`` enables speculative decoding with the model's
    own draft head (MTP); ``alias`` is the model's name in the server's replies, which otherwise have its path.
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
    projector: Path | None = None
    drafts: bool = False
    alias: str | None = None
    extra: tuple[str, ...] = ()

    @property
    def total_context(self) -> int:
        """Tokens of the whole KV cache."""
        return self.context if self.shared else self.context * self.parallel


@dataclass(frozen=True)
class Runtime:
    """One llama.cpp that can be started. ``path`` is the binary; None for an embedded one.

    ``python`` is the interpreter of an embedded one's environment; None for this process's. ``origin`` describes where
    it was found; ``details`` is the record of its build or installation; ``why`` says why it was selected, if the user
    did not name it.
    """

    name: str
    kind: RuntimeKind
    backend: Backend = "cpu"
    path: Path | None = None
    origin: str = field(default="", compare=False)
    details: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)
    python: Path | None = None
    why: str = field(default="", compare=False)

    def command(self, settings: ServerSettings, ready: Path) -> list[str]:
        """Return the command that serves ``settings``; the embedded server writes its URL into ``ready``."""
        if self.path is None:
            return _embedded_command(self.python, settings, ready)
        return _binary_command(self.path, settings)

    @property
    def package_version(self) -> str | None:
        """The version of the package that an embedded one is part of; None for a binary."""
        if self.kind == "binary":
            return None
        return str(self.details["version"]) if self.python is not None else _xllamacpp_version()


def _xllamacpp_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("xllamacpp")
    except PackageNotFoundError:
        raise EnvironmentFailure("xllamacpp is not installed", remedy="pip install strata-pack") from None


def embedded() -> Runtime:
    """Return the embedded runtime; its devices are queried only if the machine has a GPU."""
    found = _xllamacpp_version()
    on_cuda = bool(nvidia_devices()) and any(device.name.startswith("CUDA") for device in embedded_devices())
    backend: Backend = "cuda" if on_cuda else "cpu"
    return Runtime(EMBEDDED_NAME, "embedded", backend, origin=f"the Python package xllamacpp {found}")


def runtime_devices(runtime: Runtime) -> tuple[Device, ...]:
    """Return the GPUs that ``runtime`` uses, by its own names; none for a CPU build or without a driver."""
    if runtime.path is not None:
        return binary_devices(runtime.path)
    return tuple(device for device in embedded_devices(runtime.python) if device.name != "CPU")


def _embedded_command(python: Path | None, settings: ServerSettings, ready: Path) -> list[str]:
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
        # The file's bytes unchanged, as llama-server reads --chat-template-file.
        params["chat_template"] = settings.template_file.read_bytes().decode("utf-8", "surrogateescape")
    if settings.projector is not None:
        params["mmproj.path"] = str(settings.projector)
    if settings.drafts:
        params["speculative.types"] = [EMBEDDED_MTP]
    if settings.alias is not None:
        params["model_alias"] = [settings.alias]
    if settings.threads is not None:
        params["cpuparams.n_threads"] = settings.threads
    params |= embedded_params(settings.extra)
    return child_command(python, json.dumps({"params": params, "ready": str(ready)}))


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
        "--mmproj": settings.projector,
        "--alias": settings.alias,
    }
    switches: Mapping[str, bool] = {
        "--kv-unified": settings.shared,
        "--no-prefill-assistant": not settings.prefill_assistant,
        "--no-warmup": not settings.warmup,
    }
    command += ["--spec-type", MTP] if settings.drafts else []
    for option, value in valued.items():
        command += [] if value is None else [option, str(value)]
    command += [switch for switch, on in switches.items() if on]
    return [*command, *settings.extra]


@lru_cache(maxsize=16)
def can_draft(runtime: Runtime) -> bool:
    """Return whether a runtime can draft with a model's own head (MTP); for a binary, ``--help`` shows that."""
    if runtime.path is None:
        return True
    try:
        told = subprocess.run(
            [str(runtime.path), "--help"], capture_output=True, timeout=HELP_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return MTP.encode() in told.stdout + told.stderr


def runtimes_dir() -> Path:
    """Return the folder of built and installed runtimes: a subfolder for each, with a ``runtime.json`` that is
    written last."""
    return cache_dir() / "runtimes"


def find_binary(given: str | Path | None = None) -> Runtime | None:
    """Return the ``llama-server`` named by ``given``, ``STRATA_LLAMA_SERVER`` or ``PATH``, in this order.

    ``BadInput`` if a named one is not an executable file; None if none is named and none is on the PATH.
    """
    for text, origin in ((given, "--llama-server"), (os.environ.get("STRATA_LLAMA_SERVER"), "STRATA_LLAMA_SERVER")):
        if text:
            # A path has lost its "./" here, so an existing file takes precedence over a name on the PATH.
            local = Path(text)
            found = shutil.which(local.absolute()) if local.is_file() else shutil.which(str(text))
            if found is None:
                raise BadInput("is not an executable llama-server", where=str(text), remedy=f"correct {origin}")
            return Runtime(BINARY_NAME, "binary", path=Path(found).absolute(), origin=origin)
    found = shutil.which(BINARY_NAME)
    return None if found is None else Runtime(BINARY_NAME, "binary", path=Path(found).absolute(), origin="PATH")


def cached_runtimes() -> list[Runtime]:
    """Return the built and installed runtimes, ordered by name; a folder without a readable record is ignored."""
    found = []
    for record in sorted(runtimes_dir().glob(f"*/{BUILD_RECORD}")):
        try:
            runtime = _recorded(record.parent, read_state(record, RECORD_LIMIT))
        except (ValueError, KeyError, TypeError):
            continue
        program = runtime.path or runtime.python
        if program is not None and program.is_file():
            found.append(runtime)
    return found


def _recorded(folder: Path, details: dict[str, Any]) -> Runtime:
    backend, origin = details["backend"], str(details.get("origin", "built here"))
    if "python" in details:
        str(details["version"])
        python = folder / details["python"]
        return Runtime(folder.name, "embedded", backend, origin=origin, details=details, python=python)
    return Runtime(folder.name, "binary", backend, folder / details["binary"], origin, details)


def list_runtimes() -> list[Runtime]:
    """Return every runtime that can be started here, the embedded one first."""
    binary = find_binary()
    return [embedded(), *([binary] if binary else []), *cached_runtimes()]


def _choice_file() -> Path:
    return runtimes_dir() / "use.json"


def used_runtime() -> str:
    """Return the last name given to ``use_runtime``, by default ``"auto"``."""
    name = read_state(_choice_file(), RECORD_LIMIT).get("use")
    return name if isinstance(name, str) else AUTO


def use_runtime(name: str) -> Runtime:
    """Make ``name`` the default runtime; return the runtime that this selects now."""
    chosen = _named(name) if name != AUTO else best_runtime()
    write_atomic(_choice_file(), dump_json({"use": name}))
    return chosen


def pick_runtime(name: str | None = None, llama_server: Path | None = None) -> Runtime:
    """Return the runtime to start.

    The precedence is ``llama_server`` (a binary), ``STRATA_LLAMA_SERVER`` if no name is given, ``name``, the default
    set by ``use_runtime``; ``"auto"`` means ``best_runtime``.
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
    return best_runtime() if name == AUTO else _named(str(name))


def _named(name: str) -> Runtime:
    known = list_runtimes()
    for runtime in known:
        if runtime.name == name:
            return runtime
    raise unknown("runtime", name, [AUTO, *(runtime.name for runtime in known)])


def best_runtime() -> Runtime:
    """Return the fastest runtime here: CUDA, then Vulkan, then CPU. Its ``why`` has the reason.

    CUDA is selected if ``nvidia-smi`` lists a device, Vulkan if the runtime itself lists one.
    """
    ours, made, nvidia = embedded(), cached_runtimes(), nvidia_devices()
    if nvidia:
        on_cuda = [runtime for runtime in (ours, *made) if runtime.backend == "cuda"]
        if on_cuda:
            return replace(on_cuda[0], why=f"CUDA on {_names(nvidia)}")
        no_cuda = f"no CUDA runtime for {_names(nvidia)} (`strata-pack runtime install --backend cuda`)"
    else:
        no_cuda = "no NVIDIA device"
    on_vulkan = [runtime for runtime in made if runtime.backend == "vulkan"]
    for runtime in on_vulkan:
        devices = runtime_devices(runtime)
        if devices:
            return replace(runtime, why=f"{no_cuda}; Vulkan on {_names(devices)}")
    no_vulkan = "no Vulkan device" if on_vulkan else "no Vulkan runtime"
    return replace(ours, why=f"{no_cuda}, {no_vulkan}: the CPU")


def _names(devices: Sequence[Device]) -> str:
    return ", ".join(dict.fromkeys(device.description for device in devices))
