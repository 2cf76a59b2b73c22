"""The client of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from strata_pack.gateway.metrics import RequestRecord


@dataclass(frozen=True)
class Caller:
    """A request's id, and its client's name in the queue (a key's hash or an address).

    The request's metrics record is added to ``records``.
    """

    request_id: str
    client: str
    records: list[RequestRecord] = field(default_factory=list)

    def record(self, api: str, *, stream: bool) -> RequestRecord:
        """Return the record of this request."""
        record = RequestRecord(self.request_id, api, stream=stream, client=self.client)
        self.records.append(record)
        return record
