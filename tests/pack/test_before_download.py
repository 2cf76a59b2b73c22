"""What is said of a model on the Hub before it is downloaded, from headers that are read by ranges."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput
from strata_pack.llama.ggml_types import GGMLQuantizationType
from strata_pack.llama.memory import NGRAM_TABLE, Room
from strata_pack.pack import fit_table as table
from strata_pack.pack.inspect import inspect_path
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo, encode_header
from strata_pack.weights.gguf.head import read_header
from strata_pack.weights.hub.models import RemoteModel
from strata_pack.weights.source import HubSource, hub_source
from tests.hub_repos import Fault
from tests.hub_server import HubServer, folder_files, serve
from tests.pack.tiny_gguf import STOCK, metadata, write_shards, write_tiny

REPO = "org/name"
OTHER = STOCK.replace(": ", " - ")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A repository with two quantizations, a split one, a projector and a tokenizer."""
    folder = tmp_path / "repo"
    (folder / "split").mkdir(parents=True)
    write_tiny(folder / "m-Q8_0.gguf", STOCK, {})
    write_tiny(folder / "m-F16.gguf", OTHER, {})
    write_shards(folder / "split", (4, 4, 5), STOCK)
    (folder / "mmproj-m.gguf").write_bytes(b"GGUF no model")
    (folder / "README.md").write_text("# m", encoding="utf-8")
    with serve({REPO: folder_files(folder)}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def run(*args: str) -> tuple[int, Any]:
    result = CliRunner().invoke(app, [*args, "--json"])
    return result.exit_code, json.loads(result.stdout)


def header_bytes(hub: HubServer, name: str) -> int:
    data = hub.repos[REPO].commits[-1][1][name]
    return GgufFile(Path(name), memoryview(data)).header_size


@pytest.mark.usefixtures("hub")
def test_inspect_says_of_a_file_on_the_hub_what_it_says_of_it_here(tmp_path: Path) -> None:
    code, found = run("inspect", f"hf://{REPO}/m-Q8_0.gguf")
    here = inspect_path(tmp_path / "repo/m-Q8_0.gguf").to_dict()
    assert code == 0
    same = ("files", "size", "architecture", "parameters", "bits_per_weight", "types", "template_sha256", "metadata")
    assert {key: found[key] for key in same} == json.loads(json.dumps({key: here[key] for key in same}))


@pytest.mark.usefixtures("hub")
def test_inspect_of_a_repository_lists_its_models_and_no_projector() -> None:
    code, found = run("inspect", f"hf://{REPO}")
    assert code == 0
    assert [model["files"][0] for model in found["models"]] == ["m-F16.gguf", "m-Q8_0.gguf", "tiny-00001-of-00003.gguf"]
    assert len(found["models"][2]["files"]) == 3


@pytest.mark.parametrize(
    "command",
    [["inspect"], ["template", "status"], ["template", "lint", "--select", "ST1"], ["runtime", "check"]],
    ids=" ".join,
)
def test_at_most_twice_the_header_of_a_file_is_read(hub: HubServer, command: list[str]) -> None:
    code, _ = run(*command, f"hf://{REPO}/m-Q8_0.gguf")
    assert code == 0
    assert 0 < hub.bytes_sent("m-Q8_0.gguf") <= 2 * header_bytes(hub, "m-Q8_0.gguf")
    assert {hit.path.rsplit("/", 1)[-1] for hit in hub.body_hits()} == {"m-Q8_0.gguf"}
    assert all(hit.range for hit in hub.body_hits())


def test_of_a_whole_repository_the_headers_alone_travel(hub: HubServer) -> None:
    run("runtime", "check", f"hf://{REPO}")
    names = [name for name in hub.repos[REPO].commits[-1][1] if name.endswith(".gguf") and "mmproj" not in name]
    assert hub.bytes_sent() <= sum(2 * header_bytes(hub, name) for name in names)


def test_a_hub_that_ignores_ranges_is_read_no_further_than_needed(hub: HubServer, tmp_path: Path) -> None:
    hub.fail("m-Q8_0.gguf", Fault(ignore_range=True, times=-1))
    _, found = run("inspect", f"hf://{REPO}/m-Q8_0.gguf")
    assert found["parameters"] == inspect_path(tmp_path / "repo/m-Q8_0.gguf").parameters


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (f"hf://{REPO}/nothing.gguf", "nothing.gguf"),
        (f"hf://{REPO}/README.md", "is not a GGUF file"),
        ("hf://org/absent", "no such repository"),
        (f"hf://{REPO}/mmproj-m.gguf", "not supported"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_what_is_no_model_is_refused_with_a_sentence(target: str, said: str) -> None:
    code, found = run("inspect", target)
    assert code == 2
    assert said in found["error"]


@pytest.mark.usefixtures("hub")
def test_status_shows_every_copy_of_a_repository() -> None:
    code, found = run("template", "status", f"hf://{REPO}")
    assert (code, found["status"]) == (0, "unknown")
    assert len(found["copies"]) == 3


def test_lint_reads_a_template_out_of_a_header(hub: HubServer) -> None:
    hub.repo(REPO, {"a.gguf": header("{{ messages[0].content.find('a') }}") + bytes(1 << 20)})
    code, found = run("template", "lint", f"hf://{REPO}", "--select", "ST301")
    assert (code, [one["rule"] for one in found["findings"]]) == (1, ["ST301"])


def test_a_folder_of_that_name_goes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/name").mkdir(parents=True)
    assert hub_source("org/name") is None
    assert hub_source("hf://org/name/a.gguf") == HubSource("org/name", None, "a.gguf")
    assert hub_source("org/other") == HubSource("org/other")


# Which memory is enough.


def header(template: str | None = None, table_bytes: int = 0, scale: int = 1) -> bytes:
    values = metadata(template)
    values["llama.context_length"] = MetaValue.uint32(131072)
    values["llama.block_count"] = MetaValue.uint32(32)
    values["llama.embedding_length"] = MetaValue.uint32(4096)
    values["llama.attention.head_count"] = MetaValue.uint32(32)
    values["llama.attention.head_count_kv"] = MetaValue.uint32(8)
    sizes = {"blk.0.ffn_up.weight": scale << 20, NGRAM_TABLE: table_bytes}
    tensors, offset = [], 0
    for name, size in sizes.items():
        if size:
            tensors.append(TensorInfo.make(name, (1024, size // 1024), GGMLQuantizationType.I8, offset))
            offset += size
    return encode_header(values, tensors)


def remote(name: str, **sizes: int) -> RemoteModel:
    data = header(**sizes)
    size = len(data) + sum(sizes.get(key, 0) for key in ("table_bytes",)) + (sizes.get("scale", 1) << 20)
    return RemoteModel((name,), (GgufFile(Path(name), memoryview(data), size),))


def rows(monkeypatch: pytest.MonkeyPatch, *models: RemoteModel, free: int = 16 << 30) -> list[table.ModelFit]:
    monkeypatch.setattr(table, "remote_models", lambda _source, _progress: list(models))
    return table.fit_table(HubSource("org/name"), 8192, Room(free, "here"))


def test_each_memory_has_the_longest_context_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows(monkeypatch, remote("m.gguf", scale=8 << 10))
    # 8 GiB of weights, 128 KiB of cache for each token, 256 MiB of buffers.
    said = {memory // table.GIB: tokens // 1024 for memory, tokens in row.contexts.items()}
    assert {memory: said[memory] for memory in (8, 12, 16, 24, 32)} == {8: 0, 12: 16, 16: 32, 24: 64, 32: 128}
    assert row.trained_context == 131072


def test_a_table_of_ngrams_stays_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, lazy = rows(
        monkeypatch, remote("a.gguf", scale=8 << 10), remote("b.gguf", scale=8 << 10, table_bytes=40 << 30)
    )
    assert (lazy.need.held, lazy.need.lazy) == (plain.need.held, 40 << 30)
    assert lazy.contexts == plain.contexts


def test_the_smallest_file_comes_first_and_says_whether_it_fits_here(monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(monkeypatch, remote("large.gguf", scale=30 << 10), remote("small.gguf", scale=8 << 10))
    assert [(row.name, row.fits) for row in found] == [("small.gguf", True), ("large.gguf", False)]
    assert [memory // table.GIB for memory in table.shown_memories(found)] == [12, 16, 24, 32, 48]


@pytest.mark.usefixtures("hub")
def test_check_fails_where_no_file_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.pack.fit.room_of", lambda _runtime: Room(1 << 20, "a small place"))
    code, found = run("runtime", "check", "--model", f"hf://{REPO}")
    assert (code, found["ok"]) == (1, False)
    assert [one["fits"] for one in found["files"]] == [False, False, False]


# Headers.


@pytest.mark.parametrize("template", [None, STOCK, "x" * 200_000])
def test_a_header_is_read_with_at_most_twice_its_bytes(tmp_path: Path, template: str | None) -> None:
    data = write_tiny(tmp_path / "m.gguf", template, {}).read_bytes()
    read = 0

    def take(count: int) -> bytes:
        nonlocal read
        read += count
        return data[read - count : read]

    whole = GgufFile(tmp_path / "m.gguf", memoryview(data))
    found = read_header(take, len(data), "m.gguf")
    assert (dict(found.metadata), found.tensors) == (dict(whole.metadata), whole.tensors)
    assert read <= 2 * whole.header_size


@pytest.mark.parametrize("keep", [3, 30, 700, 5000])
def test_a_file_that_ends_in_its_header_is_refused(tmp_path: Path, keep: int) -> None:
    data = memoryview(write_tiny(tmp_path / "m.gguf", STOCK, {}).read_bytes()[:keep])
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        at += count
        return bytes(data[at - count : at])

    with pytest.raises(BadInput):
        read_header(take, keep, "m.gguf")


# Since when a template differs.


def test_diff_names_the_commit_since_which_the_base_differs(hub: HubServer, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text(STOCK, encoding="utf-8")
    texts = [STOCK, STOCK + "{# a word #}", OTHER, OTHER + "{{ 1 }}"]
    for text in texts:
        hub.repo("org/base", {"chat_template.jinja": text.encode()})
    code, found = run("template", "diff", str(mine), "hf://org/base")
    assert code == 1
    since = found["since"]
    assert (since["commit"], since["date"], since["title"]) == (
        hub.repos["org/base"].commits[2][0],
        "2026-01-03",
        "commit 3",
    )
    assert (since["always"], since["examined"]) == (False, 2)


def test_a_base_that_was_never_the_same_says_so(hub: HubServer, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text(STOCK, encoding="utf-8")
    hub.repo("org/base", {"README.md": b"x"})
    hub.repo("org/base", {"chat_template.jinja": OTHER.encode()})
    _, found = run("template", "diff", str(mine), "hf://org/base")
    assert (found["since"]["always"], found["since"]["examined"]) == (True, 2)


def test_a_base_that_renders_the_same_has_no_such_commit(hub: HubServer, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text(STOCK, encoding="utf-8")
    hub.repo("org/base", {"chat_template.jinja": (STOCK + "{# a word #}").encode()})
    code, found = run("template", "diff", str(mine), "hf://org/base")
    assert (code, found["since"]) == (0, None)
