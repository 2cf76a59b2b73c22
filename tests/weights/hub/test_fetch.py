"""Fetching: what travels, what goes wrong on the way, and what is proved in the end."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.weights.hub import state as fetch_state
from strata_pack.weights.hub.fetch import fetch_repo, look
from strata_pack.weights.hub.tree import STATE_FOLDER, RepoFile
from strata_pack.weights.local_weights import find_weights
from tests.hub_server import Fault, HubServer, etag_of
from tests.weights.hub.fixtures import BODY, FILES, QUICK, REPO, SELECTED, TOTAL, WEIGHTS, Fetch, dest, fetched, hub
from tests.weights.hub.test_select import index_of

__all__ = ["dest", "fetched", "hub"]


def holds(dest: Path, files: dict[str, bytes] = FILES) -> bool:
    return all((dest / name).read_bytes() == files[name] for name in SELECTED)


def parts(dest: Path) -> list[Path]:
    folder = dest / STATE_FOLDER / "parts"
    return sorted(folder.iterdir()) if folder.is_dir() else []


def leave_part(dest: Path, data: bytes, name: str = WEIGHTS) -> None:
    """Put a partial body where a killed fetch leaves it."""
    body = FILES[name]
    file = RepoFile(name, len(body), "", etag_of(body))
    path = fetch_state.part_path(dest, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_folder_holds_what_a_build_needs_and_nothing_else(fetched: Fetch, dest: Path) -> None:
    result = fetched()
    assert holds(dest)
    assert sorted(p.name for p in dest.iterdir()) == [STATE_FOLDER, *SELECTED]
    assert [file.path for file in result.files] == SELECTED
    assert [file.sha256 for file in result.files] == [hashlib.sha256(FILES[name]).hexdigest() for name in SELECTED]
    assert parts(dest) == []


def test_result_names_the_commit(fetched: Fetch, hub: HubServer) -> None:
    assert fetched().commit == hub.repos[REPO].commits[-1][0]


def test_every_byte_travels_once(fetched: Fetch, hub: HubServer) -> None:
    assert fetched().travelled == TOTAL == hub.bytes_sent()


def test_second_run_fetches_nothing(fetched: Fetch, hub: HubServer) -> None:
    fetched()
    hub.hits.clear()
    result = fetched()
    assert (result.travelled, hub.bytes_sent()) == (0, 0)
    assert {file.origin for file in result.files} == {"present"}


def test_damaged_file_of_the_right_size_is_found_and_fetched_again(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    fetched()
    (dest / WEIGHTS).write_bytes(BODY[:-1] + b"!")
    hub.hits.clear()
    assert fetched().travelled == len(BODY) == hub.bytes_sent()
    assert holds(dest)


def test_body_that_breaks_three_times_resumes_at_the_exact_byte(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, *(Fault(break_after=n) for n in (70_001, 1, 99_999)))
    assert fetched().travelled == TOTAL
    ranges = [hit.range for hit in hub.body_hits(WEIGHTS)]
    assert ranges == [None, "bytes=70001-", "bytes=70002-", "bytes=170001-"]
    assert hub.bytes_sent(WEIGHTS) == len(BODY)
    assert holds(dest)


def test_partial_body_of_a_dead_process_is_continued(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    leave_part(dest, BODY[:123_457])
    assert fetched().travelled == TOTAL - 123_457
    assert [hit.range for hit in hub.body_hits(WEIGHTS)] == ["bytes=123457-"]
    assert holds(dest)


def test_partial_body_that_is_whole_needs_no_request(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    leave_part(dest, BODY)
    fetched()
    assert hub.body_hits(WEIGHTS) == []
    assert holds(dest)


def test_damaged_partial_body_is_fetched_from_the_start(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    leave_part(dest, b"damage" + BODY[6:123_457])
    fetched()
    assert [hit.range for hit in hub.body_hits(WEIGHTS)] == ["bytes=123457-", None]
    assert holds(dest)


def test_partial_body_longer_than_the_file_is_dropped(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    leave_part(dest, BODY + b"more")
    fetched()
    assert [hit.range for hit in hub.body_hits(WEIGHTS)] == [None]
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
def test_fault_that_passes_is_got_past(fetched: Fetch, hub: HubServer, dest: Path, fault: Fault) -> None:
    leave_part(dest, BODY[:50])
    hub.fail(WEIGHTS, Fault(**fault.__dict__))
    fetched()
    assert holds(dest)


@pytest.mark.parametrize(
    "fault", [f for f in PASSING if not f.break_after and not f.short_by], ids=lambda fault: str(fault.__dict__)[:60]
)
def test_fault_that_stays_is_an_error_and_leaves_no_file(
    fetched: Fetch, hub: HubServer, dest: Path, fault: Fault
) -> None:
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
    fetched(patience=replace(QUICK, longest_wait_seconds=100))
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
    with pytest.raises(EnvironmentFailure, match="another content now"):
        fetched()
    assert not (dest / WEIGHTS).exists()
    assert [path.stat().st_size for path in parts(dest)] == [0]


def test_changed_commit_replaces_only_what_changed(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    fetched()
    new = {**FILES, WEIGHTS: BODY[::-1]}
    commit = hub.repos[REPO].commit(new)
    hub.hits.clear()
    result = fetched()
    assert result.commit == commit
    assert result.travelled == len(BODY)
    assert {file.path: file.origin for file in result.files}["config.json"] == "present"
    assert holds(dest, new)


def test_commit_that_changes_in_mid_fetch_mixes_nothing(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(break_after=100_000), Fault(status=503, times=-1))
    with pytest.raises(EnvironmentFailure):
        fetched()
    hub.faults.clear()
    new = {**FILES, WEIGHTS: BODY[::-1]}
    hub.repos[REPO].commit(new)
    assert fetched().travelled == len(BODY)
    assert holds(dest, new)
    assert parts(dest) == []


def test_shards_of_another_commit_do_not_stay(hub: HubServer, dest: Path) -> None:
    def shards(count: int) -> dict[str, bytes]:
        names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        return {"model.safetensors.index.json": index_of(*names), **{name: name.encode() for name in names}}

    hub.repo("org/shards", shards(3))
    fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, patience=QUICK)
    hub.repo("org/shards", shards(2))
    fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, patience=QUICK)
    assert sorted(p.name for p in dest.glob("*.safetensors")) == sorted(n for n in shards(2) if n.endswith("rs"))


def test_another_choice_of_the_same_repository_removes_nothing(hub: HubServer, dest: Path) -> None:
    hub.repo("org/gguf", {"q4.gguf": BODY, "q8.gguf": BODY[::-1]})
    for _ in range(2):
        for path in ("q4.gguf", "q8.gguf"):
            fetch_repo("org/gguf", None, dest, path=path, endpoint=hub.endpoint, patience=QUICK)
    assert [(dest / name).read_bytes() for name in ("q4.gguf", "q8.gguf")] == [BODY, BODY[::-1]]
    assert hub.bytes_sent() == 2 * len(BODY)


def test_folder_of_another_repository_is_refused(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    fetched()
    hub.repo("org/other", {WEIGHTS: BODY})
    with pytest.raises(BadInput, match=f"holds files of {REPO}"):
        fetch_repo("org/other", None, dest, endpoint=hub.endpoint, patience=QUICK)
    assert holds(dest)


def test_pinned_commit_is_fetched_though_main_moved(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    old = hub.repos[REPO].commits[0][0]
    hub.repos[REPO].commit({**FILES, WEIGHTS: BODY[::-1]})
    assert fetched(old).commit == old
    assert holds(dest)


def test_files_travel_in_parallel(hub: HubServer, dest: Path) -> None:
    names = [f"model-{n:05d}-of-00004.safetensors" for n in range(1, 5)]
    hub.repo(
        "org/shards",
        {"model.safetensors.index.json": index_of(*names), **{name: BODY + name.encode() for name in names}},
    )
    for name in names:
        hub.fail(name, Fault(rate=600_000))
    fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, patience=QUICK)
    assert hub.most_at_once > 1
    assert all((dest / name).read_bytes() == BODY + name.encode() for name in names)


def test_first_failure_stops_the_others(hub: HubServer, dest: Path) -> None:
    names = [f"model-{n:05d}-of-00002.safetensors" for n in (1, 2)]
    hub.repo(
        "org/shards",
        {"model.safetensors.index.json": index_of(*names), **{name: BODY + name.encode() for name in names}},
    )
    hub.fail(names[0], Fault(rate=5_000))
    hub.fail(names[1], Fault(status=503, headers={"Retry-After": "3600"}))
    with pytest.raises(EnvironmentFailure, match="HTTP 503"):
        fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, patience=QUICK)
    hub.settle(names[0])
    assert hub.bytes_sent(names[0]) < len(BODY)


CHECKPOINT = {
    "config.json": b"{}",
    "model-00001-of-00001.safetensors": BODY,
    "model-mtp.safetensors": BODY[::-1],
    "mtp/extra.safetensors": BODY[:70_000],
    "consolidated.safetensors": BODY[:80_000],
}
INDEXED = [name for name in CHECKPOINT if name.endswith(".safetensors") and name != "consolidated.safetensors"]


@pytest.fixture
def checkpoint(hub: HubServer) -> HubServer:
    hub.repo("org/mtp", {**CHECKPOINT, "model.safetensors.index.json": index_of(*INDEXED)})
    return hub


def test_every_file_that_the_index_names_travels(checkpoint: HubServer, dest: Path) -> None:
    result = fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, patience=QUICK)
    assert {name: (dest / name).read_bytes() for name in INDEXED} == {name: CHECKPOINT[name] for name in INDEXED}
    assert not (dest / "consolidated.safetensors").exists()
    assert find_weights(dest) == result.selection.weights


def test_the_index_travels_once(checkpoint: HubServer, dest: Path) -> None:
    result = fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, patience=QUICK)
    assert len(checkpoint.body_hits("model.safetensors.index.json")) == 1
    assert result.travelled == sum(file.size for file in result.files) == checkpoint.bytes_sent()
    checkpoint.hits.clear()
    fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, patience=QUICK)
    assert checkpoint.body_hits() == []


def test_an_indexed_checkpoint_is_found_again_offline(checkpoint: HubServer, dest: Path) -> None:
    fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, patience=QUICK)
    assert fetch_repo("org/mtp", None, dest, offline=True, patience=QUICK).travelled == 0


def test_an_index_that_names_a_missing_file_stops_before_any_body(hub: HubServer, dest: Path) -> None:
    hub.repo(
        "org/gap", {"model.safetensors.index.json": index_of("a.safetensors", "b.safetensors"), "a.safetensors": BODY}
    )
    with pytest.raises(BadInput, match=r"the shard b\.safetensors, which model\.safetensors\.index\.json names"):
        fetch_repo("org/gap", None, dest, endpoint=hub.endpoint, patience=QUICK)
    assert hub.body_hits("a.safetensors") == []
    assert not dest.exists()


ODD_BODIES = {
    "a page of a proxy": Fault(body=b"<html>log in</html>" * 9, headers={"Content-Type": "text/html"}),
    "JSON of a proxy": Fault(body=b'{"error": "no"}', headers={"Content-Type": "application/json"}),
    "a redirect in a circle": Fault(status=302, headers={"Location": "?again"}),
    "the storage server's 403": Fault(status=403),
    "more patience than anybody has": Fault(status=429, headers={"Retry-After": "9" * 400}),
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


def test_a_stale_link_to_the_storage_server_is_got_past(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.fail(WEIGHTS, Fault(break_after=100_000), Fault(status=403), Fault(break_after=100_000), Fault(status=403))
    fetched()
    assert holds(dest)


def test_a_closed_storage_server_is_named_after_the_second_refusal(fetched: Fetch, hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(status=403, times=-1))
    with pytest.raises(EnvironmentFailure, match=r"the storage server 127\.0\.0\.1 refuses access \(HTTP 403\)"):
        fetched()
    hub.settle(WEIGHTS, 2)
    assert len(hub.body_hits(WEIGHTS)) == 2


def test_second_fetch_into_the_folder_is_refused(fetched: Fetch, dest: Path) -> None:
    with (
        fetch_state.locked_folder_for_fetch(dest),
        pytest.raises(EnvironmentFailure, match=f"process {os.getpid()} is fetching"),
    ):
        fetched()


def test_config_is_there_before_the_weights_and_can_stop_them(fetched: Fetch, hub: HubServer) -> None:
    def check(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise BadInput("not this one")

    with pytest.raises(BadInput, match="not this one"):
        fetched(before_weights=check)
    assert hub.body_hits(WEIGHTS) == []


def test_look_says_what_fetch_would_do_and_writes_nothing(hub: HubServer, dest: Path) -> None:
    plan = look(REPO, None, dest, endpoint=hub.endpoint, patience=QUICK)
    assert (plan.to_travel, len(plan.selection.skipped)) == (TOTAL, 1)
    assert not dest.exists()
    assert hub.body_hits() == []


def test_short_disk_is_said_before_the_first_body(
    fetched: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata_pack.weights.preflight.free_bytes", lambda _: 1000)
    with pytest.raises(EnvironmentFailure, match="not enough disk space"):
        fetched()
    assert hub.body_hits() == []


def test_full_disk_is_one_sentence_and_keeps_what_arrived(
    fetched: Fetch, hub: HubServer, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def fill_up(descriptor: int, data: memoryview, offset: int) -> int:
        if offset >= 100_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: 100_000 - offset], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fill_up)
        with pytest.raises(EnvironmentFailure, match="no space left on the disk"):
            fetched()
    hub.forget(WEIGHTS)
    fetched()
    assert [hit.range for hit in hub.body_hits(WEIGHTS)] == ["bytes=100000-"]
    assert holds(dest)


@pytest.mark.parametrize("repo_id", ["org/nothing", "org/pickled"])
def test_repository_that_cannot_be_used_leaves_no_folder(hub: HubServer, dest: Path, repo_id: str) -> None:
    hub.repo("org/pickled", {"pytorch_model.bin": b"x"})
    with pytest.raises(StrataError):
        fetch_repo(repo_id, None, dest, endpoint=hub.endpoint, patience=QUICK)
    assert not dest.exists()


def test_file_that_no_fetch_put_there_is_not_overwritten(fetched: Fetch, dest: Path) -> None:
    dest.mkdir()
    (dest / "config.json").write_text("mine")
    with pytest.raises(BadInput, match="is in the way"):
        fetched()
    assert (dest / "config.json").read_text() == "mine"


def test_link_in_the_folder_is_not_followed(hub: HubServer, fetched: Fetch, dest: Path, tmp_path: Path) -> None:
    hub.repo(REPO, {"q4/a.gguf": BODY})
    (tmp_path / "elsewhere").mkdir()
    dest.mkdir()
    (dest / "q4").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadInput, match="is a link"):
        fetched(path="q4/a.gguf")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_damaged_record_is_named(fetched: Fetch, dest: Path) -> None:
    (dest / STATE_FOLDER).mkdir(parents=True)
    (dest / STATE_FOLDER / "record.json").write_text("[]")
    with pytest.raises(BadInput, match=r"record\.json: the record of the last fetch is damaged"):
        fetched()


def test_token_goes_to_the_hub_and_never_to_the_storage(fetched: Fetch, hub: HubServer) -> None:
    hub.repos[REPO].gated, hub.repos[REPO].token = 401, "secret"
    fetched(token="secret")
    assert {hit.auth for hit in hub.hits if hit.origin == "hub"} == {"Bearer secret"}
    assert {hit.auth for hit in hub.hits if hit.origin == "storage"} == {None}


def test_hf_token_is_honoured(fetched: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos[REPO].gated, hub.repos[REPO].token = 403, "secret"
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert fetched().travelled > 0


@pytest.mark.parametrize("status", [401, 403])
def test_gated_repository_says_how_to_log_in(fetched: Fetch, hub: HubServer, status: int) -> None:
    hub.repos[REPO].gated = status
    with pytest.raises(EnvironmentFailure, match="hf auth login"):
        fetched()


@pytest.mark.parametrize("status", [401, 403])
def test_body_behind_a_gate_says_how_to_log_in(fetched: Fetch, hub: HubServer, status: int) -> None:
    hub.fail("config.json", Fault(status=status))
    with pytest.raises(EnvironmentFailure, match=rf"config.json is restricted \(HTTP {status}\).*hf auth login"):
        fetched()


def test_file_that_vanished_is_named(fetched: Fetch, hub: HubServer) -> None:
    hub.fail("config.json", Fault(status=404))
    with pytest.raises(BadInput, match=r"config\.json is no longer there"):
        fetched()


def test_silent_server_is_a_fault(fetched: Fetch, hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(rate=10, times=-1))
    with pytest.raises(EnvironmentFailure, match="the connection broke"):
        fetched(patience=replace(QUICK, timeout_seconds=0.08))


def test_hf_endpoint_is_honoured(fetched: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint + "/")
    assert fetched(endpoint=None).travelled == TOTAL


def test_endpoint_that_is_no_address_is_refused(fetched: Fetch) -> None:
    with pytest.raises(BadInput, match="HF_ENDPOINT"):
        fetched(endpoint="ftp://example.org")


def test_unreachable_hub_is_an_environment_failure(fetched: Fetch) -> None:
    with pytest.raises(EnvironmentFailure, match="cannot be reached"):
        fetched(endpoint="http://127.0.0.1:9")


def test_test_server_itself_breaks_as_told(hub: HubServer) -> None:
    hub.fail(WEIGHTS, Fault(break_after=10))
    commit = hub.repos[REPO].commits[0][0]
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{hub.endpoint}/{REPO}/resolve/{commit}/{WEIGHTS}", follow_redirects=True)
