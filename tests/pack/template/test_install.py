"""Installing a template into a pack: every copy together, back to the byte, proved before it is swapped in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.library import list_templates
from strata_pack.errors import BadInput, CheckFailed, EnvironmentFailure, WrongUse
from strata_pack.files import sha256_text
from strata_pack.llama.server import LlamaServer
from strata_pack.pack import recovery
from strata_pack.pack.layout import Pack, gguf_template
from strata_pack.pack.paths import GOLDEN, STATE_DIR, TEMPLATE
from strata_pack.pack.recovery import recover
from strata_pack.pack.template.install import GoldenFailed, TemplateNotRecognised, install_template, rollback_template
from strata_pack.pack.template.status import template_status
from strata_pack.pack.verification import verify
from strata_pack.weights.gguf.edit import RESERVE
from tests.pack.template.texts import HIDING, HUGE, LONG, SHORT, first_logits, weights_of
from tests.pack.tiny_gguf import STOCK
from tests.pack.tiny_pack import check_listed, hashes, write_pack

CASE = {
    "name": "hello",
    "messages": [{"role": "user", "content": "Hello"}],
    "expected": "user: Hello\n",
}


def test_a_named_file_for_tools_in_a_pack_gets_the_packs_one_template(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    named = root / "tokenizer/additional_chat_templates/tool_use.jinja"
    named.parent.mkdir()
    named.write_text("by hand", encoding="utf-8")
    with pytest.raises(TemplateNotRecognised, match="tool_use"):
        install_template(root, engines=[Jinja2Engine()])
    put(root, SHORT)
    assert named.read_text(encoding="utf-8") == SHORT
    check_listed(root)


def test_a_trigger_that_is_allowed_is_installed_with_a_note_and_an_entry(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    result = put(root, HIDING, allow_triggers=True)
    assert any("evil.example" in note and "(allowed)" in note for note in result.notes)
    assert any("evil.example" in one for one in Pack.open(root).manifest["template"]["allowed_triggers"])


def test_a_link_to_a_packs_folder_stands_for_the_pack(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    (tmp_path / "current").symlink_to(root)
    put(tmp_path / "current", SHORT)
    assert gguf_template(root / "model/tiny.gguf") == SHORT
    assert rollback_template(tmp_path / "current").changed


@pytest.mark.parametrize(
    ("options", "text", "method"),
    [
        ({}, LONG, "in place"),
        ({}, SHORT, "in place"),
        ({}, HUGE, "first shard"),
        ({"reserve": 0}, LONG, "first shard"),
        ({"shards": (7, 5)}, LONG, "first shard"),
        ({"shards": (0, 12)}, HUGE, "in place"),
    ],
)
def test_a_pack_gets_file_key_and_manifest_together(
    tmp_path: Path, put: Any, options: dict[str, Any], text: str, method: str
) -> None:
    root = write_pack(tmp_path / "pack", **options)
    model = Pack.open(root).model_files[0]
    weights, logits = weights_of(model), first_logits(model)
    result = put(root, text)
    assert result.plan["method"] == method
    pack = Pack.open(root)
    assert gguf_template(pack.model_files[0]) == text
    assert (root / TEMPLATE).read_text() == text
    assert pack.manifest["template"]["replaced_sha256"] == sha256_text(STOCK)
    check_listed(root)
    assert weights_of(pack.model_files[0]) == weights
    assert np.array_equal(first_logits(pack.model_files[0]), logits)
    assert not [check.detail for check in verify(root).checks if check.status == "failed" and check.id != "golden"]


@pytest.mark.parametrize("options", [{}, {"reserve": 0}, {"shards": (7, 5)}, {"config": {"chat_template": STOCK}}])
def test_rollback_restores_every_hash(tmp_path: Path, put: Any, options: dict[str, Any]) -> None:
    root = write_pack(tmp_path / "pack", **options)
    before = hashes(root)
    put(root, LONG)
    assert hashes(root) != before
    result = rollback_template(root)
    assert hashes(root) == before
    assert result.after["sha256"] == sha256_text(STOCK)


def test_installations_are_rolled_back_one_by_one(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    states = [hashes(root)]
    for text in (SHORT, HUGE, LONG):
        put(root, text)
        states.append(hashes(root))
    for expected in reversed(states[:-1]):
        rollback_template(root)
        assert hashes(root) == expected
    with pytest.raises(WrongUse, match="no earlier template"):
        rollback_template(root)


def test_rollback_refuses_when_a_file_was_changed_since(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    put(root, SHORT)
    (root / TEMPLATE).write_text("by hand")
    before = hashes(root)
    with pytest.raises(BadInput, match="changed by another program"):
        rollback_template(root)
    assert hashes(root) == before


def test_installing_the_same_again_changes_nothing(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    put(root, SHORT)
    before = hashes(root)
    assert not put(root, SHORT).changed
    assert hashes(root) == before
    assert template_status(root).previous == 1


def test_a_dry_run_says_what_would_happen_and_changes_nothing(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    before = hashes(root)
    result = put(root, HUGE, dry_run=True)
    assert result.plan["method"] == "first shard"
    assert result.changed
    assert hashes(root) == before
    assert not (root / STATE_DIR).exists()


def test_a_copy_that_disagrees_is_brought_in_step(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack", config={"chat_template": "old", "eos_token": "</s>"})
    assert not template_status(root).agree
    put(root, SHORT)
    assert template_status(root).agree
    assert json.loads((root / "tokenizer/tokenizer_config.json").read_text()) == {
        "chat_template": SHORT,
        "eos_token": "</s>",
    }


def test_a_damaged_pack_gets_no_fresh_hashes(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    model = root / "model/tiny.gguf"
    data = bytearray(model.read_bytes())
    data[-40] ^= 1
    model.write_bytes(data)
    with pytest.raises(CheckFailed, match="is not the file that the manifest lists"):
        put(root, SHORT)
    assert model.read_bytes() == data


def test_crlf_and_a_bom_do_not_reach_the_pack(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack")
    put(root, "\ufeff{% for m in messages %}\r\n{{ m.content }}\r\n{% endfor %}")
    assert (root / TEMPLATE).read_bytes() == b"{% for m in messages %}\n{{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize("reserve", [RESERVE, 0], ids=["in place", "first shard"])
def test_llama_server_serves_the_template_that_was_installed(tmp_path: Path, put: Any, reserve: int) -> None:
    root = write_pack(tmp_path / "pack", reserve=reserve)
    put(root, LONG)
    with LlamaServer.start(Pack.open(root).model_files[0], context=256, threads=1) as server:
        assert server.client.props().chat_template == LONG
        prompt = server.client.apply_template([{"role": "user", "content": "Hello"}])
    assert prompt.startswith("user: Hello")


def test_a_template_that_fails_the_packs_golden_cases_is_not_installed(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack", golden=[CASE])
    before = hashes(root)
    with pytest.raises(GoldenFailed, match=r"1 of 1 golden renderings differ .first: .*hello with jinja2"):
        put(root, SHORT)
    assert hashes(root) == before


def test_the_error_for_a_template_without_cases_says_whose_cases_fail_and_asks_for_its_own(
    tmp_path: Path, put: Any
) -> None:
    root = write_pack(tmp_path / "pack", golden=[CASE])
    with pytest.raises(GoldenFailed, match=r"has no golden cases.*give its own with --golden FILE") as refused:
        put(root, SHORT)
    assert refused.value.where == str(root / GOLDEN)


def test_cases_given_are_not_said_to_be_of_the_old_template(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack", golden=[CASE])
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([CASE | {"expected": "other"}]))
    with pytest.raises(GoldenFailed, match=r"^suite cases: 1 of 1 golden renderings differ"):
        put(root, SHORT, golden=cases)


def test_golden_cases_given_replace_the_packs_and_enter_the_manifest(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack", golden=[CASE])
    cases = tmp_path / "cases.json"
    cases.write_text(json.dumps([CASE | {"expected": "Hello"}]))
    result = put(root, SHORT, golden=cases)
    assert result.golden == {"suite": "cases", "engines": {"jinja2": {"passed": 1, "known": 0, "failed": 0}}}
    manifest = Pack.open(root).manifest
    assert manifest["golden"] is not None
    assert manifest["golden"]["cases"] == 1
    assert manifest["golden"]["engines"]["jinja2"]["passed"] == 1
    assert json.loads((root / GOLDEN).read_text())["cases"][0]["expected"] == "Hello"
    check_listed(root)


def test_the_golden_report_is_always_that_of_the_present_template(tmp_path: Path, put: Any) -> None:
    root = write_pack(tmp_path / "pack", golden=[CASE])
    put(root, STOCK + "{# same text #}")
    report = json.loads((root / "reports/golden.json").read_text())
    assert report["template_sha256"] == sha256_text(STOCK + "{# same text #}")
    rollback_template(root)
    assert not (root / "reports/golden.json").exists()


def test_two_installations_do_not_work_in_one_folder_at_once(
    tmp_path: Path, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_pack(tmp_path / "pack")
    before = hashes(root)
    monkeypatch.setattr(recovery, "WAIT_SECONDS", 0.1)
    with (
        recovery.locked_folder(root),
        pytest.raises(EnvironmentFailure, match="another installation is running"),
    ):
        put(root, SHORT)
    assert hashes(root) == before


def test_a_template_changed_by_hand_in_the_packs_file_alone_is_seen(tmp_path: Path, put: Any) -> None:
    shipped = list_templates()[0]
    root = write_pack(tmp_path / "pack", shipped.source)
    (root / TEMPLATE).write_text("by hand")
    with pytest.raises(TemplateNotRecognised, match=r"chat_template\.jinja"):
        put(root, SHORT, force=False)


@pytest.mark.parametrize("shipped", [one.id for one in list_templates()])
def test_a_shipped_template_passes_its_own_golden_cases_into_a_pack(tmp_path: Path, shipped: str) -> None:
    root = write_pack(tmp_path / "pack")
    result = install_template(root, shipped, force=True, engines=[Jinja2Engine()])
    assert result.after["id"] == shipped
    assert result.golden is not None
    assert template_status(root).status == "repaired"
    assert Pack.open(root).manifest["template"]["id"] == shipped
    check_listed(root)


def test_recover_of_what_was_never_touched_does_nothing(tmp_path: Path) -> None:
    root = write_pack(tmp_path / "pack")
    before = hashes(root)
    assert recover(root) is None
    assert recover(root / "model/tiny.gguf") is None
    assert recover(tmp_path / "nothing") is None
    assert hashes(root) == before


def test_a_damaged_journal_is_refused(tmp_path: Path) -> None:
    root = write_pack(tmp_path / "pack")
    (root / STATE_DIR).mkdir()
    (root / STATE_DIR / "journal").write_bytes(b"strata-pack journal 1\nnonsense\n")
    with pytest.raises(BadInput, match="damaged"):
        recover(root)


def test_a_pack_is_opened_at_once_inside_its_own_installation(tmp_path: Path) -> None:
    root = write_pack(tmp_path / "pack")
    (root / recovery.STATE_DIR).mkdir()
    (root / recovery.STATE_DIR / recovery.JOURNAL).write_text("not to be read")
    with recovery.locked_folder(root):
        assert recovery.recover(root) is None
