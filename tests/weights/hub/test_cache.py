"""The Hub cache and offline mode: what is on this disk already is verified, linked, and does not travel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.weights.hub.cache import cache_folder, repo_folder
from tests.hub_repos import etag_of
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import BODY, FILES, REPO, SELECTED, TOTAL, WEIGHTS, Fetch


@pytest.fixture
def cached(hub: HubServer) -> Path:
    """Fill the Hub cache with what huggingface_hub itself downloads; return the blob of the weights."""
    snapshot_download(REPO, endpoint=hub.endpoint, cache_dir=cache_folder(), allow_patterns=SELECTED)
    hub.hits.clear()
    return repo_folder(REPO) / "blobs" / etag_of(BODY)


def test_cached_files_are_linked_and_nothing_travels(cached: Path, fetched: Fetch, hub: HubServer, dest: Path) -> None:
    result = fetched()
    assert (result.travelled, hub.bytes_sent()) == (0, 0)
    assert {file.origin for file in result.files} == {"cache"}
    assert os.path.samefile(dest / WEIGHTS, cached)
    assert not (dest / WEIGHTS).is_symlink()


def test_damaged_blob_is_found_and_the_file_travels(cached: Path, fetched: Fetch, hub: HubServer, dest: Path) -> None:
    cached.write_bytes(BODY[:-1] + b"!")
    assert fetched().travelled == len(BODY) == hub.bytes_sent()
    assert (dest / WEIGHTS).read_bytes() == BODY


def test_blob_of_another_size_is_not_used(cached: Path, fetched: Fetch, dest: Path) -> None:
    cached.write_bytes(BODY[:1000])
    assert fetched().travelled == len(BODY)
    assert (dest / WEIGHTS).read_bytes() == BODY


def test_blob_that_cannot_be_linked_is_copied(
    cached: Path, fetched: Fetch, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    assert fetched().travelled == 0
    assert not os.path.samefile(dest / WEIGHTS, cached)
    assert (dest / WEIGHTS).read_bytes() == BODY


@pytest.mark.usefixtures("cached")
def test_offline_takes_everything_from_the_cache(fetched: Fetch, hub: HubServer, dest: Path) -> None:
    result = fetched(offline=True)
    assert result.commit == hub.repos[REPO].commits[0][0]
    assert hub.hits == []
    assert all((dest / name).read_bytes() == FILES[name] for name in SELECTED)


@pytest.mark.usefixtures("cached")
def test_offline_knows_a_commit_too(fetched: Fetch, hub: HubServer) -> None:
    commit = hub.repos[REPO].commits[0][0]
    assert fetched(commit, offline=True).commit == commit


def test_hf_hub_offline_is_honoured(fetched: Fetch, hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EnvironmentFailure, match=r"org/model@main: offline, .*; unset HF_HUB_OFFLINE"):
        fetched()
    assert hub.hits == []


def test_offline_uses_the_folder_of_an_earlier_fetch(fetched: Fetch, hub: HubServer) -> None:
    assert fetched().travelled == TOTAL
    hub.hits.clear()
    assert fetched(offline=True).travelled == 0
    assert hub.hits == []


def test_offline_names_what_is_missing(fetched: Fetch, dest: Path) -> None:
    fetched()
    (dest / WEIGHTS).unlink()
    with pytest.raises(EnvironmentFailure, match=r"offline, and model\.safetensors of org/model is neither"):
        fetched(offline=True)


def test_link_out_of_the_cache_is_refused(cached: Path, fetched: Fetch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    snapshot = next((repo_folder(REPO) / "snapshots").iterdir())
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(tmp_path / "secret")
    assert cached.exists()
    with pytest.raises(BadInput, match="a link out of the cache"):
        fetched(offline=True)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
    ],
)
def test_cache_folder_is_where_the_environment_says(
    environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)
