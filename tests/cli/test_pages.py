"""Pages of what is looked at: an imatrix, a quantization plan."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.weights.imatrix.file import write_imatrix
from tests.pack.tiny_gguf import write_tiny
from tests.weights.imatrix.test_file import collected


def test_an_imatrix_has_a_page_with_its_experts(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", collected(idle=2))
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["imatrix", "show", str(tmp_path / "i.gguf"), "--html", str(page)])
    assert result.exit_code == 0, result.output
    assert b"2 of 4 were never chosen" in page.read_bytes()


def test_the_page_never_replaces_the_imatrix(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", collected())
    before = (tmp_path / "i.gguf").read_bytes()
    result = CliRunner().invoke(app, ["imatrix", "show", str(tmp_path / "i.gguf"), "--html", str(tmp_path / "i.gguf")])
    assert result.exit_code == 2
    assert (tmp_path / "i.gguf").read_bytes() == before


def test_a_plan_has_a_page_with_the_bytes_of_each_type(tmp_path: Path) -> None:
    source, page = write_tiny(tmp_path / "m.gguf"), tmp_path / "plan.html"
    arguments = ["quantize", str(source), "--quant", "Q8_0", "--quant", "Q4_0", "--dry-run", "--html", str(page)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert b"plan.Q4_0" in page.read_bytes()
    assert b"MiB by type" in page.read_bytes()


def test_a_page_of_no_plan_is_refused(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "m.gguf")
    arguments = ["quantize", str(source), str(tmp_path / "o.gguf"), "--html", str(tmp_path / "p.html")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--dry-run" in result.stderr
