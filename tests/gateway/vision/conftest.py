"""Gateways that see, one of them with an internet of one image."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.vision.seeing import NoAddress, SeeingHouse


@pytest.fixture(scope="module")
def shared_seeing() -> Iterator[SeeingHouse]:
    with SeeingHouse() as house:
        yield house


@pytest.fixture
def seeing(shared_seeing: SeeingHouse) -> SeeingHouse:
    return shared_seeing.emptied()


@pytest.fixture(scope="module")
def fetching() -> Iterator[SeeingHouse]:
    class Fetching(SeeingHouse):
        fetcher = NoAddress()

    with Fetching() as house:
        yield house
