"""A repository whose config.json lies is refused by the headers of its weights: no weight travels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_pack.errors import BadInput
from strata_pack.pack.build import build_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.weights.quantize.recipes import make_recipe
from tests.hub_server import HubServer, serve
from tests.tiny_models import write_model

REPO = "org/Tiny"


def build(files: dict[str, bytes], out: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """Build from a Hub that holds ``files``, and return the Hub with what it was asked."""
    with serve({REPO: files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(out.parent / "cache"))
        try:
            build_pack(BuildRequest(source=f"hf://{REPO}", out=out, recipe=make_recipe("Q8_0"), template="keep"))
        finally:
            files["sent"] = str(sum(hit.sent for hit in hub.hits if hit.path.endswith(".safetensors"))).encode()
    return hub


def repository(name: str, folder: Path, **values: object) -> dict[str, bytes]:
    write_model(name, folder)
    config = json.loads((folder / "config.json").read_bytes())
    config.get("text_config", config).update(values)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qwen3", {"vocab_size": 2**31}),
        ("qwen3", {"num_hidden_layers": 2**31}),
        ("qwen3", {"head_dim": 2**31}),
        ("flash", {"hc_lowrank": 2**31}),
        ("flash", {"linear_value_head_dim": 2**31}),
    ],
)
def test_lie_is_refused_before_any_weight_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, values: dict[str, int]
) -> None:
    files = repository(name, tmp_path / "model", **values)
    with pytest.raises(BadInput, match=r"config\.json says"):
        build(files, tmp_path / "pack", monkeypatch)
    assert int(files["sent"]) < 1_000_000


def test_truthful_repository_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(repository("qwen35-vision", tmp_path / "model"), tmp_path / "pack", monkeypatch)
    assert (tmp_path / "pack/model/mmproj-Tiny-BF16.gguf").is_file()
