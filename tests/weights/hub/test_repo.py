"""What the Hub says about a repository: read in pages, retried, and believed only after a look."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.weights.hub.connection import connect, retry_after_seconds
from strata_pack.weights.hub.repo import read_tree
from strata_pack.weights.hub.tree import safe_path
from tests.hub_repos import Fault
from tests.hub_server import HubServer
from tests.weights.hub.fixtures import ODD_FOR_ALL, QUICK, REPO, Fetch


def read(hub: HubServer, repo_id: str = REPO, revision: str | None = None) -> Any:
    return read_tree(connect(hub.endpoint, None, QUICK), repo_id, revision)


def entry(path: str, **more: Any) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": 1, "oid": "0" * 40, **more}


UNSAFE = [
    "../evil.json", "a/../../evil.json", "/etc/evil.json", "a//b.json", "./a.json", "a\\b.json", "C:/a.json", "a\nb",
    "", ".strata-fetch/lock", ".Strata-Fetch/lock", "x" * 256, "a\0b", "/".join(["d" * 200] * 6),
]  # fmt: skip


@pytest.mark.parametrize("path", UNSAFE)
def test_name_that_could_leave_the_folder_is_refused(path: str, fetched: Fetch, hub: HubServer, dest: Path) -> None:
    hub.repos[REPO].raw.append(entry(path))
    with pytest.raises(BadInput, match="unsafe name"):
        fetched()
    assert hub.body_hits() == []
    assert [p.name for p in dest.parent.rglob("evil*")] == []


@pytest.mark.parametrize("kind", ["symlink", "commit"])
def test_link_in_the_repository_is_refused(kind: str, fetched: Fetch, hub: HubServer) -> None:
    hub.repos[REPO].raw.append({"type": kind, "path": "vocab.json", "size": 9, "oid": "0" * 40})
    with pytest.raises(BadInput, match=r"vocab\.json is a link"):
        fetched()


@pytest.mark.parametrize("size", [-1, 1 << 60, "7", 1.5, None])
def test_impossible_size_is_refused(size: object, hub: HubServer) -> None:
    hub.repos[REPO].raw.append(entry("x.bin", size=size))
    with pytest.raises(BadInput, match="impossible size"):
        read(hub)


@pytest.mark.parametrize(
    "more",
    [{"oid": "xyz"}, {"oid": None}, {"lfs": {"oid": "../../x", "size": 1, "pointerSize": 1}}],
)
def test_malformed_hash_is_refused(more: dict[str, Any], hub: HubServer) -> None:
    hub.repos[REPO].raw.append(entry("x.bin", **more))
    with pytest.raises(BadInput, match="malformed content hash"):
        read(hub)


def test_list_of_files_comes_in_pages(hub: HubServer) -> None:
    hub.page = 3
    hub.repos[REPO].commit({f"f{n}": b"" for n in range(10)})
    assert len(read(hub).files) == 10


def test_commit_is_pinned_before_the_list_is_read(hub: HubServer) -> None:
    tree = read(hub)
    assert hub.hits[-1].path == f"/api/models/{REPO}/tree/{tree.commit}"


def test_commit_that_is_no_commit_is_refused(hub: HubServer) -> None:
    hub.repos[REPO].commits[0] = ("../..", hub.repos[REPO].commits[0][1])
    with pytest.raises(EnvironmentFailure, match="as its commit"):
        read(hub)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_fault_of_the_list_passes(status: int, hub: HubServer) -> None:
    hub.api_faults.append(Fault(status=status, times=3))
    assert read(hub).files


def test_list_waits_as_long_as_the_hub_asks(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.api_faults.append(Fault(status=429, headers={"Retry-After": "2"}))
    waited: list[float] = []
    monkeypatch.setattr("strata_pack.weights.hub.api.time.sleep", waited.append)
    read(hub)
    assert waited == [2.0]


def test_list_that_fails_for_good_is_an_environment_failure(hub: HubServer) -> None:
    hub.api_faults.append(Fault(status=503, times=-1))
    with pytest.raises(EnvironmentFailure, match="HTTP 503"):
        read(hub)


@pytest.mark.parametrize(
    ("repo_id", "revision", "sentence"),
    [
        (REPO, "nothing", "no such revision"),
        ("org//model", None, "not a valid hub id"),
    ],
)
def test_wrong_name_is_bad_input(repo_id: str, revision: str | None, sentence: str, hub: HubServer) -> None:
    with pytest.raises(BadInput, match=sentence):
        read(hub, repo_id, revision)


def test_missing_repository_is_as_wrong_as_a_missing_revision(hub: HubServer) -> None:
    with pytest.raises(BadInput, match="no such repository on the Hub, or it is private"):
        read(hub, "org/nothing")


def test_mistyped_path_is_named_as_a_path_first(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("packs").mkdir()
    with pytest.raises(BadInput, match=r"^packs/mine: no such file or folder; read as a hub id: no such repository"):
        read(hub, "packs/mine")


ODD_ANSWERS = {
    "a login page": Fault(body=b"<html>log in", headers={"Content-Type": "text/html; charset=utf-8"}),
    "a page that says it is JSON": Fault(body=b"<html>", headers={"Content-Type": "application/json"}),
    "nothing": Fault(body=b""),
    "a number": Fault(body=b"7"),
    "an empty list": Fault(body=b"[]"),
    "no commit": Fault(body=b"{}"),
    "nested without end": Fault(body=b"[" * 200_000),
    "bytes that are no text": Fault(body=b"\xff\xfe"),
    "not packed as it says": Fault(body=b"plain", headers={"Content-Encoding": "gzip"}),
    "a redirect in a circle": Fault(status=302, headers={"Location": f"/api/models/{REPO}/revision/main"}),
    **ODD_FOR_ALL,
    "a redirect to nowhere": Fault(status=302, headers={"Location": "http://"}),
    "a forbidden proxy": Fault(status=407),
    "a number beyond all": Fault(status=503, headers={"Retry-After": "9" * 6000}),
    "a day that is none": Fault(status=503, headers={"Retry-After": "Wed, 99 Oct 99999 07:28:00 GMT"}),
}


@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_answer_of_something_else_is_one_sentence(name: str, hub: HubServer) -> None:
    hub.api_faults.append(replace(ODD_ANSWERS[name], times=-1))
    with pytest.raises(EnvironmentFailure) as caught:
        read(hub)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


ODD_LISTS = [b"{}", b"[7]", b"null", b'[{"type": "file"}]', b'[{"type": "file", "path": 7, "size": 1}]', b"<html>"]


@pytest.mark.parametrize("body", ODD_LISTS)
def test_list_of_something_else_is_one_sentence(body: bytes, hub: HubServer) -> None:
    commit = hub.repos[REPO].commits[-1][0]
    hub.api_faults += [Fault(body=json.dumps({"sha": commit}).encode()), Fault(body=body, times=-1)]
    with pytest.raises((EnvironmentFailure, BadInput)):
        read(hub)


def test_list_that_goes_in_a_circle_ends(hub: HubServer) -> None:
    commit = hub.repos[REPO].commits[-1][0]
    link = f'<{hub.endpoint}/api/models/{REPO}/tree/{commit}?recursive=true&expand=false>; rel="next"'
    hub.api_faults += [
        Fault(body=json.dumps({"sha": commit}).encode()),
        Fault(body=b"[]", headers={"Link": link}, times=-1),
    ]
    with pytest.raises(EnvironmentFailure, match="does not end, after 1 pages"):
        read(hub)


def test_next_page_of_another_origin_gets_no_token(hub: HubServer) -> None:
    commit = hub.repos[REPO].commits[-1][0]
    hub.api_faults += [
        Fault(body=json.dumps({"sha": commit}).encode()),
        Fault(body=b"[]", headers={"Link": f'<{hub.storage}/{REPO}/{commit}/config.json>; rel="next"'}),
    ]
    with pytest.raises(EnvironmentFailure):
        read_tree(connect(hub.endpoint, "secret", QUICK), REPO, None)
    assert {hit.auth for hit in hub.hits if hit.origin == "storage"} == {None}


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("7", 7.0), ("x", None), ("-5", -5.0), (" 7 ", 7.0), ("9" * 400, float("inf")), ("\u00b2", None)],
)
def test_retry_after_number(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header) == seconds


def test_retry_after_date() -> None:
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text("ab./\\:\0\n ~é", max_size=12))
def test_safe_path_stays_inside_any_folder(text: str) -> None:
    try:
        path = safe_path(text, "x")
    except BadInput:
        return
    root = Path("/some/folder")
    assert (root / path).is_absolute()
    assert Path(*(root / path).parts[: len(root.parts)]) == root
    assert ".." not in (root / path).parts
