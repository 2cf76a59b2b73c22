"""Protection against web pages: their requests are refused unless their origin is allowed.

A page in a browser on this machine can reach a server on loopback, and make it work without being
allowed to read the answer (a form, or ``fetch`` with ``text/plain``, needs no preflight). Browsers say so in headers
that a page cannot forge: ``Origin`` and ``Sec-Fetch-Site``. With API keys, a page without a key gets nothing.
Sources: the Fetch standard, section 3.2 (CORS protocol); W3C Fetch Metadata; Private Network Access.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strata_pack.gateway.failures import ApiError
from strata_pack.gateway.streams import ReplyStream

ANY = "*"
METHODS = "GET, POST, DELETE, OPTIONS"
EXPOSED = "x-request-id, request-id, retry-after"
PREFLIGHT_SECONDS = "600"
HARMLESS_PATHS = ("/", "/health")
"""Paths that any page may link to: the live page (without data), and the health check."""

Headers = list[tuple[bytes, bytes]]


class OriginPolicy:
    """The allowed origins and host names. ``keyed``: API keys are required, so other checks are not needed."""

    def __init__(self, origins: Iterable[str], hosts: Iterable[str], *, keyed: bool) -> None:
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._hosts = frozenset(host.lower() for host in hosts)
        self._keyed = keyed

    def check(self, method: str, path: str, headers: Mapping[str, str], http_version: str = "1.1") -> None:
        """Raise ``ApiError`` 421 for a foreign host name, 403 for a page of a foreign origin, before the body is read.

        HTTP/1.0 has no ``Host``, and no browser uses it.
        """
        if self._keyed:
            return
        host = host_name(headers.get("host", ""))
        if host not in self._hosts and not (http_version == "1.0" and "host" not in headers):
            # A web page can point its own name to this machine (DNS rebinding); its requests have that name.
            raise ApiError(
                421, f"this gateway does not answer to the host name {host[:100]!r}; to allow it, start the gateway "
                f"with --allow-host {host[:100] or 'NAME'}, or with --api-key", kind="wrong_host",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None:
            foreign = not (self._lets_in(origin) or self._is_ours(origin, headers.get("host", "")))
        else:
            harmless = method in ("GET", "HEAD") and path in HARMLESS_PATHS
            foreign = headers.get("sec-fetch-site", "").lower() == "cross-site" and not harmless
        if foreign:
            raise ApiError(
                403, f"web pages of {(origin or 'other sites')[:100]!r} may not use this gateway; to allow them, "
                "start it with --cors ORIGIN, or with --api-key", kind="foreign_origin",
            )  # fmt: skip

    def preflight(self, method: str, headers: Mapping[str, str]) -> ReplyStream | None:
        """Return the response to a preflight (which never has a key), ``None`` for any other request."""
        origin = headers.get("origin")
        if method != "OPTIONS" or origin is None or "access-control-request-method" not in headers:
            return None
        if not self._lets_in(origin):
            raise ApiError(
                403, f"web pages of {origin[:100]!r} may not use this gateway; to allow them, start it with "
                "--cors ORIGIN", kind="foreign_origin",
            )  # fmt: skip
        answer = {
            "access-control-allow-methods": METHODS,
            "access-control-allow-headers": headers.get("access-control-request-headers", "content-type"),
            "access-control-max-age": PREFLIGHT_SECONDS,
        }
        if headers.get("access-control-request-private-network") == "true":
            answer["access-control-allow-private-network"] = "true"
        return ReplyStream(b"", 204, answer)

    def response_headers(self, headers: Mapping[str, str]) -> Headers:
        """Return the headers of every response to this request, errors included."""
        if not self._origins:
            return []
        vary = (b"vary", b"origin")
        origin = headers.get("origin")
        if origin is None or not self._lets_in(origin):
            return [vary]
        allowed = ANY if ANY in self._origins else origin
        return [
            vary,
            (b"access-control-allow-origin", allowed.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED.encode()),
        ]

    def _lets_in(self, origin: str) -> bool:
        return ANY in self._origins or origin.lower() in self._origins

    @staticmethod
    def _is_ours(origin: str, host: str) -> bool:
        """Return whether the page is the gateway's own: its origin equals the requested host."""
        return origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")


def host_name(header: str) -> str:
    """Return the name in a ``Host`` header, without the port."""
    if header.startswith("["):
        return header[1 : header.find("]")]
    return header.partition(":")[0].lower()
