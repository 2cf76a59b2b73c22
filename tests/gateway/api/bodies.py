"""Requests in three APIs, and the reply to one of them."""

from __future__ import annotations

from typing import Any

from tests.gateway.conftest import House

USER = [{"role": "user", "content": "Hi"}]
LIST_CALL = {"id": "1", "type": "function", "function": {"name": "list_jobs", "arguments": "{}"}}
DONE = "</think>\n\nok"
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **fields}


def responses(*items: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [{"role": "user", "content": "Hi"}, *items], **fields}


def messages(*more: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}, *more], **fields}


def served(house: House, asked: tuple[str, dict[str, Any]], text: str = DONE) -> dict[str, Any]:
    """Return the reply to a request whose upstream generates ``text``."""
    house.says(text)
    answer = house.post(asked[1], asked[0])
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value
