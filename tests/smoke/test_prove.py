"""prove runs all proofs of a pack and keeps what it found in the pack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput
from strata_pack.pack.verification import verify
from strata_pack.report import Check, html
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


def test_the_source_is_compared_by_the_function_that_is_given(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", golden=[STOCK_CASE])
    asked = []

    def compare(ours: Path, source: Path) -> Check:
        asked.append((ours, source))
        return Check("compare", "as good as its source", "failed", "far worse")

    proof = prove_pack(pack, QUICK, source=pack, compare=compare)
    assert asked == [(pack, pack)]
    assert [report.title.split()[0].rstrip(":") for report in proof.reports][-1] == "compare"
    assert not proof.ok


def test_all_reports_are_one_page_with_ids_of_their_own(tmp_path: Path) -> None:
    proof = prove_pack(write_pack(tmp_path / "p", golden=[{**STOCK_CASE, "expected": "other"}]), QUICK)
    merged = proof.merged()
    ids = [check.id for check in merged.checks]
    assert len(set(ids)) == len(ids) == sum(len(report.checks) for report in proof.reports)
    failed = next(check for check in merged.checks if check.id.startswith("golden/") and check.status == "failed")
    assert failed.repeat == f"strata-pack golden check {tmp_path / 'p'}"
    assert b"golden/" in html(merged)


def test_nothing_is_recommended_after_a_failure(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", golden=[{**STOCK_CASE, "expected": "other"}])
    done = CliRunner().invoke(app, ["prove", str(pack)])
    assert done.exit_code == 1
    assert "Go on with" not in done.stdout
