"""Web pages and foreign names are shut out unless they were named; what stays shut says how it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest

from tests.gateway.conftest import SETTINGS, House

PAGE = "https://page.example"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def opened() -> Iterator[House]:
    with House(replace(SETTINGS, cors=(PAGE,))) as house:
        yield house


@pytest.fixture(scope="module")
def keyed() -> Iterator[House]:
    with House(replace(SETTINGS, api_keys=("secret",), cors=("*",))) as house:
        yield house


def ask(house: House, headers: dict[str, str], path: str = "/v1/chat/completions") -> httpx.Response:
    return house.post({"messages": [{"role": "user", "content": "Hi"}]}, path, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "app://obsidian.md"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example", "Content-Type": "text/plain", "Sec-Fetch-Site": "cross-site"},
    ],
    ids=lambda headers: "-".join(headers.values()),
)
def test_a_foreign_page_makes_nothing_generate(headers: dict[str, str], house: House) -> None:
    answer = ask(house, headers)
    assert answer.status_code == 403
    assert "--cors" in answer.json()["error"]["message"]
    assert not house.replay.bodies


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/v1/live"])
def test_a_foreign_page_reads_nothing(path: str, house: House) -> None:
    assert house.get(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/health"])
def test_a_link_on_another_page_leads_to_the_live_page(path: str, house: House) -> None:
    assert house.get(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_our_own_page_may_ask(house: House) -> None:
    assert ask(house, {"Origin": house.url, "Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_a_program_without_a_browser_may_ask(house: House) -> None:
    assert ask(house, {"Sec-Fetch-Site": "none"}).status_code == 200


def test_a_preflight_of_a_foreign_page_is_refused(house: House) -> None:
    answer = house.http.options(f"{house.url}/v1/chat/completions", headers=PREFLIGHT)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_that_was_named_may_ask_and_read(opened: House) -> None:
    answer = ask(opened, {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "origin" in answer.headers["vary"].lower()


def test_another_page_is_still_refused(opened: House) -> None:
    assert ask(opened, {"Origin": "https://evil.example"}).status_code == 403


def test_the_preflight_of_a_named_page_is_answered(opened: House) -> None:
    answer = opened.http.options(
        f"{opened.url}/v1/messages", headers={**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
    )
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert "content-length" not in answer.headers


def test_a_page_can_read_why_it_was_refused(opened: House) -> None:
    answer = opened.post({"messages": []}, headers={"Origin": PAGE})
    assert answer.status_code == 400
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_preflight_needs_no_key_and_a_request_does(keyed: House) -> None:
    assert keyed.http.options(f"{keyed.url}/v1/messages", headers=PREFLIGHT).status_code == 204
    refused = ask(keyed, {"Origin": PAGE})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "*"
    assert ask(keyed, {"Origin": PAGE, "Authorization": "Bearer secret"}).status_code == 200


def test_another_host_name_is_refused_with_its_remedy(house: House) -> None:
    answer = house.get("/v1/models", headers={"Host": "gateway.lan:8080"})
    assert answer.status_code == 421
    assert "--allow-host gateway.lan" in answer.json()["error"]["message"]


def test_a_host_name_that_was_allowed_is_served() -> None:
    with House(replace(SETTINGS, hosts=(*SETTINGS.hosts, "gateway.lan"))) as house:
        answer: Any = house.get("/v1/models", headers={"Host": "gateway.lan:8080"})
        assert answer.status_code == 200
