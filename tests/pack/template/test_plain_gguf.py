"""Installing a template into a GGUF file that no pack holds: in place or as a copy, TI-007 (rollback), PB-004."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType

from strata_pack.chat.engines.engines import Jinja2Engine, MinijinjaEngine
from strata_pack.chat.repair.prelude import prelude
from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import sha256_file
from strata_pack.pack.layout import gguf_template, gguf_templates
from strata_pack.pack.paths import STATE_DIR
from strata_pack.pack.recovery import recover
from strata_pack.pack.template import plan as template_install_plan
from strata_pack.pack.template.choice import HidesSomething
from strata_pack.pack.template.install import TemplateNotRecognised, install_template, rollback_template
from strata_pack.pack.template.target import open_target
from strata_pack.weights.gguf import copy as gguf_edit_copy
from strata_pack.weights.gguf.edit import PAD_KEY, TEMPLATE_KEY, pad_value
from strata_pack.weights.gguf.file import GgufFile, MetaValue, shard_paths
from strata_pack.weights.tokenizer.chat_templates import MAX_TEMPLATES
from tests.conftest import ROOT
from tests.pack.template.texts import HIDING, HUGE, LONG, SAME, SHORT, first_logits, weights_of
from tests.pack.tiny_gguf import STOCK, metadata, tensors, write_file, write_shards, write_tiny
from tests.pack.tiny_pack import hashes, write_pack


@pytest.mark.parametrize("text", [SHORT, SAME, ""], ids=["shrinks", "stays", "empties"])
def test_in_a_plain_gguf_a_template_that_is_no_longer_changes_in_place(tmp_path: Path, put: Any, text: str) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    size, inode, weights = path.stat().st_size, path.stat().st_ino, weights_of(path)
    text = text or "x"
    result = put(path, text)
    assert result.plan["method"] == "in place"
    assert gguf_template(path) == text
    assert (path.stat().st_size, path.stat().st_ino) == (size, inode)
    assert weights_of(path) == weights


def test_in_a_plain_gguf_a_longer_template_makes_a_copy_under_the_same_name(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    weights, logits = weights_of(path), first_logits(path)
    result = put(path, LONG)
    assert result.plan["method"] == "copy"
    assert any("copied" in note for note in result.notes)
    assert gguf_template(path) == LONG
    assert weights_of(path) == weights
    assert np.array_equal(first_logits(path), logits)


def test_after_a_copy_the_next_longer_template_fits_in_place(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    put(path, LONG)
    assert put(path, LONG + "{# more #}").plan["method"] == "in place"


def test_a_gguf_without_the_key_gets_it(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf", template=None)
    put(path, SHORT)
    assert gguf_template(path) == SHORT
    assert np.isfinite(first_logits(path)).all()


@pytest.mark.parametrize("counts", [(7, 5), (0, 12), (0, 6, 6)])
@pytest.mark.parametrize("shard", [0, -1])
def test_of_split_files_only_the_first_changes(tmp_path: Path, put: Any, counts: tuple[int, ...], shard: int) -> None:
    paths = write_shards(tmp_path, counts)
    before = [sha256_file(path) for path in paths]
    weights = weights_of(paths[0])
    put(paths[shard], LONG)
    assert gguf_template(paths[0]) == LONG
    assert [sha256_file(path) for path in paths[1:]] == before[1:]
    assert weights_of(paths[0]) == weights
    assert np.isfinite(first_logits(paths[0])).all()


def test_a_5_gb_file_takes_under_a_second_when_the_header_fits(tmp_path: Path, put: Any) -> None:
    """In CPU time, which a busy machine does not change; what is written to the disk is checked beside it."""
    path = tmp_path / "big.gguf"
    values = {**metadata(STOCK), PAD_KEY: pad_value(4096)}
    for key in ("tokens", "merges"):
        words = [f"{key} {number}" for number in range(150_000)]
        values[f"tokenizer.ggml.{key}"] = MetaValue.array(GGUFValueType.STRING, words)
    write_file(path, values, tensors())
    os.truncate(path, 5_000_000_000)
    started = time.process_time()
    result = put(path, LONG)
    assert time.process_time() - started < 1
    assert result.plan["bytes_written"] < 50_000
    assert gguf_template(path) == LONG
    started = time.process_time()
    rollback_template(path)
    assert time.process_time() - started < 1
    assert gguf_template(path) == STOCK
    assert path.stat().st_blocks * 512 < 50_000_000


def test_a_named_template_for_tools_goes_because_llama_cpp_would_prefer_it(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf", extra={f"{TEMPLATE_KEY}.tool_use": MetaValue.string("tools" * 9)})
    result = put(path, SHORT)
    with GgufFile.open(path) as gguf:
        assert [key for key in gguf.metadata if "chat_template" in key] == [TEMPLATE_KEY]
    assert any("tool_use" in note for note in result.notes)


def test_auto_repairs_the_template_for_tools_on_the_given_engines_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("repair.repair", "golden.recorded"):
        monkeypatch.delattr(f"strata_pack.chat.{module}.available_engines")
    stock = (ROOT / "tests/data/chat/stock/qwen38_like.jinja").read_text(encoding="utf-8")
    for_tools = (ROOT / "tests/data/chat/stock/coder_like.jinja").read_text(encoding="utf-8")
    named = {f"{TEMPLATE_KEY}.tool_use": MetaValue.string(for_tools), f"{TEMPLATE_KEY}.rag": MetaValue.string("r")}
    path = tmp_path / "m.gguf"
    write_file(path, metadata(stock) | named, tensors())
    result = install_template(path, engines=[MinijinjaEngine()])
    found = gguf_templates(path)
    assert result.plan["removed_keys"] == []
    assert found == {"default": prelude("xml") + stock, "tool_use": prelude("xml") + for_tools, "rag": "r"}
    assert not install_template(path, engines=[MinijinjaEngine()]).changed


@pytest.mark.parametrize("read", [gguf_templates, open_target])
def test_more_templates_than_a_model_has_are_refused(tmp_path: Path, read: Callable[[Path], object]) -> None:
    named = {f"{TEMPLATE_KEY}.t{number}": MetaValue.string("t") for number in range(MAX_TEMPLATES)}
    path = write_tiny(tmp_path / "m.gguf", extra=named)
    with pytest.raises(BadInput, match=r"m\.gguf: has 101 chat templates; at most 100 are read"):
        read(path)


def test_a_template_with_a_trigger_is_refused_and_nothing_changes(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    before = sha256_file(path)
    with pytest.raises(HidesSomething, match=r"'deploy'.*evil\.example"):
        put(path, HIDING)
    assert sha256_file(path) == before


def test_a_trigger_in_the_template_for_tools_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", extra={f"{TEMPLATE_KEY}.tool_use": MetaValue.string(HIDING)})
    with pytest.raises(HidesSomething, match=r"chat template tool_use, line \d+: 'deploy'"):
        install_template(path, engines=[Jinja2Engine()])
    install_template(path, engines=[Jinja2Engine()], allow_triggers=True)


def test_a_hard_linked_gguf_is_copied_so_that_the_other_name_keeps_its_bytes(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "cache")
    os.link(path, tmp_path / "m.gguf")
    before = sha256_file(path)
    put(tmp_path / "m.gguf", SHORT)
    assert sha256_file(path) == before
    assert gguf_template(tmp_path / "m.gguf") == SHORT


def test_a_symbolic_link_is_refused(tmp_path: Path, put: Any) -> None:
    (tmp_path / "m.gguf").symlink_to(write_tiny(tmp_path / "real.gguf"))
    with pytest.raises(BadInput, match="is a link"):
        put(tmp_path / "m.gguf", SHORT)


def test_a_gguf_inside_a_pack_is_refused_by_the_packs_name(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    before = hashes(root)
    for action in (lambda path: put(path, SHORT), rollback_template):
        with pytest.raises(BadInput, match="belongs to the pack"):
            action(root / "model/tiny.gguf")
    assert hashes(root) == before


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    before = sha256_file(path)
    monkeypatch.setattr(template_install_plan, "free_bytes", lambda _path: 1000)
    with pytest.raises(EnvironmentFailure, match=r"a copy of the file needs .* GB where 0.0 GB are free"):
        put(path, HUGE)
    assert sha256_file(path) == before
    assert not (tmp_path / f"m.gguf{STATE_DIR}").exists()


def test_a_disk_that_fills_up_during_the_copy_leaves_all_as_it_was(
    tmp_path: Path, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    before = sha256_file(path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf_edit_copy.os, "copy_file_range", full)
    with pytest.raises(EnvironmentFailure, match="no space left"):
        put(path, HUGE)
    assert sha256_file(path) == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"m.gguf", "new.jinja"}


@pytest.mark.parametrize("text", [SHORT, LONG, HUGE], ids=["in place", "copy", "large copy"])
def test_rollback_restores_a_plain_gguf_to_the_byte(tmp_path: Path, put: Any, text: str) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    before = sha256_file(path)
    put(path, text)
    rollback_template(path)
    assert sha256_file(path) == before
    assert not (tmp_path / f"m.gguf{STATE_DIR}").exists()


def test_a_template_that_would_keep_llama_server_from_starting_is_not_installed(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    before = sha256_file(path)
    with pytest.raises(BadInput, match="fails on a plain conversation"):
        put(path, "{{ raise_exception('never') }}")
    assert sha256_file(path) == before


def test_without_golden_cases_the_result_says_so(tmp_path: Path, put: Any) -> None:
    notes = put(write_tiny(tmp_path / "m.gguf"), SHORT).notes
    assert any("no golden cases" in note for note in notes)


def test_an_unknown_template_is_refused_with_the_difference(tmp_path: Path, put: Any) -> None:
    path = write_tiny(tmp_path / "m.gguf")
    before = sha256_file(path)
    with pytest.raises(TemplateNotRecognised, match="--force") as error:
        put(path, SHORT, force=False)
    assert f"-{STOCK.splitlines()[0]}" in error.value.diff
    assert f"+{SHORT}" in error.value.diff
    assert sha256_file(path) == before


def test_a_missing_template_needs_no_force(tmp_path: Path, put: Any) -> None:
    assert put(write_tiny(tmp_path / "m.gguf", template=None), SHORT, force=False).changed


def test_shard_names_decide_which_files_a_journal_next_to_a_gguf_may_touch(tmp_path: Path) -> None:
    from strata_pack.pack.journal import Journal, Put

    path = write_tiny(tmp_path / "m.gguf")
    state = tmp_path / f"m.gguf{STATE_DIR}"
    state.mkdir()
    (state / "journal").write_bytes(Journal({}, {"sha256": "0"}, (Put(".profile", None, b"evil"),)).dump())
    with pytest.raises(BadInput, match="not a file of this model"):
        recover(path)
    assert not (tmp_path / ".profile").exists()
    assert shard_paths(path) == [path]
