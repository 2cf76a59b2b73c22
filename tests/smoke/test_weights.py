"""What a grammar hides is found and named: broken tensors, wrong tokens, a wrong shape, another model's projector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from strata_pack.chat.library import load_shipped
from strata_pack.llama.ggml import Ggml
from strata_pack.report import Check, Report
from strata_pack.smoke.header import config_shape
from strata_pack.smoke.run import SmokeOptions, run_smoke
from strata_pack.smoke.tensors import tensor_faults
from strata_pack.weights.gguf.file import TensorInfo
from tests.smoke.tiny import WIDTH, write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")

TEMPLATE = load_shipped("qwen3.8-flash-next").source
FILLER = 1200


def _play(tmp_path: Path, *only: str, source: Path | None = None, template: str = TEMPLATE, **how: Any) -> Report:
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=template, **how)
    return run_smoke(model, source=source, options=SmokeOptions(only=only, threads=1, log_dir=tmp_path))


def _only(report: Report) -> Check:
    (check,) = report.checks
    return check


def _spoil(tensor: str, value: float, *rows: int):
    def change(name: str, values: Any) -> Any:
        values = values.astype(np.float32)
        if name == tensor:
            values[list(rows) if rows else ...] = value
        return values

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_spoil("blk.0.ffn_up.weight", 0.0), "blk.0.ffn_up.weight is zero in all its 4,096 weights"),
        (_spoil("blk.0.ffn_norm.weight", np.nan, 3), "blk.0.ffn_norm.weight has values that are NaN or infinite"),
        (_spoil("output.weight", np.inf, 7, 9), "output.weight has values that are NaN or infinite in row 7, 9"),
    ],
)
def test_a_broken_tensor_is_named(tmp_path, change, words):
    check = _only(_play(tmp_path, "tensors", change=change))
    assert check.status == "failed"
    assert check.detail.startswith(words)


def test_healthy_tensors_pass(tmp_path):
    assert _only(_play(tmp_path, "tensors")).status == "passed"


QUANTIZED = [type for type in GGML_QUANT_SIZES if GGML_QUANT_SIZES[type][0] > 1]


@pytest.mark.parametrize("type", QUANTIZED, ids=lambda type: type.name)
@pytest.mark.parametrize("row", [0, 2])
def test_a_block_whose_bits_are_all_set_has_no_finite_scale_and_its_row_is_named(type, row):
    elements, size = GGML_QUANT_SIZES[type]
    blocks = np.ones((3 * 2, size), np.uint8)
    blocks[row * 2 + 1] = 0xFF
    info = TensorInfo.make("blk.0.ffn_up.weight", (2 * elements, 3), type)
    (fault,) = tensor_faults(info, memoryview(blocks.tobytes()))
    assert (fault.rows, "block scales" in fault.problem) == ((row,), True)


@pytest.mark.parametrize("type", [type for type in QUANTIZED if type.name != "MXFP4"], ids=lambda type: type.name)
def test_blocks_of_zeros_are_a_zeroed_tensor(type):
    elements, size = GGML_QUANT_SIZES[type]
    info = TensorInfo.make("blk.0.ffn_up.weight", (elements, 4), type)
    (fault,) = tensor_faults(info, memoryview(bytes(size * 4)))
    assert "is zero" in fault.problem


@pytest.mark.parametrize("type", ["Q8_0", "Q4_K", "Q6_K", "BF16", "F16", "F32"])
@pytest.mark.parametrize(("factor", "found"), [(1.0, False), (1000.0, True)])
def test_a_block_far_beyond_all_others_is_named(type, factor, found):
    kind = GGMLQuantizationType[type]
    values = np.random.default_rng(3).standard_normal((16, 256)).astype(np.float32) / 8
    values[5, :32] *= factor
    info = TensorInfo.make("blk.0.ffn_up.weight", (256, 16), kind)
    faults = list(tensor_faults(info, memoryview(Ggml.load().quantize(kind, values))))
    assert [fault.rows for fault in faults] == ([(5,)] if found else [])


@pytest.mark.parametrize(("sign", "words"), [(1, []), (-1, ["is negative in 64 of its 64 weights"])])
def test_a_negated_norm_is_named(sign, words):
    info = TensorInfo.make("blk.0.attn_norm.weight", (64,), GGMLQuantizationType.F32)
    data = np.full(64, sign, np.float32)
    assert [fault.problem for fault in tensor_faults(info, memoryview(data.tobytes()))] == words


def test_a_bias_may_be_zero():
    info = TensorInfo.make("blk.0.attn_q.bias", (64,), GGMLQuantizationType.F32)
    assert list(tensor_faults(info, memoryview(bytes(256)))) == []


@given(st.lists(st.floats(width=16), min_size=1, max_size=64))
def test_a_plain_tensor_has_a_fault_exactly_where_numpy_sees_a_number_that_is_not_finite(values):
    data = np.array(values, np.float16)
    info = TensorInfo.make("x.weight", (1, len(values)), GGMLQuantizationType.F16)
    found = {fault.problem.split()[0]: fault for fault in tensor_faults(info, memoryview(data.tobytes()))}
    assert ("has" in found) == (not np.isfinite(data).all())
    if "has" in found:
        assert found["has"].count == int((~np.isfinite(data)).sum())


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ({}, "passed", "both end a turn with <|im_end|>"),
        ({"eos": "<|endoftext|>", "eot": "<|im_end|>"}, "passed", "both end a turn with <|im_end|>"),
        ({"eot": "<tool_call>"}, "failed", "tokenizer.ggml.eot_token_id is '<tool_call>', which ends no text"),
        ({"eos": "a", "eot": "<|im_end|>"}, "failed", "tokenizer.ggml.eos_token_id is 'a', which ends no text"),
        ({"eos": "<|endoftext|>"}, "failed", "the GGUF's end-of-text token (tokenizer.ggml.eos_token_id) is <|endoft"),
    ],
)
def test_the_end_token_of_the_gguf_is_held_against_the_template(tmp_path, how, status, words):
    check = _only(_play(tmp_path, "end-of-turn", **how))
    assert check.status == status
    assert words in check.detail


@pytest.mark.parametrize(("pre", "status"), [("qwen2", "passed"), (None, "failed")])
def test_a_vocabulary_without_a_pre_tokenizer_fails(tmp_path, pre, status):
    assert _only(_play(tmp_path, "pre-tokenizer", pre=pre)).status == status


@pytest.mark.parametrize(
    ("before", "add_bos", "wrong"),
    [
        ("", True, "tokenizer.ggml.add_bos_token is wrong"),
        ("{{- bos_token -}}", True, None),
        ("{{- bos_token -}}", False, None),
        ("<|endoftext|>", True, "writes the BOS token as the text <|endoftext|>, and the tokenizer adds one too"),
        ("{{- bos_token ~ bos_token -}}", False, "<|endoftext|> 2 times: the template writes it more than once"),
    ],
)
def test_a_prompt_begins_with_the_bos_of_the_template_and_no_other(tmp_path, before, add_bos, wrong):
    check = _only(_play(tmp_path, "prompt-start", template=before + TEMPLATE, add_bos=add_bos))
    assert check.status == ("failed" if wrong else "passed")
    assert wrong is None or wrong in check.detail


def test_a_model_that_reads_passes_and_one_that_guesses_fails(tmp_path):
    assert _only(_play(tmp_path, "perplexity", filler=FILLER)).status == "passed"
    random = np.random.default_rng(1)

    def guess(name: str, values: Any) -> Any:
        drawn = random.standard_normal(values.shape) if name == "output.weight" else values
        return drawn.astype(np.float32)

    check = _only(_play(tmp_path, "perplexity", filler=FILLER, change=guess))
    assert check.status == "failed"
    assert check.data["perplexity"] > check.data["limit"]


def test_a_norm_of_nan_makes_logits_that_are_not_finite(tmp_path):
    change = _spoil("output_norm.weight", np.nan)
    check = _only(_play(tmp_path, "perplexity", filler=FILLER, change=change))
    assert check.status in ("failed", "error")
    assert check.status == "error" or "NaN or infinite" in check.detail


def _source(tmp_path: Path, **values: Any) -> Path:
    config = {"rope_theta": 1e6, "max_position_embeddings": 32_768, "hidden_size": WIDTH, "num_hidden_layers": 1}
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


@pytest.mark.parametrize(
    ("values", "rope_base", "wrong"),
    [
        ({}, 1e6, None),
        ({}, 1e4, "the rope base is 10000.0 in the GGUF and 1000000.0 in the source"),
        ({"max_position_embeddings": 4096}, 1e6, "the context length is 32768 in the GGUF and 4096 in the source"),
    ],
)
def test_rope_base_and_context_are_held_against_the_source(tmp_path, values, rope_base, wrong):
    source = _source(tmp_path, **values)
    check = _only(_play(tmp_path, "source-shape", source=source, rope_base=rope_base))
    assert check.status == ("failed" if wrong else "passed")
    assert wrong is None or check.detail == wrong


def test_a_gguf_is_a_source_too(tmp_path):
    source = write_tiny_model(tmp_path / "source.gguf", chat_template=None, rope_base=5e5)
    check = _only(_play(tmp_path, "source-shape", source=source))
    assert check.detail == "the rope base is 10000.0 in the GGUF and 500000.0 in the source"


def test_a_configuration_may_nest_the_text_model_and_gather_rope():
    nested = {"text_config": {"hidden_size": 64, "rope_parameters": {"rope_theta": 5e6}}, "hidden_size": 1}
    assert config_shape(nested) == {"the rope base": 5e6, "the embedding width": 64}


def _write_projector(path: Path, width: int) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_string("clip.projector_type", "qwen2vl_merger")
    writer.add_uint32("clip.vision.projection_dim", width)
    writer.add_tensor("mm.0.weight", np.ones((32, 32), np.float32))
    writer.add_tensor("mm.2.weight", np.ones((width, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_projector_of_the_model_s_width_passes(tmp_path):
    _write_projector(tmp_path / "mmproj-F32.gguf", WIDTH)
    assert _only(_play(tmp_path, "projector")).status == "passed"


def test_a_projector_of_another_width_is_named(tmp_path):
    _write_projector(tmp_path / "mmproj-F32.gguf", 2 * WIDTH)
    check = _only(_play(tmp_path, "projector"))
    assert check.status == "failed"
    assert check.detail == (
        "the model's embedding width is 64, but the output of mm.2.weight is 128, clip.vision.projection_dim is 128"
    )


def test_a_truncated_projector_is_named(tmp_path):
    path = _write_projector(tmp_path / "mmproj-F32.gguf", WIDTH)
    path.write_bytes(path.read_bytes()[:-4096])
    check = _only(_play(tmp_path, "projector"))
    assert check.status == "failed"
    assert "truncated" in check.detail
