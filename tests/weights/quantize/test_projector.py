"""A projector (``mmproj``) is quantized as any model: its matrices, not its patches and positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.weights.gguf.file import GgufFile, MetaValue, TensorInfo, align, encode_header


@pytest.fixture
def projector(tmp_path: Path) -> Path:
    keys = {
        "general.architecture": MetaValue.string("clip"),
        "general.type": MetaValue.string("mmproj"),
        "clip.has_vision_encoder": MetaValue(V.BOOL, True),
        "clip.vision.block_count": MetaValue.uint32(2),
    }
    shapes: dict[str, tuple[int, ...]] = {"v.patch_embd.weight": (16, 16, 3, 256), "v.position_embd.weight": (256, 64)}
    shapes |= {"v.post_ln.weight": (256,), "mm.0.weight": (1024, 512), "mm.0.bias": (512,)}
    for block in range(2):
        shapes |= {f"v.blk.{block}.attn_out.weight": (256, 256), f"v.blk.{block}.ffn_down.weight": (304, 256)}
    infos, data = [], b""
    for name, shape in shapes.items():
        kept = len(shape) == 1 or "embd" in name
        values = np.full(int(np.prod(shape)), 0.5, np.float32 if kept else np.float16).tobytes()
        infos.append(TensorInfo.make(name, shape, Q.F32 if kept else Q.F16, len(data)))
        data += values.ljust(align(len(values), 32), b"\0")
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(encode_header(keys, infos) + data)
    return path


@pytest.mark.parametrize("preset", ["Q8_0", "Q4_0", "Q6_K"])
def test_matrices_get_the_type_and_rows_that_no_block_divides_stay_f16(projector: Path, preset: str) -> None:
    out = projector.with_name("out.gguf")
    result = CliRunner().invoke(app, ["quantize", str(projector), str(out), "--quant", preset])
    assert result.exit_code == 0, result.output
    with GgufFile.open(out) as file:
        assert {tensor.name: tensor.type.name for tensor in file.tensors if len(tensor.shape) > 1} == {
            "v.patch_embd.weight": "F32",
            "v.position_embd.weight": "F32",
            "mm.0.weight": preset,
            "v.blk.0.attn_out.weight": preset,
            "v.blk.0.ffn_down.weight": "F16",
            "v.blk.1.attn_out.weight": preset,
            "v.blk.1.ffn_down.weight": "F16",
        }
