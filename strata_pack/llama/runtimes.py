"""Which llama.cpp there is to run: the embedded one of xllamacpp, and any ``llama-server`` binary.

A ``Runtime`` knows how to turn ``ServerSettings`` into a command; it starts nothing itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse

Backend = Literal["cpu", "cuda", "vulkan", "hip", "metal"]
Kind = Literal["embedded", "binary"]

ALL_LAYERS = 999
"""llama.cpp takes any number that is not smaller than the model's layers as "all"."""


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
    """One llama.cpp that can be started. ``path`` is the binary; None for the embedded one."""

    name: str
    kind: Kind
    backend: Backend = "cpu"
    path: Path | None = None
    origin: str = field(default="", compare=False)
    """Where it was found, in words."""

    def command(self, settings: ServerSettings, ready: Path) -> list[str]:
        """Return the command that serves ``settings``; the embedded server writes its URL into ``ready``."""
        if self.kind == "embedded":
            return _embedded_command(settings, ready)
        return _binary_command(self.path, settings)


EMBEDDED = Runtime("embedded", "embedded", origin="the Python package xllamacpp")


def _embedded_command(settings: ServerSettings, ready: Path) -> list[str]:
    if settings.extra:
        raise WrongUse("options of llama-server cannot be given to the embedded server", where="--extra")
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
        "n_gpu_layers": -1 if settings.gpu_layers is None else settings.gpu_layers,
    }
    if settings.template_file is not None:
        # As llama-server reads --chat-template-file: the bytes as they are.
        params["chat_template"] = settings.template_file.read_bytes().decode("utf-8", "surrogateescape")
    if settings.threads is not None:
        params["cpuparams.n_threads"] = settings.threads
    return [sys.executable, "-m", "strata_pack.llama.child", json.dumps({"params": params, "ready": str(ready)})]


def _binary_command(path: Path | None, settings: ServerSettings) -> list[str]:
    command = [
        *(str(path), "--model", str(settings.model)),
        *("--host", settings.host, "--port", str(settings.port)),
        *("--ctx-size", str(settings.total_context), "--parallel", str(settings.parallel)),
        *("--jinja", "--no-webui"),
    ]
    if settings.shared:
        command.append("--kv-unified")
    if settings.gpu_layers is not None:
        command += ["--n-gpu-layers", str(settings.gpu_layers)]
    if settings.template_file is not None:
        command += ["--chat-template-file", str(settings.template_file)]
    if settings.threads is not None:
        command += ["--threads", str(settings.threads)]
    if not settings.prefill_assistant:
        command.append("--no-prefill-assistant")
    if not settings.warmup:
        command.append("--no-warmup")
    return [*command, *settings.extra]


def find_binary(given: str | Path | None = None) -> Runtime | None:
    """Return the ``llama-server`` named by ``given``, ``STRATA_LLAMA_SERVER`` or ``PATH``, in this order.

    ``BadInput`` if a named one is not an executable file; None if none is named and none is on the path.
    """
    for text, origin in ((given, "--llama-server"), (os.environ.get("STRATA_LLAMA_SERVER"), "STRATA_LLAMA_SERVER")):
        if text:
            found = shutil.which(str(text))
            if found is None:
                raise BadInput("is not an executable llama-server", where=text, remedy=f"correct {origin}")
            return Runtime("llama-server", "binary", path=Path(found).absolute(), origin=origin)
    found = shutil.which("llama-server")
    return None if found is None else Runtime("llama-server", "binary", path=Path(found).absolute(), origin="PATH")


def list_runtimes() -> list[Runtime]:
    """Return every runtime that can be started here, the embedded one first."""
    binary = find_binary()
    return [EMBEDDED] if binary is None else [EMBEDDED, binary]


def pick_runtime(name: str | None = None) -> Runtime:
    """Return the runtime called ``name``; None or ``"auto"`` takes the best one for this machine."""
    if name in (None, "auto", "embedded"):
        return EMBEDDED
    for runtime in list_runtimes():
        if name == runtime.name:
            return runtime
    raise EnvironmentFailure(f'there is no runtime "{name}"', remedy="see `strata-pack runtime list`")
