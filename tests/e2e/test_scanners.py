"""Public scanners on what the tool ships and makes: they exit with 0, and what they warn of is in the documentation.

They live in an environment of their own: the one that ``STRATA_SCANNERS`` names, or one that is made here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.library import list_templates, load_shipped
from strata_pack.chat.lint.rules import lint_template
from strata_pack.chat.repair.repair import repair_template
from tests.pack.tiny_pack import write_pack

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs/scanners.md"
STOCK = ROOT / "tests/data/chat/stock"
PACKAGES = ("aisbom-cli", "glyphhound", "c4nary", "hayward", "modelaudit", "chatlint")
REPAIRED = ("coder_like", "qwen38_like", "qwen35_like", "qwen3_like")
QUIET = {
    "AISBOM_OFFLINE": "1",
    "AISBOM_NO_TELEMETRY": "1",
    "AISBOM_NO_OSV": "1",
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "NO_COLOR": "1",
    "COLUMNS": "200",
}

MEANS: Mapping[str, tuple[str, ...]] = {
    "renders": ("ST801", "ST802"),
    "marker_balance": ("ST803",),
    "no_repr_leak": ("ST804",),
    "content_order": ("ST805", "ST806", "ST502"),
    "prefix_stability": ("ST503",),
}
"""chatlint's properties, and the rules that find the same."""

pytestmark = [pytest.mark.slow, pytest.mark.registry, pytest.mark.timeout(1800), pytest.mark.xdist_group("scanners")]


@pytest.fixture(scope="session")
def scanners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("STRATA_SCANNERS")
    if named:
        return Path(named) / "bin"
    folder = tmp_path_factory.mktemp("scanners")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    for package in PACKAGES:
        subprocess.run([folder / "bin/pip", "install", "-q", package], check=False)
    return folder / "bin"


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The shipped templates, and stock ones after repair."""
    folder = tmp_path_factory.mktemp("templates")
    texts = {shipped.id: load_shipped(shipped.id).source for shipped in list_templates()}
    for name in REPAIRED:
        stock = (STOCK / f"{name}.jinja").read_text(encoding="utf-8")
        texts[f"{name}-repaired"] = repair_template(stock, [Jinja2Engine()]).text
    for name, text in texts.items():
        (folder / f"{name}.jinja").write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pack(tmp_path_factory.mktemp("pack") / "demo", load_shipped("qwen3.8-flash-next").source)


def scan(scanners: Path, cwd: Path, command: str, *args: object, codes: tuple[int, ...] = (0,)) -> str:
    """Return what a scanner prints; it must be installed and exit with one of ``codes``."""
    path = scanners / command
    if not path.exists():
        pytest.skip(f"{command} cannot be installed here")
    home = {"HOME": str(cwd), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [path, *map(str, args)], cwd=cwd, env={**home, **QUIET}, capture_output=True, text=True, check=False
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_aisbom_finds_no_risk_in_a_pack(scanners: Path, pack: Path, tmp_path: Path) -> None:
    assert not re.search(r"CRITICAL|HIGH|MEDIUM", scan(scanners, tmp_path, "aisbom", "scan", pack))


def test_glyphhound_finds_nothing_in_a_template(scanners: Path, templates: list[Path], tmp_path: Path) -> None:
    for path in templates:
        assert "findings: 0" in scan(scanners, tmp_path, "glyphhound", "scan", path)


def test_glyphhound_finds_nothing_in_a_model(scanners: Path, pack: Path, tmp_path: Path) -> None:
    assert "findings: 0" in scan(scanners, tmp_path, "glyphhound", "scan", pack / "model/tiny.gguf")


def test_c4nary_warns_of_what_the_documentation_explains_alone(scanners: Path, pack: Path, tmp_path: Path) -> None:
    said = scan(scanners, tmp_path, "c4nary", "scan", pack / "model/tiny.gguf")
    assert "0 fail" in said
    warned = re.findall(r"^  ([A-Z]{3}\d{3}) ", said.partition("[WARN]")[2].partition("[INFO]")[0], re.MULTILINE)
    assert set(warned) == {"MET002"}
    assert "MET002" in DOCUMENT.read_text(encoding="utf-8")


def test_hayward_finds_nothing_in_a_pack(scanners: Path, pack: Path, tmp_path: Path) -> None:
    assert "No findings" in scan(scanners, tmp_path, "hayward", "scan", pack)


def test_modelaudit_has_no_warning_for_a_pack(scanners: Path, pack: Path, tmp_path: Path) -> None:
    for _ in range(5):
        said = scan(scanners, tmp_path, "modelaudit", "scan", pack, codes=(0, 2))
        if "render_budget_exceeded" not in said:  # it gives a template half a second, however busy the machine is
            break
    assert "coverage incomplete" not in said
    assert not re.search(r"\d+ (?:Warning|Critical|Error)", said)


@pytest.fixture(scope="session")
def chatlint(scanners: Path, templates: list[Path]) -> dict[str, list[tuple[str, str]]]:
    """chatlint's errors as (property, shape), by the template's path."""
    if not (scanners / "chatlint").exists():
        pytest.skip("chatlint cannot be installed here")
    paths = [*templates, *STOCK.glob("*.jinja")]
    script = Path(__file__).with_name("chatlint_errors.py")
    done = subprocess.run([scanners / "python", script, *paths], capture_output=True, text=True, check=True)
    return {path: [(prop, shape) for prop, shape in found] for path, found in json.loads(done.stdout).items()}


def test_chatlint_has_no_error_for_a_template_but_those_of_its_publisher(
    chatlint: dict[str, list[tuple[str, str]]], templates: list[Path]
) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    failing = {path.stem for path in templates if chatlint[str(path)]}
    assert failing == {"qwen35_like-repaired", "qwen3_like-repaired"}
    for name in failing:
        assert name in text


def test_at_least_95_in_100_of_chatlints_errors_are_findings_of_ours(
    chatlint: dict[str, list[tuple[str, str]]],
) -> None:
    total = agreed = 0
    for path, errors in chatlint.items():
        ours = {one.rule.id for one in lint_template(Path(path).read_text(encoding="utf-8"), select=["ST5", "ST8"])}
        total += len(errors)
        agreed += sum(not ours.isdisjoint(MEANS[prop]) for prop, _ in errors)
    assert total > 20
    assert agreed >= 0.95 * total
