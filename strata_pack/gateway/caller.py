"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_pack.gateway.metrics import RequestRecord


@dataclass(frozen=True)
class Caller:
    """Who asks: an id for this request, and the name under which the queue is fair (a key or an address).

    ``records`` gets what the metrics know of the request.
    """

    request_id: str
    client: str
    records: list[RequestRecord] = field(default_factory=list)

    def record(self, api: str, *, stream: bool) -> RequestRecord:
        """Return the record of this request."""
        record = RequestRecord(self.request_id, api, stream=stream, client=self.client)
        self.records.append(record)
        return record
