"""The shipped templates, and what the template of a model is to us."""

from __future__ import annotations

import pytest

from strata_pack.chat.library import ShippedTemplate, is_ours, list_templates, load_shipped, origin_of, status_of
from strata_pack.chat.repair.prelude import prelude
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


@pytest.mark.parametrize(("kind", "status"), [("stock", "stock"), ("upstream", "repaired"), ("earlier", "repaired")])
def test_a_published_text_is_known_by_its_hash_with_or_without_its_last_newline(
    kind: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = getattr(SHIPPED, kind)[-1]
    monkeypatch.setattr(
        "strata_pack.chat.library.sha256_text", lambda text: known.sha256 if text == "published\n" else "0" * 64
    )
    assert (status_of("published"), status_of("published\n")) == (status, status)
    assert origin_of("published") == known.origin
    assert is_ours("published") is (kind == "earlier")


def test_the_genuine_templates_and_upstreams_repair_are_listed() -> None:
    assert {one.sha256[:8] for one in SHIPPED.stock} == {"c3cf9e34", "12827f24", "e3513a2e"}
    assert [one.sha256[:8] for one in SHIPPED.upstream] == ["a09a65f6"]


def test_a_template_with_an_earlier_repair_in_front_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata_pack.chat.repair.prelude.EARLIER", {3: sha256_text("old")})
    assert status_of("old{{ messages }}") == "repaired"
    assert status_of("new{{ messages }}") == "unknown"
