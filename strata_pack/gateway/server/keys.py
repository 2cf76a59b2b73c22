"""The API keys that clients may send. They can be replaced while the gateway runs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from strata_pack.gateway.failures import ApiError

SHOWN_DIGITS = 8
"""Hexadecimal digits of a key's hash that name its owner in the queue, the log and the response store."""


class Keys:
    """The API keys of one gateway; empty if none is required."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.replace(keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def replace(self, keys: tuple[str, ...]) -> None:
        """Replace the keys."""
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    def owner(self, headers: Mapping[str, str]) -> str:
        """Return the name of a request's key. Raises ``ApiError`` 401 for a missing or wrong key."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = hashlib.sha256(key.encode("latin-1")).digest()  # the bytes that came
        # Every key is compared, so that the time does not reveal which one matched.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise ApiError(
                401, "the API key is missing or wrong; send it as Authorization: Bearer KEY", kind="unauthorized",
                code="invalid_api_key",
            )  # fmt: skip
        return f"key {digest.hex()[:SHOWN_DIGITS]}"
