"""``verify --card``: what a card lacks, and where it contradicts the files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from strata_pack.pack.verification import verify
from strata_pack.publish.card_reading import card_check
from strata_pack.publish.publishing import publish
from strata_pack.report.model import Check

HEAD = "license: apache-2.0\nbase_model: org/Base-1B\n"


def card(pack: Path) -> Check:
    return next(check for check in verify(pack, None, [card_check()]).checks if check.id == "card")


def write(pack: Path, head: str, body: str = "") -> Path:
    (pack / "README.md").write_text(f"---\n{head}---\n{body}\n")
    return pack


CARDS = {
    "nothing wrong": (HEAD, "", ""),
    "a list of base models": ("license: apache-2.0\nbase_model: [org/base-1b, org/x]\n", "", ""),
    "no licence": ("base_model: org/Base-1B\n", "", "names no licence"),
    "no base model": ("license: apache-2.0\n", "", "names no base model"),
    "another licence": (HEAD.replace("apache-2.0", "mit"), "", "the licence is mit, and the source's is apache-2.0"),
    "another base model": (HEAD.replace("Base-1B", "Other"), "", "the base model is org/Other"),
    "no name for another licence": ("license: other\nbase_model: org/Base-1B\n", "", "without license_name"),
    "another relation": (HEAD + "base_model_relation: finetune\n", "", "'finetune' of its base model"),
    "another preset": (HEAD + "tags: [gguf, Q4_K_M]\n", "", "tags name Q4_K_M, and the pack is Q8_0"),
    "a file that is not here": (HEAD, "Use Tiny-Q4_K_M.gguf.", "names Tiny-Q4_K_M.gguf, which is not here"),
    "its own file": (HEAD, "Use Tiny-Q8_0.gguf.", ""),
    "another hash": (HEAD, f"{'a' * 64}  Tiny-Q8_0.gguf", "another hash for Tiny-Q8_0.gguf"),
    "another size": (HEAD, "| Tiny-Q8_0.gguf | 4.7 GB |", "says 4.7 GB for Tiny-Q8_0.gguf"),
    "another template": (HEAD, f"chat template: {'b' * 64}", "another hash for the template"),
    "a head that is no YAML": ("a: [\n", "", "malformed"),
}


@pytest.mark.parametrize("name", CARDS)
def test_each_fault_of_a_card_is_reported(packs: list[Path], name: str) -> None:
    head, body, sentence = CARDS[name]
    found = card(write(packs[0], head, body))
    assert (found.status, sentence in found.detail) == ("failed" if sentence else "passed", True), found.detail


def test_a_card_without_a_head_is_reported(packs: list[Path]) -> None:
    (packs[0] / "README.md").write_text("# Tiny\n")
    assert "has no head" in card(packs[0]).detail


def test_a_missing_card_is_reported(packs: list[Path]) -> None:
    assert "there is no card" in card(packs[0]).detail


def test_the_card_that_is_published_agrees_with_every_pack(packs: list[Path], tmp_path: Path) -> None:
    publish(packs, f"dir:{tmp_path / 'out'}")
    assert [card(tmp_path / "out" / pack.name).detail for pack in packs] == ["", ""]
    shutil.rmtree(tmp_path / "out/Tiny-F16")
    assert card(tmp_path / "out/Tiny-Q8_0").status == "passed"
