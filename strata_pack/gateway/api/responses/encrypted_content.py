"""Thinking as a value that a client keeps and sends back unread: ``encrypted_content`` of the Responses API.

Clients that ask for it (``include: ["reasoning.encrypted_content"]``) send back that value alone, not the text next to
it. It is an encoding, no secret: whoever gets it gets the thinking in plain text anyway.
"""

from __future__ import annotations

import base64

PREFIX = "strata-1-"
"""Tells our values from those of other servers, and this encoding from later ones."""


def carried(thinking: str) -> str:
    """Return the opaque value of ``thinking``: URL-safe base64 behind ``PREFIX``."""
    return PREFIX + base64.urlsafe_b64encode(thinking.encode("utf-8", "replace")).decode("ascii")


def thinking_of(value: str) -> str:
    """Return the thinking of a value that ``carried`` made; "" for any other, such as one of another server."""
    if not value.startswith(PREFIX):
        return ""
    try:
        return base64.b64decode(value[len(PREFIX) :], altchars=b"-_", validate=True).decode("utf-8")
    except ValueError:
        return ""
