"""What a SOURCE argument means."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput
from strata_pack.weights.source import HubSource, LocalFolder, LocalGguf, parse_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("org/name", HubSource("org/name")),
        ("org/name@v1.0", HubSource("org/name", "v1.0")),
        ("hf://org/name", HubSource("org/name")),
        ("hf://models/org/name", HubSource("org/name")),
        ("hf://org/name/", HubSource("org/name")),
        ("hf://org/name@main", HubSource("org/name", "main")),
        (f"hf://org/name@{COMMIT}/a/b.gguf", HubSource("org/name", COMMIT, "a/b.gguf")),
        ("hf://org/name/Q4_K_M/x-00001-of-00002.gguf", HubSource("org/name", None, "Q4_K_M/x-00001-of-00002.gguf")),
        ("hf://org/name@refs/pr/3/x.gguf", HubSource("org/name", "refs/pr/3", "x.gguf")),
        ("hf://org/name@feature%2Fx/y", HubSource("org/name", "feature/x", "y")),
    ],
)
def test_hub_forms(text: str, source: HubSource) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\0b",
        "name",
        "/no/such/file.gguf",
        "org/missing.gguf",
        "a/b/c",
        "org/name@",
        "../org/name",
        "-org/name",
        "org--x/name",
        "org/na..me",
        f"org/{'x' * 97}",
        "hf://",
        "hf://org",
        "hf://org/name@",
        "hf://org/name@/x",
        "hf://org/name@main/../x",
        "hf://org/name//x",
        "hf://datasets/org/name/x@main",
        "https://example.org/org/name",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_source(text)


def test_gguf_file_is_a_local_gguf(tmp_path: Path) -> None:
    path = tmp_path / "Model.GGUF"
    path.write_bytes(b"")
    assert parse_source(str(path)) == LocalGguf(path)


def test_existing_folder_wins_over_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_source("org/name") == LocalFolder(Path("org/name"))


def test_uri_is_the_hub_whatever_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hf:/org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert parse_source("hf://org/name") == HubSource("org/name")


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_file_of_a_checkpoint_is_refused_with_its_folder_as_remedy(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadInput, match="give its folder"):
        parse_source(str(tmp_path / name))


def test_other_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"")
    with pytest.raises(BadInput, match=r"neither a \.gguf file nor a folder"):
        parse_source(str(tmp_path / "x.bin"))


_NAME = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_]{0,20}[A-Za-z0-9])?", fullmatch=True)
_PATH = st.none() | st.lists(_NAME, min_size=1, max_size=3).map("/".join)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(_NAME, _NAME, st.none() | st.text("abc/%@. é", min_size=1, max_size=9), _PATH)
def test_uri_of_a_hub_source_means_that_source(org: str, name: str, revision: str | None, path: str | None) -> None:
    source = HubSource(f"{org}/{name}", revision, path)
    assert parse_source(str(source)) == source
