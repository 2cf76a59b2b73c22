"""Requests the Hub's JSON API: retries faults, and checks every answer, which may come from a proxy or login page.

Every failure is one sentence. Transient faults are retried, for a bounded time; the Hub's own client sleeps as long as
a server tells it to. Source: the Hub's API documentation (``X-Error-Code``, pages by ``Link: rel="next"``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2 as httpx

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.weights.hub.connection import LOGIN_REMEDY, Hub, may_pass, retry_after_seconds

MAX_ANSWER = 64 << 20
"""Maximum bytes of one answer; a page of the file list has 1,000 entries."""
MAX_PAGES = 10_000
METADATA_TRIES = 4
"""Retry limits for API requests: fewer tries than for file bodies, because the user waits and giving up loses
nothing."""
NOT_A_HUB = "check HF_ENDPOINT, and whether a proxy or a login page answers in its place"

T = TypeVar("T")

LOST = (httpx.TooManyRedirects, httpx.InvalidURL, httpx.UnsupportedProtocol)
"""Faults of redirects, which another try does not cure."""


class _Answer(Exception):
    """An HTTP answer with an error status."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.status, self.headers = response.status_code, response.headers


def get_json(hub: Hub, path: str, where: str) -> Any:
    """Return the JSON value at ``path`` of the Hub.

    Raises ``BadInput`` for a missing item, ``EnvironmentFailure`` for all other faults; messages name ``where``.
    """
    with hub.client() as client:
        return _patiently(hub, where, lambda: _get(client, hub, hub.endpoint + path))[0]


def get_pages(hub: Hub, path: str, where: str) -> Iterator[Any]:
    """Yield the items of a paginated list; raises as ``get_json``."""
    url = hub.endpoint + path
    seen: set[str] = set()
    with hub.client() as client:
        while url not in seen and len(seen) < MAX_PAGES:
            seen.add(url)
            items, following = _patiently(hub, where, partial(_get, client, hub, url))
            if not isinstance(items, list):
                raise _odd(hub, where, f"a list was expected, {type(items).__name__} came")
            yield from items
            if following is None:
                return
            url = following
    raise _odd(hub, where, f"its list does not end, after {len(seen)} pages")


def _get(client: httpx.Client, hub: Hub, url: str) -> tuple[Any, str | None]:
    """Return the JSON at ``url`` and the address of the next page, ``None`` after the last one."""
    # The token is sent only to the origin that the user chose.
    ours = urlsplit(url)[:2] == urlsplit(hub.endpoint)[:2]
    headers = {key: value for key, value in hub.headers().items() if ours or key.lower() != "authorization"}
    with client.stream("GET", url, headers=headers) as response:
        if not response.is_success:
            raise _Answer(response)
        body = bytearray()
        for data in response.iter_bytes():
            body += data
            if len(body) > MAX_ANSWER:
                raise ValueError(f"more than {MAX_ANSWER} bytes")
        if "html" in response.headers.get("Content-Type", ""):
            raise ValueError("an HTML page")
        following = response.links.get("next", {}).get("url")
        return json.loads(body), None if following is None else str(response.url.join(following))


def _patiently(hub: Hub, where: str, call: Callable[[], T]) -> T:
    failures = 0
    while True:
        failures += 1
        retry_after: float | None = None
        try:
            return call()
        except _Answer as answer:
            failure = _refusal(answer, where)
            retry_after = retry_after_seconds(answer.headers.get("Retry-After"))
            if not may_pass(answer.status):
                raise failure from None
        except (ValueError, RecursionError, httpx.DecodingError) as error:
            raise _odd(hub, where, str(error)) from None
        except LOST as error:
            raise EnvironmentFailure(f"{hub.endpoint}: {lost(error)}", where=where, remedy=NOT_A_HUB) from None
        except httpx.TransportError as error:
            failure = EnvironmentFailure(
                f"{hub.endpoint} cannot be reached ({error or type(error).__name__})",
                where=where,
                remedy="check the network and HF_ENDPOINT",
            )
        if (
            failures >= min(hub.retry_policy.tries, METADATA_TRIES)
            or (retry_after or 0) > hub.retry_policy.longest_wait_seconds
        ):
            raise failure
        time.sleep(hub.retry_policy.wait(failures, retry_after))


def lost(error: Exception) -> str:
    """Return what is wrong with redirects that ended in ``error``, one of ``LOST``."""
    end = "without end" if isinstance(error, httpx.TooManyRedirects) else "to an address that is not on the web"
    return f"redirected {end} ({error})"


def _odd(hub: Hub, where: str, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"{hub.endpoint} does not answer as a Hub does ({why[:200]})", where=where, remedy=NOT_A_HUB
    )


def _refusal(answer: _Answer, where: str) -> StrataError:
    status, code = answer.status, answer.headers.get("X-Error-Code", "")
    if code == "GatedRepo" or (status == 403 and code != "RepoNotFound"):
        return EnvironmentFailure(f"access is restricted (HTTP {status})", where=where, remedy=LOGIN_REMEDY)
    if code == "RevisionNotFound":
        return BadInput("no such revision on the Hub", where=where, remedy="name a branch, tag or commit")
    if status == 401:
        # Without login, the Hub does not distinguish wrong from private names; a wrong name is more likely.
        return BadInput(
            "no such repository on the Hub, or it is private (HTTP 401)",
            where=where,
            remedy=f"check the name; if it is private, {LOGIN_REMEDY}",
        )
    if code == "RepoNotFound" or status == 404:
        return BadInput("no such repository on the Hub", where=where, remedy="check the name")
    return EnvironmentFailure(f"the Hub answered HTTP {status}", where=where, remedy="run again later")
