"""Encode thinking as ``encrypted_content`` of the Responses API, an opaque value that clients send back.

Clients that request it (``include: ["reasoning.encrypted_content"]``) send back only that value, not the text next to
it. It is an encoding, not encryption: the client also gets the thinking as plain text.
"""

from __future__ import annotations

import base64

PREFIX = "strata-1-"
"""Distinguishes these values from other servers' and from later encodings."""


def encode_thinking(thinking: str) -> str:
    """Return ``thinking`` as opaque value: ``PREFIX`` and URL-safe base64."""
    return PREFIX + base64.urlsafe_b64encode(thinking.encode("utf-8", "replace")).decode("ascii")


def decode_thinking(value: str) -> str:
    """Return the thinking of a value that ``encode_thinking`` made; "" for any other, such as one of another server."""
    if not value.startswith(PREFIX):
        return ""
    try:
        return base64.b64decode(value[len(PREFIX) :], altchars=b"-_", validate=True).decode("utf-8")
    except ValueError:
        return ""
