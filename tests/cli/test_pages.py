"""Pages of what is looked at: an imatrix, a quantization plan."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.weights.imatrix.file import write_imatrix
from tests.pack.tiny_gguf import write_tiny
from tests.weights.imatrix.test_file import collected


def titles(svg: Path) -> list[str]:
    """Return the titles in an SVG file, which is well-formed and has its own colours."""
    root = ElementTree.fromstring(svg.read_bytes())
    assert root.find("{http://www.w3.org/2000/svg}style") is not None
    return [found.text or "" for found in root.iter("{http://www.w3.org/2000/svg}title")]


def test_an_imatrix_has_a_page_with_its_experts(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", collected(idle=2))
    page, card = tmp_path / "page.html", tmp_path / "card.svg"
    arguments = ["imatrix", "show", str(tmp_path / "i.gguf"), "--html", str(page), "--svg", str(card)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert b"2 of 4 were never chosen" in page.read_bytes()
    assert "Importance in the top 1 % of columns" in titles(card)


def test_the_page_never_replaces_the_imatrix(tmp_path: Path) -> None:
    write_imatrix(tmp_path / "i.gguf", collected())
    before = (tmp_path / "i.gguf").read_bytes()
    result = CliRunner().invoke(app, ["imatrix", "show", str(tmp_path / "i.gguf"), "--html", str(tmp_path / "i.gguf")])
    assert result.exit_code == 2
    assert (tmp_path / "i.gguf").read_bytes() == before


def test_a_plan_has_a_page_with_the_bytes_of_each_type(tmp_path: Path) -> None:
    source, page, card = write_tiny(tmp_path / "m.gguf"), tmp_path / "plan.html", tmp_path / "plan.svg"
    arguments = ["quantize", str(source), "--quant", "Q8_0", "--quant", "Q4_0", "--dry-run", "--html", str(page)]
    result = CliRunner().invoke(app, [*arguments, "--svg", str(card)])
    assert result.exit_code == 0, result.output
    assert b"plan.Q4_0" in page.read_bytes()
    assert b"MiB by type" in page.read_bytes()
    assert {title.partition(",")[0] for title in titles(card)} == {"MiB by type", "Q8_0", "Q4_0"}


def test_a_page_of_no_plan_is_refused(tmp_path: Path) -> None:
    source = write_tiny(tmp_path / "m.gguf")
    arguments = ["quantize", str(source), str(tmp_path / "o.gguf"), "--html", str(tmp_path / "p.html")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--dry-run" in result.stderr
