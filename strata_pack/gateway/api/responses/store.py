"""A bounded in-memory store of the last responses, which clients may reference by id.

It stores the bytes of request and response, which need no conversion and whose size in memory is
known; they are decoded only when referenced. A response keeps its predecessor alive:
the predecessor remains usable through it after deletion or eviction, and counts toward the limit until then.
Each client (an API key, or an address) has a separate store.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from strata_pack.gateway.failures import ApiError, bad_request

StoredItem = Mapping[str, Any]
MAX_PAGE = 100
MAX_CHAIN = 10_000
"""Most consecutive responses of one conversation."""


@dataclass
class StoredResponse:
    """One response: the request body, the response as JSON, and its predecessor."""

    id: str
    body: bytes
    response: bytes
    previous: StoredResponse | None
    at: float
    items: tuple[str, ...]
    length: int = 1
    users: int = field(default=0, repr=False)
    """Number of stored responses that depend on this one."""

    @property
    def size(self) -> int:
        return len(self.body) + len(self.response)

    def chain(self) -> Iterator[StoredResponse]:
        """Yield this response and its predecessors, newest first."""
        one: StoredResponse | None = self
        while one is not None:
            yield one
            one = one.previous

    def own_input(self) -> list[dict[str, Any]]:
        """Return the items of the request's own input, each with an id."""
        given = json.loads(self.body).get("input")
        unique = self.id.partition("_")[2]
        if isinstance(given, str):
            given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
        return [
            {"type": "message", "id": f"in_{unique}_{number}", **item}
            for number, item in enumerate(given if isinstance(given, list) else [])
        ]

    def output(self) -> list[dict[str, Any]]:
        """Return the items of the response."""
        output: list[dict[str, Any]] = json.loads(self.response)["output"]
        return output

    def conversation(self) -> list[StoredItem]:
        """Return all items of the conversation up to and with this response, oldest first."""
        return [item for part in reversed(list(self.chain())) for item in (*part.own_input(), *part.output())]


class Memory:
    """The responses of one client, most recently used last. Used by the event loop and by threads that read bodies."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()
        self._items: dict[str, StoredResponse] = {}
        self._lock = threading.Lock()
        self.bytes = 0

    def add(self, response: Mapping[str, Any], body: bytes, previous_id: str | None) -> None:
        """Store ``response``, unless it is larger than the limit."""
        data = json.dumps(response, ensure_ascii=False).encode("utf-8", "replace")
        with self._lock:
            previous = self._kept.get(previous_id) if previous_id else None
            items = tuple(item["id"] for item in response["output"])
            length = previous.length + 1 if previous else 1
            one = StoredResponse(response["id"], body, data, previous, time.monotonic(), items, length)
            if one.size > self._limit or one.length > MAX_CHAIN:
                return
            self._kept[one.id] = one
            self._items.update(dict.fromkeys(items, one))
            for part in one.chain():
                part.users += 1
                self.bytes += part.size if part.users == 1 else 0
            self._shrink()

    def get(self, response_id: str) -> StoredResponse:
        """Return a response. Raises ``ApiError`` 404 if it is not stored."""
        with self._lock:
            self._shrink()
            one = self._kept.get(response_id)
            if one is None:
                raise ApiError(
                    404, f"there is no stored response {response_id[:100]!r}; it may have expired", kind="no_response",
                    param="response_id", code="response_not_found",
                )  # fmt: skip
            self._used(one)
            return one

    def delete(self, response_id: str) -> None:
        """Delete a response. Raises ``ApiError`` 404 if it is not stored."""
        one = self.get(response_id)
        with self._lock:
            self._forget(one)

    # The protocol ``input.Recall``

    def item(self, item_id: str) -> StoredItem | None:
        """Return an item of a stored response."""
        with self._lock:
            self._shrink()
            one = self._items.get(item_id)
            if one is not None:
                self._used(one)
        return None if one is None else next((item for item in one.output() if item["id"] == item_id), None)

    def conversation(self, response_id: str) -> list[StoredItem]:
        """Return all items of the conversation up to and with a response, oldest first. Raises ``ApiError`` 400 if
        unknown."""
        try:
            one = self.get(response_id)
        except ApiError:
            raise ApiError(
                400, f"previous_response_id: there is no stored response {response_id[:100]!r}; it may have expired; "
                "send the whole conversation as input", kind="bad_request", param="previous_response_id",
                code="previous_response_not_found",
            ) from None  # fmt: skip
        return one.conversation()

    def _used(self, one: StoredResponse) -> None:
        one.at = time.monotonic()
        if one.id in self._kept:
            self._kept.move_to_end(one.id)

    def _shrink(self) -> None:
        """Delete expired responses, and the oldest ones while the limit is exceeded."""
        oldest = time.monotonic() - self._seconds
        while self._kept and (self.bytes > self._limit or next(iter(self._kept.values())).at < oldest):
            self._forget(next(iter(self._kept.values())))

    def _forget(self, one: StoredResponse) -> None:
        if self._kept.pop(one.id, None) is None:
            return
        for item_id in one.items:
            self._items.pop(item_id, None)
        for part in one.chain():
            part.users -= 1
            self.bytes -= part.size if part.users == 0 else 0


def input_items(kept: StoredResponse, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the input items of ``kept``; ``query`` has ``limit``, ``order`` and ``after``.

    Raises ``ApiError`` 400 for an invalid query.
    """
    before = kept.previous.conversation() if kept.previous else []
    items = [dict(item) for item in (*before, *kept.own_input())]
    limit, order, after = query.get("limit", "20"), query.get("order", "desc"), query.get("after")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit) <= MAX_PAGE):
        raise bad_request(f"limit: must be a number from 1 to {MAX_PAGE}", "limit")
    if order not in ("asc", "desc"):
        raise bad_request("order: must be asc or desc", "order")
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item.get("id") for item in items]
        if after not in ids:
            raise bad_request(f"after: there is no item {after[:100]!r}", "after")
        items = items[ids.index(after) + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0].get("id") if page else None,
        "last_id": page[-1].get("id") if page else None,
        "has_more": len(items) > len(page),
    }


class EmptyMemory:
    """The ``Recall`` of a gateway that stores nothing."""

    def item(self, _item_id: str) -> StoredItem | None:
        return None

    def conversation(self, _response_id: str) -> list[StoredItem]:
        raise ApiError(
            400, "previous_response_id: responses are not stored here; send the whole conversation as input",
            kind="bad_request", param="previous_response_id", code="previous_response_not_found",
        )  # fmt: skip


class Store:
    """The stores of all clients; ``limit`` (bytes) and ``seconds`` apply to each, ``limit`` 0 stores nothing."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._memories: dict[str, Memory] = {}

    def of(self, client: str) -> Memory | None:
        """Return the memory of ``client``, ``None`` if nothing is stored."""
        if not self._limit:
            return None
        return self._memories.setdefault(client, Memory(self._limit, self._seconds))

    @property
    def bytes(self) -> int:
        """Bytes in all stores together."""
        return sum(memory.bytes for memory in self._memories.values())
