"""The shipped templates, and what the template of a model is to us."""

from __future__ import annotations

import pytest

from strata_pack.chat.library import ShippedTemplate, list_templates, load_shipped, status_of
from strata_pack.chat.repair.repair import prelude
from strata_pack.errors import WrongUse
from strata_pack.files import sha256_text

SHIPPED = load_shipped("qwen3.8-flash-next")


@pytest.mark.parametrize("shipped", list_templates(), ids=lambda shipped: shipped.id)
def test_template_is_described_by_its_own_folder(shipped: ShippedTemplate) -> None:
    assert shipped.path.parent.name == shipped.id
    assert shipped.sha256 == sha256_text(shipped.source)
    assert shipped.golden_dir.is_dir()


def test_template_file_has_lf_no_bom_and_no_tabs() -> None:
    data = SHIPPED.path.read_bytes()
    assert not data.startswith(b"\xef\xbb\xbf")
    assert b"\r" not in data
    assert b"\t" not in data


def test_family_markers_stand_in_the_text() -> None:
    assert all(marker in SHIPPED.source for marker in ("<tool_call>", "<function=", "<parameter=", *SHIPPED.markers))


def test_unknown_id_is_refused_with_those_there_are() -> None:
    with pytest.raises(WrongUse, match=SHIPPED.id):
        load_shipped("qwen9")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (SHIPPED.source, "repaired"),
        (prelude("json") + "{{ messages }}", "repaired"),
        (SHIPPED.source + "{# mine #}", "modified"),
        (SHIPPED.source.replace("\n", "\r\n"), "modified"),
        ("{{ messages }}", "unknown"),
        ("", "missing"),
        (None, "missing"),
    ],
    ids=["ours", "repaired by us", "changed", "with CRLF", "another", "empty", "none"],
)
def test_status(text: str | None, status: str) -> None:
    assert status_of(text) == status


def test_stock_template_is_known_by_its_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.chat.library.sha256_text", lambda _: SHIPPED.stock[0].sha256)
    assert status_of("anything") == "stock"
