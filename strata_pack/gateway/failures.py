"""Errors of requests: an exception with HTTP status, and its form in each API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    421: "permission_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "server_error",
    501: "invalid_request_error",
    502: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
"""``error.type`` of an OpenAI error object by status."""

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "permission_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""``error.type`` of an Anthropic error object by status; ``api_error`` for the others."""


class Overflow(NamedTuple):
    """A prompt of ``tokens`` tokens that is longer than the ``limit`` of a slot's context."""

    tokens: int
    limit: int


class ApiError(Exception):
    """A request that gets an error instead of a reply.

    ``kind`` is the error's name in the metrics, ``param`` the path of the wrong field
    (``messages.0.content``), ``retry_after`` seconds until a retry makes sense, ``headers`` more headers
    of the response, ``overflow`` the sizes of a too long prompt, if known.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        overflow: Overflow | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.headers = dict(headers or {})
        self.overflow = overflow
        self.counted = False
        """Whether the metrics have counted it."""

    def openai(self, *, conversation: str = "messages") -> dict[str, Any]:
        """Return the OpenAI error object; ``conversation`` is the API's name for the field ``messages``.

        A too long prompt has OpenAI's code, and llama-server's type and sizes.
        """
        error: dict[str, Any] = {
            "message": self.message,
            "type": OPENAI_TYPES.get(self.status, "server_error"),
            "param": conversation if self.param == "messages" else self.param,
            "code": self.code,
        }
        if self.overflow is not None:
            tokens, limit = self.overflow
            error |= {"type": "exceed_context_size_error", "n_prompt_tokens": tokens, "n_ctx": limit}
        return {"error": error}

    def anthropic(self) -> dict[str, Any]:
        """Return the Anthropic error object. Clients recognize a too long prompt by the message, and compact it."""
        kind = ANTHROPIC_TYPES.get(self.status, "api_error")
        message = self.message
        if self.overflow is not None:
            message = f"prompt is too long: {self.overflow.tokens} tokens > {self.overflow.limit} maximum"
        return {"type": "error", "error": {"type": kind, "message": message}}


def bad_request(message: str, param: str | None = None, *, code: str | None = None) -> ApiError:
    """Return the 400 for a field that cannot be served."""
    return ApiError(400, message, kind="bad_request", param=param, code=code)


def no_route(path: str) -> ApiError:
    """Return the 404 for an unknown path."""
    return ApiError(404, f"there is no {path[:100]} here; /openapi.json lists the paths", kind="no_route")


def prompt_too_long(tokens: int, limit: int) -> ApiError:
    """Return the 400 for a prompt that does not fit into the context of a slot."""
    return ApiError(
        400,
        f"the prompt has {tokens} tokens, but the context of a slot is {limit} tokens",
        kind="bad_request",
        param="messages",
        code="context_length_exceeded",
        overflow=Overflow(tokens, limit),
    )


UNREACHED = "upstream_unavailable"
"""``kind`` of the error if the llama.cpp server has not received the request."""


def unavailable(message: str, *, kind: str = UNREACHED, retry_after: int | None = 2) -> ApiError:
    """Return the 503 for a llama.cpp server that is away, loading or broken."""
    return ApiError(503, message, kind=kind, code="upstream_unavailable", retry_after=retry_after)


def shutting_down() -> ApiError:
    """Return the 503 for requests that the end of a drain aborts."""
    return unavailable("the gateway is shutting down", kind="draining")


def internal() -> ApiError:
    """Return the 500 for an unexpected exception."""
    return ApiError(500, "the gateway failed; its log has the reason", kind="internal")
