"""Defines the Hub's address, the credentials, and the limits of retries."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strata_pack import __version__
from strata_pack.errors import BadInput

if TYPE_CHECKING:
    import ssl

    import httpx2 as httpx

LOGIN_REMEDY = "accept its terms on the Hub's page and log in with `hf auth login`, or set HF_TOKEN"


@dataclass(frozen=True)
class RetryPolicy:
    """Retry limits: at most ``tries`` in a row without a new byte, with pauses of ``base_seconds`` * 2^n.

    ``timeout_seconds`` is the maximum silence of a connection. A ``Retry-After`` above ``longest_wait_seconds`` ends
    the fetch at once.
    """

    tries: int = 6
    base_seconds: float = 1.0
    cap_seconds: float = 30.0
    longest_wait_seconds: float = 600.0
    timeout_seconds: float = 30.0

    def wait(self, failures: int, retry_after: float | None = None) -> float:
        """Return the seconds to wait after the ``failures``-th fault in a row (1 is the first)."""
        pause: float = min(self.cap_seconds, self.base_seconds * 2 ** (failures - 1))
        return pause if retry_after is None else max(retry_after, 0.0)


@dataclass(frozen=True)
class Hub:
    """The Hub and the login: ``endpoint`` without a final slash; ``token`` None uses the stored login, if any."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    retry_policy: RetryPolicy = RetryPolicy()

    def headers(self) -> dict[str, str]:
        """Return the request headers: user agent and, if logged in, authorization."""
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        return dict(build_hf_headers(token=self.token, library_name="strata-pack", library_version=__version__))

    def client(self, connections: int = 100) -> httpx.Client:
        """Return an HTTP client for at most ``connections`` at a time; the caller closes it."""
        import httpx2 as httpx

        return httpx.Client(
            follow_redirects=True,
            timeout=self.retry_policy.timeout_seconds,
            limits=httpx.Limits(max_connections=connections),
            verify=_tls_context(),
            event_hooks={"response": [_check_location]},
        )


def _check_location(response: httpx.Response) -> None:
    """Raise ``InvalidURL`` for a redirect to a malformed address.

    Without this check it counts as a broken connection, which is tried again, or is a ``UnicodeError``.
    """
    import httpx2 as httpx

    if not response.has_redirect_location:
        return
    try:
        response.url.join(response.headers["Location"]).host.encode("idna")
    except (httpx.InvalidURL, ValueError) as error:
        raise httpx.InvalidURL(str(error)) from None


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Return the system's certificate authorities, read once: reading them takes longer than most requests."""
    import httpx2 as httpx

    return httpx.create_ssl_context()


def connect(endpoint: str | None = None, token: str | None = None, retry_policy: RetryPolicy | None = None) -> Hub:
    """Return the Hub; ``HF_ENDPOINT`` and ``HF_TOKEN`` are the defaults of missing arguments."""
    chosen = endpoint or os.environ.get("HF_ENDPOINT")
    if not chosen:
        from huggingface_hub.constants import ENDPOINT

        chosen = ENDPOINT
    if not chosen.startswith(("http://", "https://")):
        raise BadInput("is not an http(s) address of a Hub", where=chosen, remedy="set HF_ENDPOINT to one")
    return Hub(chosen.rstrip("/"), token or os.environ.get("HF_TOKEN") or None, retry_policy or RetryPolicy())


def is_offline() -> bool:
    """Return whether ``HF_HUB_OFFLINE`` forbids the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def may_pass(status: int) -> bool:
    """Return whether an HTTP status is transient."""
    return status in (408, 425, 429) or 500 <= status <= 599


def retry_after_seconds(header: str | None) -> float | None:
    """Return the seconds of a ``Retry-After`` header (number or HTTP date), None without a valid one."""
    if header is None:
        return None
    text = header.strip()
    if text.removeprefix("-").isdecimal():
        # The number may be too large for a float: then it is infinite, above every limit.
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
