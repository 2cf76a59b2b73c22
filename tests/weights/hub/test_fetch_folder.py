"""The folder that a fetch writes to: partial bodies, a full disk, files of others, one fetch at a time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from strata_pack.errors import BadInput, EnvironmentFailure, StrataError
from strata_pack.weights.hub import state as fetch_state
from strata_pack.weights.hub.fetch import fetch_repo
from strata_pack.weights.hub.tree import STATE_FOLDER
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import BODY, QUICK, REPO, TOTAL, WEIGHTS, Fetch
from tests.weights.hub.folder import holds, leave_part


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


def test_folder_of_another_repository_is_refused(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    fetched()
    hub.repo("org/other", {WEIGHTS: BODY})
    with pytest.raises(BadInput, match=f"has files of {REPO}"):
        fetch_repo("org/other", None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
    assert holds(dest)


def test_second_fetch_into_the_folder_is_refused(fetched: Fetch, dest: Path) -> None:
    with (
        fetch_state.locked_folder_for_fetch(dest),
        pytest.raises(EnvironmentFailure, match=f"process {os.getpid()} is fetching"),
    ):
        fetched()


def test_short_disk_is_reported_before_the_first_body(
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
        fetch_repo(repo_id, None, dest, endpoint=hub.endpoint, retry_policy=QUICK)
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
