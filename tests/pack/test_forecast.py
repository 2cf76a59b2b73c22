"""What a plan says of memory and disk: the n-gram table stays on the disk, linear layers keep no keys and values."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.pack.build_plan import plan_packs
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.quantize.recipes import make_recipe
from tests.real_flash import write_real
from tests.tiny_models import write_model


def test_true_size_is_forecast_with_the_table_on_the_disk(tmp_path: Path) -> None:
    request = BuildRequest(
        source=str(write_real(tmp_path / "real")),
        out=tmp_path / "pack",
        recipe=make_recipe("Q4_K_M"),
        template="keep",
    )
    with plan_packs([request]) as ((plan, forecast),):
        needs = forecast.need
        assert round(plan.data_bytes / 1e9, 1) == 121.0
        assert (round(needs.lazy / 1e9, 1), round(needs.held / 1e9, 1)) == (35.2, 85.8)
        # 13 layers with full attention, 2 heads, keys and values of 256, two bytes each.
        assert needs.kv_cache == 13 * 2 * 512 * 2 * 32768
        assert needs.projector > 800_000_000


def test_dry_run_reports_memory_and_disk_and_writes_nothing(tmp_path: Path) -> None:
    folder = write_model("qwen35-vision", tmp_path / "Tiny")
    arguments = ["build", str(folder), "--quant", "Q8_0", "--template", "keep", "--out", str(tmp_path / "p")]
    result = CliRunner().invoke(app, [*arguments, "--dry-run"])
    assert "memory to serve it: " in result.stdout
    assert "for the projector; the source's " in result.stdout
    found = json.loads(CliRunner().invoke(app, [*arguments, "--dry-run", "--json"]).stdout)
    assert found["forecast"]["lazy"] == 0
    assert not (tmp_path / "p").exists()
