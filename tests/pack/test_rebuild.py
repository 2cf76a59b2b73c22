"""Building where something is already: sources and foreign files survive, a finished pack is known again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from strata_pack.errors import BadInput, WrongUse
from strata_pack.pack import build as build_module
from strata_pack.pack import model_files
from strata_pack.pack.build import build_pack
from strata_pack.pack.build_dir import BuildDir
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.template.install import install_template
from strata_pack.pack.verification import verify
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.recipes import make_recipe
from tests.pack.tiny_gguf import write_tiny
from tests.pack.tiny_pack import hashes


@pytest.fixture
def request_(request_: BuildRequest) -> BuildRequest:
    return replace(request_, recipe=make_recipe("F16"))


SOURCES: dict[str, Callable[[Path], str]] = {
    "the pack": str,
    "another spelling": lambda pack: str(pack / "model/.." / "../pack"),
    "a link to the pack": lambda pack: str(pack.with_name("link")),
    "its model": lambda pack: str(pack / "model/Tiny-F16.gguf"),
    "its model by a link": lambda pack: str(pack.with_name("link") / "model/Tiny-F16.gguf"),
    "its model folder": lambda pack: str(pack / "model"),
    "a link to its model": lambda pack: str(pack.with_name("model.gguf")),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_pack_is_never_built_over_its_own_source(request_: BuildRequest, name: str) -> None:
    pack = build_pack(request_).path
    pack.with_name("link").symlink_to("pack")
    pack.with_name("model.gguf").symlink_to("pack/model/Tiny-F16.gguf")
    before = hashes(pack)
    with pytest.raises(WrongUse, match=r"read by this command|which this command reads"):
        build_pack(replace(request_, source=SOURCES[name](pack), force=True, recipe=make_recipe("Q8_0")))
    assert hashes(pack) == before


@pytest.mark.parametrize(("named", "out"), [(".", "../pack"), ("model/Tiny-F16.gguf", "."), ("model", "../pack")])
def test_from_inside_the_pack_it_is_never_built_over_its_source(
    request_: BuildRequest, named: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = build_pack(request_).path
    before = hashes(pack)
    monkeypatch.chdir(pack)
    with pytest.raises(WrongUse):
        build_pack(replace(request_, source=named, out=Path(out), force=True))
    assert hashes(pack) == before


def test_a_bare_gguf_is_never_built_over_its_source(request_: BuildRequest) -> None:
    bare = build_pack(replace(request_, layout="gguf")).path
    before = hashes(bare)
    with pytest.raises(WrongUse, match=r"read by this command|which this command reads"):
        build_pack(replace(request_, source=str(bare / "Tiny-F16.gguf"), layout="gguf", force=True))
    assert hashes(bare) == before


@pytest.mark.parametrize("option", ["golden", "template"])
def test_other_inputs_inside_the_pack_stop_the_build(request_: BuildRequest, option: str) -> None:
    pack = build_pack(request_).path
    inside = {"golden": pack / "golden/chat_golden.json", "template": str(pack / "tokenizer/chat_template.jinja")}
    with pytest.raises(WrongUse, match=r"read by this command|which this command reads"):
        build_pack(replace(request_, force=True, **{option: inside[option]}))


def test_a_source_in_the_folder_that_is_cleared_after_a_build_is_refused(request_: BuildRequest, source: Path) -> None:
    hidden = request_.out.with_name("pack.partial") / "source/x.gguf"
    hidden.parent.mkdir(parents=True)
    source.rename(hidden)
    with pytest.raises(WrongUse, match=r"read by this command|which this command reads"):
        build_pack(replace(request_, source=str(hidden)))
    assert hidden.is_file()


def test_a_pack_is_never_built_into_another_packs_folders(request_: BuildRequest) -> None:
    pack = build_pack(request_).path
    with pytest.raises(WrongUse, match="belongs to the pack"):
        build_pack(replace(request_, out=pack / "model/inner"))


FOREIGN = ("README.md", "LICENSE", "model/notes.txt", "docs/deep/card.md", "reports/thesis.pdf")


def test_force_keeps_and_names_the_files_that_no_manifest_lists(request_: BuildRequest) -> None:
    pack = build_pack(request_).path
    for name in FOREIGN:
        (pack / name).parent.mkdir(parents=True, exist_ok=True)
        (pack / name).write_text(f"mine: {name}")
    (pack / "link").symlink_to("README.md")
    result = build_pack(replace(request_, recipe=make_recipe("Q8_0"), force=True))
    assert set(result.kept) == {*FOREIGN, "link"}
    assert [(pack / name).read_text() for name in FOREIGN] == [f"mine: {name}" for name in FOREIGN]
    assert (pack / "link").is_symlink()
    assert [path.name for path in (pack / "model").glob("*.gguf")] == ["Tiny-Q8_0.gguf"]


def test_the_reports_of_the_replaced_pack_are_not_kept(request_: BuildRequest) -> None:
    pack = build_pack(request_).path
    (pack / "reports/smoke.json").write_text("{}")
    assert build_pack(replace(request_, force=True)).kept == ()
    assert not (pack / "reports/smoke.json").exists()


def test_a_foreign_file_in_the_way_of_the_new_pack_stops_it_before_the_swap(request_: BuildRequest) -> None:
    pack = build_pack(replace(request_, golden=None)).path
    (pack / "golden").mkdir()
    (pack / "golden/chat_golden.json").write_text("mine")
    before = hashes(pack)
    again = replace(request_, force=True)
    with pytest.raises(WrongUse, match="has a file of that name"):
        build_pack(again)
    assert hashes(pack) == before
    (pack / "golden/chat_golden.json").unlink()
    assert build_pack(again).resumed


def test_a_build_with_foreign_files_that_was_stopped_in_the_swap_keeps_them(
    request_: BuildRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = build_pack(request_).path
    (pack / "README.md").write_text("mine")
    again = replace(request_, recipe=make_recipe("Q8_0"), force=True)
    with monkeypatch.context() as stopped:
        stopped.setattr(BuildDir, "remove", lambda _place: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            build_pack(again)
    assert build_pack(again).resumed
    assert (pack / "README.md").read_text() == "mine"


@pytest.fixture
def never_quantized(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was built again")

    return lambda: monkeypatch.setattr(model_files, "run_plans", refuse)


def test_the_same_build_finds_its_finished_pack(request_: BuildRequest, never_quantized: Callable[[], None]) -> None:
    first = build_pack(request_)
    before = hashes(first.path)
    never_quantized()
    second = build_pack(request_)
    assert (second.manifest, second.resumed) == (first.manifest, True)
    assert hashes(first.path) == before
    assert [path.name for path in first.path.parent.iterdir()] == ["pack"]


def test_a_moved_source_of_the_same_bytes_is_the_same(
    request_: BuildRequest, source: Path, tmp_path: Path, never_quantized: Callable[[], None]
) -> None:
    build_pack(request_)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(source, tmp_path / "elsewhere")
    never_quantized()
    assert build_pack(replace(request_, source=str(moved))).resumed


def _other_recipe(request: BuildRequest) -> BuildRequest:
    return replace(request, recipe=make_recipe("Q8_0"))


def _other_rule(request: BuildRequest) -> BuildRequest:
    return replace(request, recipe=make_recipe("F16", tensor_types=["ffn_up=Q8_0"]))


def _other_name(request: BuildRequest) -> BuildRequest:
    return replace(request, name="mine")


def _other_template(request: BuildRequest) -> BuildRequest:
    return replace(request, template="qwen3.8-flash-next", golden=None)


def _no_golden(request: BuildRequest) -> BuildRequest:
    return replace(request, golden=None)


def _other_source(request: BuildRequest) -> BuildRequest:
    path = Path(request.source)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return request


def _template_installed_later(request: BuildRequest) -> BuildRequest:
    install_template(request.out, "qwen3.8-flash-next", force=True)
    return request


def _damaged(request: BuildRequest) -> BuildRequest:
    path = request.out / "model/Tiny-F16.gguf"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return request


@pytest.mark.parametrize(
    "change",
    [
        *(_other_recipe, _other_rule, _other_name, _other_template, _no_golden, _other_source),
        *(_template_installed_later, _damaged),
    ],
)
def test_a_pack_of_other_inputs_is_not_taken_for_the_finished_one(
    request_: BuildRequest, change: Callable[[BuildRequest], BuildRequest]
) -> None:
    build_pack(request_)
    with pytest.raises(WrongUse, match="holds a pack already"):
        build_pack(change(request_))


def test_force_builds_a_finished_pack_again(request_: BuildRequest) -> None:
    build_pack(request_)
    assert not build_pack(replace(request_, force=True)).resumed


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(64))


def _overwrite_with_its_time_put_back(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(bytes(range(64)))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(path.read_bytes())
    os.replace(fresh, path)


@pytest.mark.parametrize("change", [_append, _overwrite_with_its_time_put_back, _replace])
@pytest.mark.parametrize(("module", "when"), [(model_files, "run_plans"), (build_module, "make_side_files")])
def test_a_source_that_changes_under_the_build_is_refused(
    request_: BuildRequest,
    source: Path,
    change: Callable[[Path], None],
    module: ModuleType,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = getattr(module, when)

    def changed(*arguments: Any, **options: Any) -> Any:
        change(source)
        return real(*arguments, **options)

    monkeypatch.setattr(module, when, changed)
    with pytest.raises(BadInput, match="while it was read"):
        build_pack(request_)
    assert not request_.out.exists()


def test_a_refused_build_of_a_changed_source_is_whole_the_next_time(
    request_: BuildRequest, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as once:
        real = model_files.run_plans
        once.setattr(
            model_files, "run_plans", lambda *a, **o: (_overwrite_with_its_time_put_back(source), real(*a, **o))[1]
        )
        with pytest.raises(BadInput):
            build_pack(request_)
    again = build_pack(request_).path
    fresh = build_pack(replace(request_, out=request_.out.with_name("fresh"))).path
    assert hashes(again) == hashes(fresh)
    assert verify(again).ok


def test_a_model_that_no_loader_takes_is_refused_before_it_is_quantized(
    request_: BuildRequest, tmp_path: Path, never_quantized: Callable[[], None]
) -> None:
    zero = {"llama.context_length": MetaValue.uint32(0)}
    source = write_tiny(tmp_path / "zero.gguf", extra=zero)
    never_quantized()
    with pytest.raises(BadInput, match=r"would not load: llama\.context_length is 0"):
        build_pack(replace(request_, source=str(source)))


def test_a_config_of_another_model_next_to_the_weights_is_refused(request_: BuildRequest, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_tiny(folder / "tiny.gguf")
    (folder / "config.json").write_text('{"hidden_size": 4096}')
    with pytest.raises(BadInput, match=r"config\.json: hidden_size is 4096 and llama\.embedding_length is 32"):
        build_pack(replace(request_, source=str(folder)))
