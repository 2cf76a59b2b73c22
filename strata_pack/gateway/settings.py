"""The settings of a gateway; the caller reads them from flags or a pack."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from strata_pack.parsing import ImplicitEnd

UNKNOWN = "unknown"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Served:
    """Facts of the served model for replies, ``/v1/status`` and the metrics' labels.

    ``build``: llama-server's name of its version (``b11434-0123abcd``), empty if unknown. ``drafts``: the server drafts
    with the model's draft head, and has no log probabilities of accepted drafts.
    """

    model: str = ""
    quant: str = UNKNOWN
    template_id: str = UNKNOWN
    template_status: str = UNKNOWN
    runtime: str = "llama-server"
    build: str = ""
    pack: dict[str, Any] | None = None
    drafts: bool = False


@dataclass(frozen=True)
class GatewayLimits:
    """Sizes in bytes, times in seconds, counts of requests.

    ``store_*`` limit the stored responses of each client; 0 bytes store nothing.
    """

    parallel: int = 1
    queue: int = 64
    body_bytes: int = 32 << 20
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    queue_seconds: float = 120.0
    request_seconds: float = 7200.0
    stalled_client_seconds: float = 60.0
    choices: int = 16
    ping_seconds: float = 15.0
    drain_seconds: float = 30.0
    store_bytes: int = 64 << 20
    store_seconds: float = 8 * 3600.0


@dataclass(frozen=True)
class Settings:
    """Settings of a gateway. ``api_keys`` empty: everybody on loopback has access.

    ``hosts``: host names accepted by a gateway without keys (a browser tricked into resolving
    another name to this machine is refused). ``reasoning_budget``: most tokens of thinking in a reply unless its
    request says otherwise, ``None`` for no limit. ``implicit_end`` is the parser's policy. ``cors`` are the origins of
    allowed web pages; "*" for all. ``pass_native``: llama-server's own endpoints are passed on.
    """

    served: Served
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    api_keys: tuple[str, ...] = ()
    hosts: tuple[str, ...] = LOOPBACK
    cors: tuple[str, ...] = ()
    pass_native: bool = False
    reasoning_budget: int | None = None
    implicit_end: ImplicitEnd = "guarded"
