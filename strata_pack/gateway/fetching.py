"""Fetch images from https URLs safely (protection against server-side request forgery).

A client's URL makes this machine send a request. So only https is fetched, every name is resolved here and
all its addresses must be public, the connection goes to the checked address (the name is not resolved
again), and the same applies to every redirect. Size and time are bounded; no cookie, key or proxy is used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Callable
from urllib.parse import urljoin

import httpx2 as httpx

from strata_pack import __version__
from strata_pack.gateway.deadline import Deadline

SECONDS = 20.0
"""Seconds that one image may take, redirects included."""

MAX_REDIRECTS = 3
MAX_URL = 8192
REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = {"Accept": "image/png, image/jpeg, image/webp, image/gif", "User-Agent": f"strata-pack/{__version__}"}


class NotFetched(Exception):
    """The URL gave no image; the message completes "the image ..."."""


def is_public(address: str) -> bool:
    """Return whether an IP address is public, also for a v4 address embedded in a v6 one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inside = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inside is None and found in ipaddress.ip_network("64:ff9b::/96"):
            inside = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inside is not None:
            return is_public(str(inside))
    return found.is_global and not found.is_multicast and not found.is_reserved


class Fetcher:
    """Fetches images. ``allowed`` decides which IP addresses are contacted, ``context`` verifies certificates."""

    def __init__(
        self,
        max_bytes: int,
        *,
        allowed: Callable[[str], bool] = is_public,
        context: ssl.SSLContext | None = None,
        seconds: float = SECONDS,
    ) -> None:
        self._max_bytes = max_bytes
        self._allowed = allowed
        self._context = context
        self._seconds = seconds

    async def fetch(self, url: str) -> bytes:
        """Return what is at ``url``; raises ``NotFetched``."""
        # Created at first use, because it reads all certificate authorities of the machine.
        self._context = self._context or ssl.create_default_context()
        try:
            with Deadline(self._seconds):
                # One connection per image: a pool would reuse one to the address of an older look-up.
                async with httpx.AsyncClient(verify=self._context, trust_env=False, timeout=self._seconds) as client:
                    return await self._follow(client, url)
        except TimeoutError:
            raise NotFetched(f"did not arrive within {self._seconds:.0f} s") from None
        except NotFetched:
            raise
        except Exception as error:  # the client raises many types for invalid URLs
            raise NotFetched(f"cannot be fetched ({type(error).__name__})") from error

    async def _follow(self, client: httpx.AsyncClient, url: str) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            found = await self._ask(client, url)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise NotFetched(f"is more than {MAX_REDIRECTS} redirects away")

    async def _ask(self, client: httpx.AsyncClient, url: str) -> bytes | str:
        """Return the content at ``url``, or the URL of the redirect."""
        if len(url) > MAX_URL:
            raise NotFetched("has an address that is too long")
        asked = httpx.URL(url)
        if asked.scheme != "https":
            raise NotFetched("is not at an https address")
        if asked.userinfo or not asked.host:
            raise NotFetched("has an address with a password in it" if asked.userinfo else "has no host in its address")
        if asked.port is not None and not 0 < asked.port < 1 << 16:
            raise NotFetched("has an address with an impossible port")
        address = await self._look_up(asked.host, asked.port or 443)
        name = asked.raw_host.decode("ascii")
        async with client.stream(
            "GET",
            asked.copy_with(host=address),
            headers={**HEADERS, "Host": asked.netloc.decode("ascii")},
            extensions={"sni_hostname": name.strip("[]")},
            follow_redirects=False,
        ) as response:
            if response.status_code in REDIRECTS and "location" in response.headers:
                return str(response.headers["location"])
            if response.status_code != 200:
                raise NotFetched(f"was answered with status {response.status_code}")
            return await self._content(response)

    async def _content(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        # Raw bytes: a compressed body could decompress to any size.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise NotFetched("is compressed, although the request did not allow that")
        async for part in response.aiter_raw():
            size += len(part)
            if size > self._max_bytes:
                raise NotFetched(f"has more than {self._max_bytes:,} bytes")
            parts.append(part)
        return b"".join(parts)

    async def _look_up(self, host: str, port: int) -> str:
        """Return an address of ``host``. Raises ``NotFetched`` unless all its addresses are allowed."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NotFetched("has a host name that cannot be resolved") from error
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(map(self._allowed, addresses)):
            # The same message for all names, so that internal names are not revealed.
            raise NotFetched("has an address that is not public")
        return addresses[0]
