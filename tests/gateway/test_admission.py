"""The queue before the slots: never more than there are, fair between clients, and nothing lost."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.gateway.admission import Admission
from strata_pack.gateway.failures import ApiError


def test_a_client_with_many_requests_does_not_push_aside_one_with_few() -> None:
    async def main() -> list[str]:
        admission = Admission(1, 100, 10)
        order: list[str] = []

        async def ask(client: str) -> None:
            async with admission.slot(client):
                order.append(client)
                await asyncio.sleep(0)

        async with admission.slot("first"):
            tasks = [asyncio.create_task(ask("greedy")) for _ in range(10)]
            await asyncio.sleep(0)
            tasks += [asyncio.create_task(ask(name)) for name in ("b", "c")]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return order

    order = asyncio.run(main())
    assert order[:4] == ["greedy", "b", "c", "greedy"]
    assert len(order) == 12


def test_beyond_the_queue_it_is_429_with_a_time_to_come_back() -> None:
    async def main() -> ApiError:
        admission = Admission(1, 1, 10)
        async with admission.slot("a"):
            waiting = asyncio.create_task(admission.enter("b"))
            await asyncio.sleep(0)
            with pytest.raises(ApiError) as caught:
                async with admission.slot("c"):
                    pass
            waiting.cancel()
            return caught.value

    error = asyncio.run(main())
    assert error.status == 429
    assert error.retry_after is not None
    assert error.retry_after >= 1


def test_a_wait_that_is_too_long_is_429() -> None:
    async def main() -> int:
        admission = Admission(1, 1, 0.01)
        async with admission.slot("a"):
            with pytest.raises(ApiError) as caught:
                async with admission.slot("b"):
                    pass
        assert admission.busy == admission.waiting == 0
        return caught.value.status

    assert asyncio.run(main()) == 429


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.integers(1, 4), st.integers(0, 8), st.lists(st.integers(0, 3), max_size=30), st.integers(0, 1 << 32))
def test_no_slot_is_lost_or_doubled_whoever_leaves_when(
    parallel: int, queue: int, clients: list[int], seed: int
) -> None:
    # A seed, and not Hypothesis's own randoms: those may end the example inside a task, where nobody would notice.
    chance = random.Random(seed)

    async def main() -> None:
        admission = Admission(parallel, queue, 5)
        peak = 0

        async def ask(client: int) -> None:
            nonlocal peak
            try:
                async with admission.slot(str(client)):
                    peak = max(peak, admission.busy)
                    for _ in range(chance.randrange(4)):
                        await asyncio.sleep(0)
            except ApiError:
                pass

        tasks = [asyncio.create_task(ask(client)) for client in clients]
        for task in tasks:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            if chance.random() < 0.4:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert peak <= parallel
        assert admission.busy == admission.waiting == 0

    asyncio.run(main())
