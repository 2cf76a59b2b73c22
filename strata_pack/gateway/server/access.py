"""Report every finished HTTP request: client, request, cost, outcome. No content.

One ``Access`` per request is passed to every sink: the access log below, and telemetry.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from strata_pack.gateway.metrics import RequestRecord
from strata_pack.gateway.options import AccessFormat

log = logging.getLogger("strata_pack.access")

MAX_PATH = 200


@dataclass(frozen=True)
class Access:
    """One finished HTTP request. ``at`` is Unix time, ``seconds`` its duration; ``outcome`` as in ``RequestRecord``.

    ``record`` is its metrics record, ``None`` for a request that generates nothing.
    """

    at: float
    seconds: float
    request_id: str
    client: str
    method: str
    path: str
    status: int
    outcome: str
    model: str = ""
    record: RequestRecord | None = field(default=None, repr=False)
    traceparent: str = ""


Sink = Callable[[Access], None]

RECORD_FIELDS: Mapping[str, str] = {
    "api": "api",
    "stream": "stream",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "completion_tokens": "completion_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "tool_calls": "tool_calls",
    "finish_reason": "finish_reason",
    "queued": "queued_seconds",
    "time_to_first_token": "first_token_seconds",
}
"""Reported fields of an ``Access`` -> their names in the JSON line."""


def json_line(access: Access) -> str:
    """Return the entry as one JSON object."""
    fields = asdict(access)
    del fields["record"], fields["traceparent"]
    fields["at"] = datetime.fromtimestamp(access.at, UTC).isoformat(timespec="milliseconds")
    fields["seconds"] = round(access.seconds, 4)
    fields["path"] = access.path[:MAX_PATH]
    if access.record is not None:
        for name, shown in RECORD_FIELDS.items():
            value = getattr(access.record, name)
            fields[shown] = round(value, 4) if isinstance(value, float) else value
    return json.dumps(fields, ensure_ascii=True)


def text_line(access: Access) -> str:
    """Return the entry as one readable line, without line breaks from its values."""
    at = datetime.fromtimestamp(access.at, UTC).isoformat(timespec="seconds")
    line = (
        f"{at} {access.client} {json.dumps(f'{access.method} {access.path[:MAX_PATH]}')} {access.status} "
        f"{access.outcome} {access.seconds:.3f}s {access.request_id}"
    )
    record = access.record
    if record is None:
        return line
    first = "-" if record.time_to_first_token is None else f"{record.time_to_first_token:.3f}s"
    return (
        f"{line} prompt={record.prompt_tokens} cached={record.cached_tokens} completion={record.completion_tokens} "
        f"reasoning={record.reasoning_tokens} calls={record.tool_calls} queued={record.queued:.3f}s first={first} "
        f"finish={record.finish_reason or '-'} model={access.model or '-'}"
    )


LINES: Mapping[str, Callable[[Access], str]] = {"text": text_line, "json": json_line}


def access_log(form: AccessFormat) -> list[Sink]:
    """Return sinks that write lines of ``form`` to the logger ``strata_pack.access``, empty for "off"."""
    write = LINES.get(form)
    return [] if write is None else [lambda access: log.info("%s", write(access))]
