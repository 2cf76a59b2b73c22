"""Fetching: what travels, what is found again, and which repository and files are taken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.weights.hub.fetch import fetch_repo, look
from strata_pack.weights.hub.tree import STATE_FOLDER
from strata_pack.weights.local_weights import find_weights
from tests.hub_repos import Fault
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import BODY, FILES, QUICK, REPO, SELECTED, TOTAL, WEIGHTS, Fetch
from tests.weights.hub.folder import holds, parts
from tests.weights.hub.test_select import index_of


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
    fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    hub.repo("org/shards", shards(2))
    fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    assert sorted(p.name for p in dest.glob("*.safetensors")) == sorted(n for n in shards(2) if n.endswith("rs"))


def test_another_choice_of_the_same_repository_removes_nothing(hub: HubServer, dest: Path) -> None:
    hub.repo("org/gguf", {"q4.gguf": BODY, "q8.gguf": BODY[::-1]})
    for _ in range(2):
        for path in ("q4.gguf", "q8.gguf"):
            fetch_repo("org/gguf", None, dest, path=path, endpoint=hub.endpoint, retry_policy=QUICK)
    assert [(dest / name).read_bytes() for name in ("q4.gguf", "q8.gguf")] == [BODY, BODY[::-1]]
    assert hub.bytes_sent() == 2 * len(BODY)


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
    fetch_repo("org/shards", None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    assert hub.most_at_once > 1
    assert all((dest / name).read_bytes() == BODY + name.encode() for name in names)


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
    result = fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, retry_policy=QUICK)
    assert {name: (dest / name).read_bytes() for name in INDEXED} == {name: CHECKPOINT[name] for name in INDEXED}
    assert not (dest / "consolidated.safetensors").exists()
    assert find_weights(dest) == result.selection.weights


def test_the_index_travels_once(checkpoint: HubServer, dest: Path) -> None:
    result = fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, retry_policy=QUICK)
    assert len(checkpoint.body_hits("model.safetensors.index.json")) == 1
    assert result.travelled == sum(file.size for file in result.files) == checkpoint.bytes_sent()
    checkpoint.hits.clear()
    fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, retry_policy=QUICK)
    assert checkpoint.body_hits() == []


def test_an_indexed_checkpoint_is_found_again_offline(checkpoint: HubServer, dest: Path) -> None:
    fetch_repo("org/mtp", None, dest, endpoint=checkpoint.endpoint, retry_policy=QUICK)
    assert fetch_repo("org/mtp", None, dest, offline=True, retry_policy=QUICK).travelled == 0


def test_an_index_that_names_a_missing_file_stops_before_any_body(hub: HubServer, dest: Path) -> None:
    hub.repo(
        "org/gap", {"model.safetensors.index.json": index_of("a.safetensors", "b.safetensors"), "a.safetensors": BODY}
    )
    with pytest.raises(BadInput, match=r"the shard b\.safetensors, which model\.safetensors\.index\.json names"):
        fetch_repo("org/gap", None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    assert hub.body_hits("a.safetensors") == []
    assert not dest.exists()


def test_config_is_there_before_the_weights_and_can_stop_them(fetched: Fetch, hub: HubServer) -> None:
    def check(folder: Path) -> None:
        assert (folder / "config.json").is_file()
        raise BadInput("not this one")

    with pytest.raises(BadInput, match="not this one"):
        fetched(before_weights=check)
    assert hub.body_hits(WEIGHTS) == []


def test_look_says_what_fetch_would_do_and_writes_nothing(hub: HubServer, dest: Path) -> None:
    plan = look(REPO, None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    assert (plan.to_travel, len(plan.selection.skipped)) == (TOTAL, 1)
    assert not dest.exists()
    assert hub.body_hits() == []


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
def test_error_for_a_gated_body_says_how_to_log_in(fetched: Fetch, hub: HubServer, status: int) -> None:
    hub.fail("config.json", Fault(status=status))
    with pytest.raises(EnvironmentFailure, match=rf"config.json is restricted \(HTTP {status}\).*hf auth login"):
        fetched()


def test_file_that_vanished_is_named(fetched: Fetch, hub: HubServer) -> None:
    hub.fail("config.json", Fault(status=404))
    with pytest.raises(BadInput, match=r"config\.json is no longer there"):
        fetched()


def test_hf_endpoint_is_honoured(fetched: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint + "/")
    assert fetched(endpoint=None).travelled == TOTAL


def test_endpoint_that_is_no_address_is_refused(fetched: Fetch) -> None:
    with pytest.raises(BadInput, match="HF_ENDPOINT"):
        fetched(endpoint="ftp://example.org")
