"""Chooses the output type: the type that "auto" means, and the type of each tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gguf import GGMLQuantizationType, LlamaFileType

from strata_pack.weights.convert.cast import F16, F32
from strata_pack.weights.convert.projector import PATCHES
from strata_pack.weights.convert.qwen4exp import TABLE
from strata_pack.weights.convert.safetensors import StoredTensor
from strata_pack.weights.gguf.file import tensor_nbytes

OUTTYPES: Mapping[str, tuple[GGMLQuantizationType, LlamaFileType]] = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "tq1_0": (GGMLQuantizationType.TQ1_0, LlamaFileType.MOSTLY_TQ1_0),
    "tq2_0": (GGMLQuantizationType.TQ2_0, LlamaFileType.MOSTLY_TQ2_0),
}

_TERNARY = ("tq1_0", "tq2_0")
_NOT_TERNARY = ("token_embd.weight", "output.weight", TABLE)

_ALWAYS_F32 = (".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight", ".ssm_conv1d.weight", "v.position_embd.weight")


def chosen_outtype(outtype: str, named: Sequence[tuple[str, StoredTensor]]) -> str:
    """Return the type to write; "auto" is the type of the first stored matrix if that is F16 or BF16, else F16."""
    if outtype != "auto":
        return outtype
    for _, tensor in named:
        for stored in (tensor, *([tensor.scale.tensor] if tensor.scale else [])):
            if len(stored.shape) > 1 and stored.dtype in ("BF16", "F16"):
                return stored.dtype.lower()
    return "f16"


def tensor_type(name: str, shape: tuple[int, ...], outtype: str) -> GGMLQuantizationType:
    """Return the type of a tensor of ``shape`` (PyTorch's order); F16 if its rows are not whole blocks."""
    target = OUTTYPES[outtype][0]
    if len(shape) <= 1 or name.endswith("_norm.weight"):
        return F32
    if name.startswith(PATCHES):
        return F16 if outtype == "f16" else F32
    if name.endswith(_ALWAYS_F32) or not name.endswith(".weight"):
        return F32
    if outtype in _TERNARY and name in _NOT_TERNARY:
        return F16
    try:
        tensor_nbytes(shape[::-1], target)
    except ValueError:
        return F16
    return target
