"""Reads HTTP archives, as browsers and proxies save them: each entry has a request and its response."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from strata_pack.replay.chunks import Chunks
from strata_pack.replay.messages import as_dict, json_value
from strata_pack.replay.replies import RecordedTurn
from strata_pack.replay.shapes import completed, turns_in

Turns = list[RecordedTurn]


def har_turns(record: dict[str, Any]) -> Turns | None:
    """Read an HTTP archive, or one of its entries: JSON bodies and transcripts of streams."""
    log = record.get("log")
    if isinstance(log, dict) and isinstance(log.get("entries"), list):
        return [turn for entry in log["entries"] for turn in har_turns(as_dict(entry)) or ()]
    request, response = record.get("request"), record.get("response")
    if not (isinstance(request, dict) and isinstance(response, dict) and isinstance(response.get("content"), dict)):
        return None
    body = response["content"].get("text")
    if response["content"].get("encoding") == "base64" and isinstance(body, str):
        try:
            body = base64.b64decode(body, validate=True).decode("utf-8", "replace")
        except (ValueError, binascii.Error):
            return []
    asked = as_dict(json_value(as_dict(request.get("postData")).get("text")))
    if not isinstance(body, str):
        return []
    found = transcript_turns(body) if body.lstrip().startswith(("data:", "event:", ":")) else None
    if found is None:
        value = json_value(body)
        found = turns_in(value) if isinstance(value, dict) else None
        if found is None and "\n" in body:
            found = transcript_turns(body)
    return [completed(turn, asked) for turn in found or ()]


def transcript_turns(text: str) -> Turns | None:
    """Return the turns of a stream's transcript, None if it has no event."""
    chunks, known = Chunks(), False
    turns: Turns = []
    event = None
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("event:"):
            event = line[6:].strip()
            continue
        value = json_value(line[5:].strip() if line.startswith("data:") else line)
        if isinstance(value, dict):
            fed = chunks.feed(value, event)
            known = known or fed is not None
            turns += fed or ()
    return [*turns, *chunks.finish()] if known else None
