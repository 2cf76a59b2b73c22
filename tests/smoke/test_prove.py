"""prove runs all proofs of a pack and keeps what it found in the pack."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput
from strata_pack.pack.verification import verify
from strata_pack.report import Check, html
from strata_pack.smoke.prove import Proof, prove_pack
from strata_pack.smoke.run import SmokeOptions
from tests.pack.tiny_pack import write_pack

STOCK_CASE: dict[str, Any] = {"name": "one", "messages": [{"role": "user", "content": "Hi"}], "expected": "user: Hi\n"}
QUICK = SmokeOptions(only=("template-loaded",))


@dataclass(frozen=True)
class Proved:
    """A pack, what verifying it said before it was proved (id -> status), and the proof."""

    pack: Path
    before: dict[str, str]
    proof: Proof


def _prove(folder: Path, expected: str) -> Proved:
    pack = write_pack(folder / "p", golden=[{**STOCK_CASE, "expected": expected}])
    before = {check.id: check.status for check in verify(pack).checks}
    return Proved(pack, before, prove_pack(pack, QUICK))


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Proved:
    return _prove(tmp_path_factory.mktemp("proved"), STOCK_CASE["expected"])


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Proved:
    """A pack one of whose golden cases renders otherwise."""
    return _prove(tmp_path_factory.mktemp("failing"), "other")


def test_a_pack_is_proved_by_three_reports_that_it_keeps(proved: Proved) -> None:
    reports = proved.proof.reports
    kept = {path.name: json.loads(path.read_text())["status"] for path in (proved.pack / "reports").glob("*.json")}
    assert [report.title.split()[0].rstrip(":") for report in reports] == ["verify", "golden", "smoke"]
    assert kept == {"golden.json": reports[1].status, "smoke.json": reports[2].status}


def test_reports_do_not_change_a_packs_identity(proved: Proved) -> None:
    assert {check.id: check.status for check in verify(proved.pack).checks} == proved.before


def test_a_golden_case_that_differs_fails_the_proof(failing: Proved) -> None:
    proof = failing.proof
    assert (proof.ok, proof.exit_code, proof.reports[1].status) == (False, 1, "failed")


def test_what_is_no_pack_is_not_proved(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"manifest\.json is missing"):
        prove_pack(tmp_path)


def test_the_source_is_compared_by_the_function_that_is_given(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", golden=[STOCK_CASE])
    asked = []

    def compare(ours: Path, source: Path) -> list[Check]:
        asked.append((ours, source))
        return [Check("compare", "as good as its source", "failed", "far worse")]

    proof = prove_pack(pack, QUICK, source=pack, compare=compare)
    assert asked == [(pack, pack)]
    assert [report.title.split()[0].rstrip(":") for report in proof.reports][-1] == "compare"
    assert not proof.ok


def test_all_reports_are_one_page_with_ids_of_their_own(failing: Proved) -> None:
    merged = failing.proof.merged()
    ids = [check.id for check in merged.checks]
    assert len(set(ids)) == len(ids) == sum(len(report.checks) for report in failing.proof.reports)
    failed = next(check for check in merged.checks if check.id.startswith("golden/") and check.status == "failed")
    assert failed.repeat == f"strata-pack golden check {failing.pack}"
    assert b"golden/" in html(merged)


def test_nothing_is_recommended_after_a_failure(tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", golden=[{**STOCK_CASE, "expected": "other"}])
    done = CliRunner().invoke(app, ["prove", str(pack)])
    assert done.exit_code == 1
    assert "Go on with" not in done.stdout
