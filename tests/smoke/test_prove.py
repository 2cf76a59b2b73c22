"""prove runs all proofs of a pack and keeps what it found in the pack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_pack.errors import BadInput
from strata_pack.pack.verification import verify
from strata_pack.smoke.prove import prove_pack
from strata_pack.smoke.run import SmokeOptions
from tests.pack.tiny_pack import write_pack

STOCK_CASE = {"name": "one", "messages": [{"role": "user", "content": "Hi"}], "expected": "user: Hi\n"}
QUICK = SmokeOptions(only=("template-loaded",))


def test_a_pack_is_proved_by_three_reports_that_it_keeps(tmp_path: Path) -> None:
    proof = prove_pack(write_pack(tmp_path / "p", golden=[STOCK_CASE]), QUICK)
    kept = {path.name: json.loads(path.read_text())["status"] for path in (tmp_path / "p/reports").glob("*.json")}
    assert [report.title.split()[0].rstrip(":") for report in proof.reports] == ["verify", "golden", "smoke"]
    assert kept == {"golden.json": proof.reports[1].status, "smoke.json": proof.reports[2].status}


def test_reports_do_not_change_a_packs_identity(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", golden=[STOCK_CASE])
    before = {check.id: check.status for check in verify(pack).checks}
    prove_pack(pack, QUICK)
    assert {check.id: check.status for check in verify(pack).checks} == before


def test_a_golden_case_that_differs_fails_the_proof(tmp_path: Path) -> None:
    proof = prove_pack(write_pack(tmp_path / "p", golden=[{**STOCK_CASE, "expected": "other"}]), QUICK)
    assert (proof.ok, proof.exit_code, proof.reports[1].status) == (False, 1, "failed")


def test_what_is_no_pack_is_not_proved(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"manifest\.json is missing"):
        prove_pack(tmp_path)
