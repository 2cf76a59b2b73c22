"""Configurations that the weights contradict, and weights that are not whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.convert.convert import SafetensorsSource
from tests.tiny_models import write_model, write_weights
from tests.weights.convert.damage import change_model, shrink

SCALE = "model.layers.0.mlp.up_proj.weight_scale_inv"


def test_incomplete_experts_are_named(tmp_path: Path) -> None:
    folder = write_model("qwen3moe", tmp_path / "model")
    missing = "model.layers.2.mlp.experts.5.up_proj.weight"
    write_weights(folder, shrink(lambda name: name != missing), "BF16", 3)
    with pytest.raises(BadInput, match="layer 2 has no up_proj of expert 5 "):
        SafetensorsSource.open(folder)


def test_expert_of_another_shape_is_named(tmp_path: Path) -> None:
    folder = write_model("qwen3moe", tmp_path / "model")
    odd = "model.layers.1.mlp.experts.3.down_proj.weight"
    found = {name: values[:-1] if name == odd else values for name, values in shrink(lambda _: True).items()}
    write_weights(folder, found, "BF16", 3)
    with pytest.raises(BadInput, match=f"{odd} is .*, but config.json says"):
        SafetensorsSource.open(folder)


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("llama3-rope", {"vocab_size": 32016}, "is CodeLlama, whose infill vocabulary is not supported"),
        ("llama3-rope", {"num_attention_heads": 7}, ", but config.json says"),
        ("qwen35", {"linear_num_key_heads": 3}, ", but config.json says"),
        ("qwen35", {"linear_value_head_dim": 2**31}, ", but config.json says"),
        ("qwen35", {"mtp_num_hidden_layers": 2}, "says 2 MTP layers, but the weights have 1"),
        ("qwen35", {"layer_types": ["full_attention"]}, "layer_types is not a list of 4"),
        ("qwen35", {"mtp_num_hidden_layers": "x"}, "mtp_num_hidden_layers is 'x', not a count"),
        ("qwen35", {"intermediate_size": 1.5}, "intermediate_size is 1.5, not a positive integer"),
        ("qwen35", {"mtp_num_hidden_layers": 2**31}, "says 2147483648 MTP layers"),
        ("qwen3next", {"linear_key_head_dim": 33}, ", but config.json says"),
        ("qwen3moe-fused", {"num_experts": 4}, ", but config.json says"),
        ("qwen3moe", {"num_experts": 2**31}, r"is \[8, 256\], but config.json says"),
        ("qwen3moe", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, but there are 8 experts"),
        ("flash-plain", {"hc_count": 3}, ", but config.json says"),
        ("flash-plain", {"hc_lowrank": 2**31}, ", but config.json says"),
        ("flash-plain", {"indexer_n_heads": 5}, ", but config.json says"),
        ("flash-plain", {"hc_count": None}, "hc_count is None"),
        ("flash-plain", {"ple_layer_ids": [2]}, "the weights have no n-gram embeddings"),
        ("flash-text", {"ple_layer_ids": []}, r"the weights have n-gram embeddings in layers \[2\]"),
        ("flash-text", {"ple_layer_ids": [3]}, r"the weights have n-gram embeddings in layers \[2\]"),
        ("flash-text", {"ple_layer_ids": [1, 2]}, "names 2 layers, and llama.cpp can load one"),
        ("flash-text", {"ple_layer_ids": [2**31]}, "not layers from 1 to 4"),
        ("flash-text", {"ple_layer_ids": "2"}, "not layers from 1 to 4"),
        ("flash-text", {"split_ngram_parts": 2}, "has 1 shards, but config.json has 2"),
        ("flash-text", {"split_ngram_parts": 2**31}, "has 1 shards, but config.json has"),
        ("flash-text", {"ngram_size": 4}, "the weights have 3 multipliers and 8 heads"),
        ("flash-text", {"eos_token_id": None}, "n-grams restart at it"),
        ("flash-text", {"ple_conv_kernel_size": 5}, ", but config.json says"),
        ("qwen3moe", {"num_experts_per_tok": 0}, "num_experts_per_tok is 0"),
    ],
)
def test_configuration_that_contradicts_the_weights_is_refused(
    tmp_path: Path, name: str, values: dict[str, Any], sentence: str
) -> None:
    folder = change_model(name, tmp_path / "model", lambda _: None, **values)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(folder)


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        (lambda name: "shard_0." in name, "n-gram embeddings in layers .2. without their table"),
        (lambda name: "layer_multipliers" in name, "has no layer_multipliers for its n-grams"),
        (lambda name: "hyper_connection_mixer.hc_norm" in name, "no tensor that becomes output_hc_norm.weight"),
        (lambda name: "layers.3.self_attn" in name, "no tensor that becomes blk.3.attn_output.weight"),
    ],
)
def test_incomplete_n_gram_model_is_refused(tmp_path: Path, lost: Callable[[str], bool], sentence: str) -> None:
    def drop_some(found: dict[str, Any]) -> None:
        for name in [name for name in found if lost(name)]:
            del found[name]

    folder = change_model("flash-text", tmp_path / "model", drop_some)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(folder)


def test_half_a_draft_projection_is_refused(tmp_path: Path) -> None:
    folder = change_model("flash-plain", tmp_path / "model", lambda found: found.__delitem__("mtp.fc_hidden.weight"))
    with pytest.raises(BadInput, match="not the other half of its projection"):
        SafetensorsSource.open(folder)


@pytest.mark.parametrize("name", ["flash-plain", "qwen35"])
def test_draft_head_that_is_promised_and_missing_is_refused_with_its_remedy(tmp_path: Path, name: str) -> None:
    def drop_head(found: dict[str, Any]) -> None:
        for tensor in [tensor for tensor in found if tensor.startswith("mtp.")]:
            del found[tensor]

    folder = change_model(name, tmp_path / "model", drop_head)
    with pytest.raises(BadInput, match="says 1 MTP layers, but the weights have 0; leave them out with --no-mtp"):
        SafetensorsSource.open(folder)
    SafetensorsSource.open(folder, part="trunk").close()
    with pytest.raises(BadInput, match="has no layers for multi-token prediction"):
        SafetensorsSource.open(folder, part="mtp")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda found: found.update({"x.weight_scale_inv": found[SCALE]}),
            "is the scale of x.weight, which is missing",
        ),
        (lambda found: found.__delitem__(SCALE), "in 8 bits .* no scale belongs to it"),
        (lambda found: found.update({SCALE: found[SCALE][:1]}), "has the shape .* and its weight"),
    ],
)
def test_scale_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    folder = change_model("qwen35-fp8", tmp_path / "model", change)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(folder)


LINEAR_SCALES = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("qwen3next", {"layer_types": None, "full_attention_interval": [None]}),
        ("llama3-rope", {"rope_theta": "x"}),
        ("llama3-rope", {"rope_theta": 0}),
        ("llama3-rope", {"rope_scaling": {**LINEAR_SCALES, "factor": {}}}),
        ("llama3-rope", {"rope_scaling": {**LINEAR_SCALES, "low_freq_factor": 0}}),
        ("llama3-rope", {"rope_scaling": {**LINEAR_SCALES, "original_max_position_embeddings": "x"}}),
    ],
    ids=str,
)
def test_a_value_of_a_wrong_kind_is_refused(tmp_path: Path, name: str, values: dict[str, Any]) -> None:
    folder = change_model(name, tmp_path / "model", lambda _: None, **values)
    with pytest.raises(BadInput, match="of a wrong type"):
        SafetensorsSource.open(folder)
