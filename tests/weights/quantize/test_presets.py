"""Presets against the types that the reference quantizer chose, for six shapes and all presets."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V
from gguf import LlamaFileType
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput, WrongUse
from strata_pack.llama.ggml import Ggml
from strata_pack.llama.ggml_types import Q2_0
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.assign import Assigner, read_facts
from strata_pack.weights.quantize.presets import PRESETS, PresetFacts, TensorPlace, fallback, find_preset, needs_imatrix
from strata_pack.weights.quantize.roles import is_quantizable, sort_key
from strata_pack.weights.quantize.run import QuantPlan, plan_quantization
from strata_pack.weights.tensor_source import RowReader, SourceTensor

CASES: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/weights/presets.json").read_text())
PAIRS = [pair.rsplit(" ", 1) for pair in CASES["types"]]


def shape_metadata(shape: dict[str, Any]) -> dict[str, MetaValue]:
    arch = shape["arch"]
    numbers = {
        "block_count": shape["n_layer"],
        "attention.head_count": shape["heads"],
        "attention.head_count_kv": shape["kv_heads"],
        "expert_count": shape.get("experts"),
    }
    return {"general.architecture": MetaValue.string(arch)} | {
        f"{arch}.{key}": MetaValue.uint32(n) for key, n in numbers.items() if n is not None
    }


def shape_tensors(shape: dict[str, Any]) -> list[SourceTensor]:
    hidden, head = shape["hidden"], shape["head_dim"]
    q, kv = shape["heads"] * head, shape["kv_heads"] * head
    sizes: dict[str, tuple[int, ...]] = {"token_embd.weight": (hidden, shape["vocab"]), "output_norm.weight": (hidden,)}
    if not shape.get("tied_embeddings"):
        sizes["output.weight"] = (hidden, shape["vocab"])
    for i in range(shape["n_layer"]):
        block: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "ffn_norm": (hidden,),
            "attn_q": (hidden, q),
            "attn_k": (hidden, kv),
            "attn_v": (hidden, kv),
            "attn_output": (q, hidden),
        }
        if shape["arch"].startswith("qwen3"):
            block |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
        if experts := shape.get("experts"):
            ffn = shape["expert_ffn"]
            block |= {
                "ffn_gate_inp": (hidden, experts),
                "ffn_gate_exps": (hidden, ffn, experts),
                "ffn_up_exps": (hidden, ffn, experts),
                "ffn_down_exps": (ffn, hidden, experts),
            }
        else:
            ffn = shape["ffn"]
            block |= {"ffn_gate": (hidden, ffn), "ffn_up": (hidden, ffn), "ffn_down": (ffn, hidden)}
        sizes |= {f"blk.{i}.{name}.weight": size for name, size in block.items()}
    return [
        SourceTensor(name, size, Q.F32 if len(size) == 1 or "gate_inp" in name else Q.F16)
        for name, size in sorted(sizes.items(), key=lambda item: sort_key(item[0]))
    ]


class Described:
    """A source that has a header and a list of tensors, and no weights: planning needs no more."""

    shards = 1
    fingerprint = ""

    def __init__(self, name: str) -> None:
        self.label = name
        self.metadata = shape_metadata(CASES["shapes"][name])
        self.tensors = shape_tensors(CASES["shapes"][name])

    def rows(self, tensor: SourceTensor) -> RowReader:
        raise AssertionError(f"planning read {tensor.name}")


@pytest.fixture
def plan(shape: str, preset: str, monkeypatch: pytest.MonkeyPatch) -> QuantPlan:
    # The cases are dry runs without an imatrix, of presets that need one as well.
    monkeypatch.setattr("strata_pack.weights.quantize.plan.needs_imatrix", lambda *_: False)
    monkeypatch.setattr(Ggml, "requires_imatrix", lambda *_: False)
    return plan_quantization(Described(shape), preset)


@pytest.mark.parametrize(("shape", "preset"), PAIRS, ids=[" ".join(pair) for pair in PAIRS])
def test_types_are_those_of_the_reference(shape: str, preset: str, plan: QuantPlan) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for tensor in plan.tensors:
        role = tensor.name.split(".", 2)[2] if tensor.name.startswith("blk.") else tensor.name
        if len(tensor.source.shape) > 1:
            counts[role][tensor.type.name] += 1
    assert {role: dict(types) for role, types in counts.items()} == CASES["types"][f"{shape} {preset}"]


@pytest.mark.parametrize(("shape", "preset"), PAIRS, ids=[" ".join(pair) for pair in PAIRS])
def test_sizes_and_bits_are_those_of_the_reference(shape: str, preset: str, plan: QuantPlan) -> None:
    mib, bits = CASES["size_mib_bpw"][f"{shape} {preset}"]
    assert f"{plan.data_bytes / (1 << 20):.2f}" == f"{mib:.2f}"
    assert f"{plan.bits_per_weight:.2f}" == f"{bits:.2f}"


def test_there_are_186_pairs() -> None:
    assert len(PAIRS) == 186


def facts(**changes: Any) -> PresetFacts:
    return PresetFacts(**({"architecture": "llama", "layers": 16} | changes))


@pytest.mark.parametrize(
    ("preset", "role", "expected"),
    [
        ("Q4_K_M", "attn_v", Q.Q8_0),
        ("Q4_K_M", "attn_k", Q.Q8_0),
        ("Q4_K_M", "attn_output", Q.Q5_K),
        ("Q5_K_M", "attn_output", Q.Q5_K),
        ("Q3_K_L", "attn_output", Q.Q3_K),
        ("Q6_K", "attn_output", Q.Q6_K),
        ("IQ2_XS", "attn_v", Q.Q4_K),
        ("IQ2_XS", "attn_k", Q.Q4_K),
        ("IQ2_XS", "attn_output", Q.Q5_K),
    ],
)
def test_eight_experts_have_better_attention(preset: str, role: str, expected: Q) -> None:
    name = f"blk.5.{role}.weight"
    assigner = Assigner(find_preset(preset), facts(experts=8), [name, "output.weight"])
    assert assigner.type_for(SourceTensor(name, (256, 256), Q.F16)) is expected


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("blk.0.attn_q.weight", (256, 256), True),
        ("blk.0.ffn_up_exps.weight", (256, 256, 8), True),
        ("blk.0.attn_norm.weight", (256,), False),
        ("blk.0.attn_q.bias", (256, 256), False),
        ("blk.0.ffn_gate_inp.weight", (256, 8), False),
        ("blk.0.ssm_conv1d.weight", (4, 8192), False),
        ("position_embd.weight", (256, 512), False),
        ("blk.0.attn_q.weight", (256, 1), False),
        ("output.weight", (256, 1000), True),
    ],
)
def test_only_large_matrices_are_quantized(name: str, shape: tuple[int, ...], expected: bool) -> None:
    assert is_quantizable(name, shape) is expected


@pytest.mark.parametrize(
    ("type", "row", "expected"),
    [
        *((t, 512, t) for t in (Q.Q4_K, Q.IQ2_XS, Q.Q8_0)),
        *((t, 288, Q.Q4_0) for t in (Q2_0, Q.Q2_K, Q.Q3_K, Q.TQ1_0, Q.TQ2_0)),
        (Q.Q4_K, 288, Q.Q5_0),
        (Q.Q5_K, 288, Q.Q5_1),
        (Q.Q6_K, 288, Q.Q8_0),
        *((t, 288, Q.IQ4_NL) for t in (Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ4_XS)),
        *((t, 100, Q.F16) for t in (Q.Q4_K, Q.IQ4_XS, Q.Q8_0, Q.Q4_0, Q.MXFP4)),
    ],
)
def test_rows_that_do_not_fit_a_block_fall_back(type: Q, row: int, expected: Q) -> None:
    assert fallback(type, row) is expected


def test_low_types_need_importances_but_for_output_and_embedding() -> None:
    preset = find_preset("IQ2_XS")
    assert needs_imatrix("blk.0.attn_k.weight", Q.IQ2_XS, preset)
    assert not needs_imatrix("output.weight", Q.IQ2_XS, preset)
    assert not needs_imatrix("token_embd.weight", Q.Q2_K, find_preset("Q2_K_S"))
    assert needs_imatrix("blk.0.attn_k.weight", Q.Q2_K, find_preset("Q2_K_S"))
    assert not needs_imatrix("blk.0.attn_k.weight", Q.Q2_K, find_preset("Q2_K"))


def test_tensors_are_ordered_by_block_number_then_name() -> None:
    names = ["blk.10.a.weight", "blk.2.b.weight", "token_embd.weight", "blk.2.a.weight", "output.weight"]
    assert sorted(names, key=sort_key) == [
        *("output.weight", "token_embd.weight", "blk.2.a.weight", "blk.2.b.weight", "blk.10.a.weight")
    ]


@pytest.mark.parametrize(
    ("arch", "kv_heads", "layers", "expected"),
    [
        ("llama", 8, 80, True),
        ("llama", 64, 80, False),
        ("llama", 8, 79, False),
        ("qwen2", 64, 80, True),
        ("qwen3", 8, 80, False),
    ],
)
def test_the_models_called_70b_are_known(arch: str, kv_heads: int, layers: int, expected: bool) -> None:
    shape = {"arch": arch, "n_layer": layers, "heads": 64, "kv_heads": kv_heads}
    assert read_facts(shape_metadata(shape), has_imatrix=False).is_70b is expected


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 200))
def test_more_bits_are_given_to_both_ends_and_about_a_third_between(n: int) -> None:
    chosen = [TensorPlace(i, n).more_bits for i in range(n)]
    assert all(chosen[: n // 8])
    assert all(chosen[7 * n // 8 :])
    assert not any(a and b for a, b in pairwise(chosen[n // 8 : 7 * n // 8]))


def test_presets_have_the_file_types_of_llama_cpp() -> None:
    # Releases of gguf up to 0.19 lack the last one; the number is that of llama.h.
    numbers = {"MOSTLY_Q2_0": 41, **LlamaFileType.__members__}
    for preset in PRESETS.values():
        name = "ALL_F32" if preset.name == "F32" else f"MOSTLY_{preset.name}"
        assert preset.copy or numbers[name] == preset.file_type


def test_names_of_presets_may_be_short_and_in_any_case() -> None:
    assert [find_preset(name).name for name in ("q4_k", "Q5_K", "q3_k", "iq4_xs")] == [
        *("Q4_K_M", "Q5_K_M", "Q3_K_M", "IQ4_XS")
    ]


def test_an_unknown_preset_is_refused_with_the_list() -> None:
    with pytest.raises(WrongUse, match=r"no preset is called .Q4_Z."):
        find_preset("Q4_Z")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, r"no general\.architecture"),
        ({"general.architecture": MetaValue.uint32(1)}, r"no general\.architecture"),
        ({"general.architecture": MetaValue.string("x")}, r"no x\.block_count"),
        (
            {"general.architecture": MetaValue.string("x"), "x.block_count": MetaValue.string("9")},
            r"x\.block_count is no number",
        ),
        (
            {"general.architecture": MetaValue.string("x"), "x.block_count": MetaValue(V.INT32, -9)},
            r"x\.block_count is no number",
        ),
    ],
)
def test_a_header_that_is_no_models_is_refused(metadata: dict[str, MetaValue], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        read_facts(metadata, has_imatrix=False)


def test_head_counts_by_layer_count_by_the_first() -> None:
    shape = {"arch": "x", "n_layer": 2, "heads": 8, "kv_heads": 2}
    metadata = shape_metadata(shape) | {"x.attention.head_count_kv": MetaValue.array(V.INT32, [4, 2])}
    assert read_facts(metadata, has_imatrix=False).grouping == 2
