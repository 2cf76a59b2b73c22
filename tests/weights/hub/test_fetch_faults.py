"""Fetching when the network or the server fails: what is tried again, what is kept, and what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest

from strata_pack.errors import EnvironmentFailure
from strata_pack.weights.hub.fetch import fetch_repo
from tests.hub_repos import Fault
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import BODY, ODD_FOR_ALL, QUICK, REPO, TOTAL, WEIGHTS, Fetch
from tests.weights.hub.folder import holds, leave_part, parts
from tests.weights.hub.test_select import index_of


def test_body_that_breaks_three_times_resumes_at_the_exact_byte(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, *(Fault(break_after=n) for n in (70_001, 1, 99_999)))
    assert fetched().travelled == TOTAL
    ranges = [hit.range for hit in hub.body_hits(WEIGHTS)]
    assert ranges == [None, "bytes=70001-", "bytes=70002-", "bytes=170001-"]
    assert hub.bytes_sent(WEIGHTS) == len(BODY)
    assert holds(dest)


PASSING = [
    Fault(break_after=1000),
    Fault(short_by=1000),
    Fault(status=503),
    Fault(status=500),
    Fault(status=429),
    Fault(status=429, headers={"Retry-After": "nonsense"}),
    Fault(status=403),
    Fault(status=416),
    Fault(wrong_range=True),
    Fault(extra=9),
    Fault(corrupt=True),
]


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: str(fault.__dict__)[:60])
def test_passing_fault_is_retried(fetched: Fetch, hub: HubServer, dest: Path, fault: Fault) -> None:
    leave_part(dest, BODY[:50])
    hub.fail(WEIGHTS, Fault(**fault.__dict__))
    fetched()
    assert holds(dest)


@pytest.mark.parametrize(
    "fault", [f for f in PASSING if not f.break_after and not f.short_by], ids=lambda fault: str(fault.__dict__)[:60]
)
def test_lasting_fault_is_an_error_and_leaves_no_file(fetched: Fetch, hub: HubServer, dest: Path, fault: Fault) -> None:
    leave_part(dest, BODY[:50])
    hub.fail(WEIGHTS, Fault(**{**fault.__dict__, "times": -1}))
    with pytest.raises(EnvironmentFailure, match=WEIGHTS):
        fetched()
    assert not (dest / WEIGHTS).exists()


def test_server_that_ignores_range_is_taken_from_the_start(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    leave_part(dest, BODY[:200_000])
    hub.fail(WEIGHTS, Fault(ignore_range=True))
    fetched()
    assert hub.bytes_sent(WEIGHTS) == len(BODY)
    assert holds(dest)


def test_retry_after_is_waited_for(fetched: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float | None] = []
    wait = threading.Event.wait

    def recorded(self: threading.Event, timeout: float | None = None) -> bool:
        waited.append(timeout)
        return wait(self, 0 if timeout == 77 else timeout)

    monkeypatch.setattr(threading.Event, "wait", recorded)
    hub.fail(WEIGHTS, Fault(status=429, headers={"Retry-After": "77"}))
    fetched(retry_policy=replace(QUICK, longest_wait_seconds=100))
    assert waited.count(77) == 1


def test_retry_after_beyond_patience_gives_up_at_once(fetched: Fetch, hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(status=503, headers={"Retry-After": "3600"}))
    with pytest.raises(EnvironmentFailure, match="run again later"):
        fetched()
    hub.settle(WEIGHTS)
    assert len(hub.body_hits(WEIGHTS)) == 1


def test_corrupted_body_is_fetched_exactly_once_more(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(corrupt=True, times=-1))
    with pytest.raises(EnvironmentFailure, match="does not match the content hash"):
        fetched()
    assert [hit.range for hit in hub.body_hits(WEIGHTS)] == [None, None]
    assert [path.stat().st_size for path in parts(dest) if "-" in path.name] == [0]


def test_corrupted_small_file_is_found_by_its_blob_id(fetched: Fetch, hub: HubServer) -> None:
    hub.fail("tokenizer.json", Fault(corrupt=True, times=-1))
    with pytest.raises(EnvironmentFailure, match=r"tokenizer\.json does not match"):
        fetched()


def test_failure_keeps_what_arrived(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(break_after=100_000), Fault(status=503, times=-1))
    with pytest.raises(EnvironmentFailure, match="100000 bytes are kept"):
        fetched()
    hub.faults.clear()
    assert fetched().travelled == len(BODY) - 100_000
    assert holds(dest)


def test_identity_that_changed_at_the_same_commit_is_refused(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(etag="f" * 64))
    with pytest.raises(EnvironmentFailure, match="other content now"):
        fetched()
    assert not (dest / WEIGHTS).exists()
    assert [path.stat().st_size for path in parts(dest)] == [0]


def test_first_failure_stops_the_others(hub: HubServer, dest: Path) -> None:
    names = [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    hub.repo(
        "org/shards",
        {"model.safetensors.index.json": index_of(*names), **{name: BODY + name.encode() for name in names}},
    )
    hub.fail(names[0], Fault(rate=5_000))
    hub.fail(names[1], Fault(status=503, headers={"Retry-After": "3600"}))
    with pytest.raises(EnvironmentFailure, match="HTTP 503"):
        fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    hub.settle(names[0])
    assert hub.bytes_sent(names[0]) < len(BODY)


ODD_BODIES = {
    "a page of a proxy": Fault(body=b"<html>log in</html>" * 9, headers={"Content-Type": "text/html"}),
    "JSON of a proxy": Fault(body=b'{"error": "no"}', headers={"Content-Type": "application/json"}),
    **ODD_FOR_ALL,
    "a redirect in a circle": Fault(status=302, headers={"Location": "?again"}),
    "the storage server's 403": Fault(status=403),
    "a range beyond all": Fault(status=206, headers={"Content-Range": "bytes 0-1/" + "9" * 6000}),
    "packed and broken": Fault(body=b"x", headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("name", ODD_BODIES)
def test_body_of_something_else_is_one_sentence(name: str, fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, replace(ODD_BODIES[name], times=-1))
    with pytest.raises(EnvironmentFailure) as caught:
        fetched()
    assert "\n" not in str(caught.value)
    assert not (dest / WEIGHTS).exists()


def test_a_stale_link_to_the_storage_server_is_renewed(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(break_after=100_000), Fault(status=403), Fault(break_after=100_000), Fault(status=403))
    fetched()
    assert holds(dest)


def test_a_closed_storage_server_is_named_after_the_second_refusal(fetched: Fetch, hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(status=403, times=-1))
    with pytest.raises(EnvironmentFailure, match=r"the storage server 127\.0\.0\.1 refuses access \(HTTP 403\)"):
        fetched()
    hub.settle(WEIGHTS, 2)
    assert len(hub.body_hits(WEIGHTS)) == 2


def test_silent_server_is_a_fault(fetched: Fetch, hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(rate=10, times=-1))
    with pytest.raises(EnvironmentFailure, match="the connection broke"):
        fetched(retry_policy=replace(QUICK, timeout_seconds=0.08))


def test_unreachable_hub_is_an_environment_failure(fetched: Fetch) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        fetched(endpoint="http://127.0.0.1:9")


def test_the_test_server_breaks_a_body_on_demand(hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(break_after=10))
    commit = hub.repos[REPO].commits[0][0]
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{hub.endpoint}/{REPO}/resolve/{commit}/{WEIGHTS}", follow_redirects=True)
