"""The options of ``serve``. Their defaults are only here and in ``GatewayLimits``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strata_pack.gateway.settings import GatewayLimits
from strata_pack.parsing import ImplicitEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strata_pack.pack.drafting import Spec

AccessFormat = Literal["text", "json", "off"]
LIMITS = GatewayLimits()


@dataclass(frozen=True)
class ServeOptions:
    """The command's options. A pack may be a GGUF; times in seconds, ``context`` in tokens of one slot.

    ``mmproj`` is the projector of the one GGUF; ``images`` False ignores a pack's projector. ``max_loaded`` and
    ``idle_seconds`` as in ``Models``; with either, or with several packs, models are loaded on demand. ``anyway``: load
    a model even if it needs more memory than there is.
    """

    packs: tuple[Path, ...] = ()
    upstream: str | None = None
    max_loaded: int | None = None
    idle_seconds: float | None = None
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
    queue: int = LIMITS.queue
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
    request_seconds: float = LIMITS.request_seconds
    drain_seconds: float = LIMITS.drain_seconds


DEFAULTS = ServeOptions()
