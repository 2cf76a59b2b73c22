"""What a build may replace: a pack, a bare GGUF, and never anything else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from strata_pack.errors import BadInput, WrongUse
from strata_pack.pack.build import build_pack
from strata_pack.pack.build_dir import BuildDir
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.quantize.recipes import make_recipe
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.pack.tiny_gguf import truncate, write_shards, write_tiny
from tests.pack.tiny_pack import hashes


def test_gguf_layout_leaves_only_the_model(request_: BuildRequest) -> None:
    path = build_pack(replace(request_, layout="gguf")).path
    assert [entry.name for entry in path.iterdir()] == ["Tiny-Q8_0.gguf"]


def test_a_bare_gguf_whose_build_was_stopped_at_its_end_is_found_finished(
    request_: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(request_, layout="gguf")
    remove = BuildDir.remove
    monkeypatch.setattr(BuildDir, "remove", lambda _place: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        build_pack(request)
    monkeypatch.setattr(BuildDir, "remove", remove)
    result = build_pack(request)
    assert (result.resumed, [entry.name for entry in result.path.iterdir()]) == (True, ["Tiny-Q8_0.gguf"])
    assert [entry.name for entry in result.path.parent.iterdir()] == ["pack"]


def test_force_replaces_a_pack(request_: BuildRequest) -> None:
    build_pack(request_)
    manifest = build_pack(replace(request_, recipe=make_recipe("F16"), force=True)).manifest
    assert manifest["recipe"]["preset"] == "F16"
    assert [path.name for path in request_.out.parent.iterdir()] == ["pack"]


def test_a_failed_force_leaves_the_old_pack(request_: BuildRequest, source: Path) -> None:
    before = hashes(build_pack(request_).path)
    source.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(BadInput):
        build_pack(replace(request_, force=True))
    assert hashes(request_.out) == before


@pytest.mark.parametrize("layout", ["pack", "gguf"])
def test_force_replaces_a_bare_gguf(request_: BuildRequest, layout: Literal["pack", "gguf"]) -> None:
    build_pack(replace(request_, layout="gguf"))
    build_pack(replace(request_, recipe=make_recipe("F16"), layout=layout, force=True))
    where = request_.out if layout == "gguf" else request_.out / "model"
    assert [path.name for path in where.iterdir()] == ["Tiny-F16.gguf"]
    assert [path.name for path in request_.out.parent.iterdir()] == ["pack"]


def test_force_replaces_a_bare_gguf_of_several_shards(request_: BuildRequest, tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    shards = write_shards(tmp_path / "split", (7, 5))
    build_pack(replace(request_, source=str(shards[0]), keep_split=True, layout="gguf"))
    build_pack(replace(request_, layout="gguf", force=True))
    assert [path.name for path in request_.out.iterdir()] == ["Tiny-Q8_0.gguf"]


def test_without_force_a_bare_gguf_stays(request_: BuildRequest) -> None:
    before = hashes(build_pack(replace(request_, layout="gguf")).path)
    with pytest.raises(WrongUse, match=r"holds a bare GGUF already.*--force"):
        build_pack(replace(request_, recipe=make_recipe("F16"), layout="gguf"))
    assert hashes(request_.out) == before


def test_a_failed_force_leaves_the_old_bare_gguf(request_: BuildRequest, source: Path) -> None:
    before = hashes(build_pack(replace(request_, layout="gguf")).path)
    source.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(BadInput):
        build_pack(replace(request_, layout="gguf", force=True))
    assert hashes(request_.out) == before


def test_a_forced_bare_gguf_whose_build_was_stopped_at_its_end_is_found_finished(
    request_: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_pack(replace(request_, layout="gguf"))
    request = replace(request_, recipe=make_recipe("F16"), layout="gguf", force=True)
    with monkeypatch.context() as stopped:
        stopped.setattr(BuildDir, "remove", lambda _place: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_pack(request)
    assert build_pack(request).resumed
    assert [path.name for path in request_.out.iterdir()] == ["Tiny-F16.gguf"]
    assert [path.name for path in request_.out.parent.iterdir()] == ["pack"]


def _with_a_note(folder: Path) -> None:
    (folder / "README.md").write_text("mine")


def _with_another_model(folder: Path) -> None:
    shutil.copy(folder / "Tiny-Q8_0.gguf", folder / "other.gguf")


def _with_a_link(folder: Path) -> None:
    (folder / "Tiny-Q8_0.gguf").rename(folder.parent / "away.gguf")
    (folder / "Tiny-Q8_0.gguf").symlink_to(folder.parent / "away.gguf")


def _of_another_tool(folder: Path) -> None:
    write_tiny(folder / "Tiny-Q8_0.gguf")


def _quantized_again(folder: Path) -> None:
    with GgufSource(folder / "Tiny-Q8_0.gguf") as opened:
        run_plan(plan_quantization(opened, "Q4_0", allow_requantize=True), folder / "new.gguf")
    (folder / "Tiny-Q8_0.gguf").unlink()


def _damaged(folder: Path) -> None:
    truncate(folder / "Tiny-Q8_0.gguf")


@pytest.mark.parametrize(
    "change", [_with_a_note, _with_another_model, _with_a_link, _of_another_tool, _quantized_again, _damaged]
)
def test_force_never_replaces_a_folder_that_no_build_has_left_so(
    request_: BuildRequest, change: Callable[[Path], None]
) -> None:
    change(build_pack(replace(request_, layout="gguf")).path)
    before = hashes(request_.out)
    with pytest.raises(WrongUse, match="other files in it"):
        build_pack(replace(request_, layout="gguf", force=True))
    assert hashes(request_.out) == before


def test_a_pack_in_the_way_is_kept(request_: BuildRequest) -> None:
    before = hashes(build_pack(request_).path)
    with pytest.raises(WrongUse, match="holds a pack already"):
        build_pack(replace(request_, recipe=make_recipe("F16")))
    assert hashes(request_.out) == before
