"""What conversion refuses before it writes a byte, by name and with one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.convert.arch import supported_classes
from strata_pack.weights.convert.convert import SafetensorsSource
from tests.tiny_models import MODELS, encode, weights, write_json, write_model, write_safetensors, write_weights

Change = Callable[[Path], None]
INDEX = "model.safetensors.index.json"


def edit(file: str, change: Callable[[Any], Any]) -> Change:
    """Return a change of a JSON file: ``change`` edits it in place, or returns another value."""

    def apply(folder: Path) -> None:
        value = json.loads((folder / file).read_text(encoding="utf-8"))
        other = change(value)
        write_json(folder / file, value if other is None else other)

    return apply


def config(**values: Any) -> Change:
    return edit("config.json", lambda found: found.update(values))


def tokenizer(change: Callable[[Any], Any]) -> Change:
    return edit("tokenizer.json", change)


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8") and None


def retype(name: str, dtype: str, width: int) -> Change:
    """Return a change that gives one tensor of a one-file checkpoint another type."""

    def apply(folder: Path) -> None:
        tensors = {n: ("F32", v.shape, encode(v, "F32")) for n, v in weights(MODELS["qwen3-f32"])}
        shape = tensors[name][1]
        tensors[name] = (dtype, shape, bytes(int(np.prod(shape)) * width))
        write_safetensors(folder / "model.safetensors", tensors)

    return apply


def drop(name: str) -> Change:
    """Return a change that leaves one tensor out of a one-file checkpoint."""

    def apply(folder: Path) -> None:
        kept = {n: v for n, v in weights(MODELS["qwen3-f32"]) if n != name}
        write_weights(folder, kept, "F32", 1)

    return apply


def add(name: str, shape: tuple[int, ...] = (4, 4)) -> Change:
    def apply(folder: Path) -> None:
        found = {**dict(weights(MODELS["qwen3-f32"])), name: np.zeros(shape, dtype=np.float32)}
        write_weights(folder, found, "F32", 1)

    return apply


def rename_merge(found: Any) -> None:
    found["model"]["merges"][0] = ["a"]


def clash(found: Any) -> None:
    found["added_tokens"][0]["id"] = 7


def split_regex(found: Any) -> None:
    found["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x+"


REFUSED: list[tuple[str, Change, str]] = [
    ("no config", remove("config.json"), "no such file"),
    ("config no JSON", write("config.json", "{"), "is not JSON"),
    ("config no object", write("config.json", "[]"), "not a JSON object"),
    ("no architecture", config(architectures=[]), "names no architecture"),
    ("foreign", config(architectures=["GemmaForCausalLM"]), "the architecture GemmaForCausalLM is not supported"),
    (
        "fp8 block",
        config(quantization_config={"quant_method": "fp8", "weight_block_size": [0, 128]}),
        "block of a scale",
    ),
    (
        "int4",
        config(quantization_config={"quant_method": "compressed-tensors", "format": "pack-quantized"}),
        "pack-quan",
    ),
    (
        "nvfp4",
        config(quantization_config={"quant_method": "modelopt", "quant_algo": "xNVFP4"}),
        r"already \(NVFP4\)",
    ),
    ("mxfp4", config(quantization_config={"quant_method": "mxfp4"}), r"quantized already \(MXFP4\)"),
    ("modelopt", write("hf_quant_config.json", "{}"), r"quantized already \(ModelOpt\)"),
    ("awq", config(quantization_config={"quant_method": "awq"}), r"quantized already \(AWQ\)"),
    ("gptq", config(quantization_config={"quant_method": "gptq"}), r"quantized already \(GPTQ\)"),
    ("other", config(quantization_config={"quant_method": "bitsandbytes"}), r"quantized already \(bitsandbytes\)"),
    ("unnamed", config(quantization_config={"bits": 4}), "quantized already"),
    ("draft", config(draft_vocab_size=32000), "a draft model"),
    ("modules", write("modules.json", "{}"), "is not a list of modules"),
    ("pooling", write("modules.json", '[{"type": "x.Pooling", "path": "1_Pooling"}]'), "no such file"),
    ("pooling outside", write("modules.json", '[{"type": "x.Pooling", "path": "../x"}]'), "names the folder '../x'"),
    ("reranker", write("README.md", "# Qwen3-Reranker-0.6B\n"), "is a reranker whose tokenizer has no token 'yes'"),
    ("no size", config(hidden_size="wide"), "hidden_size is 'wide'"),
    ("negative", config(num_hidden_layers=-1), "num_hidden_layers is -1"),
    ("rope kind", config(rope_scaling={"rope_type": "spiral", "factor": 2.0}), "'spiral' is not supported"),
    ("yarn", config(rope_scaling={"rope_type": "yarn", "factor": 2.0}), "no original_max_position"),
    ("rope no object", config(rope_parameters=7), "rope_parameters is 7"),
    ("value", config(rms_norm_eps="small"), "cannot be 'small'"),
    ("other width", config(hidden_size=512), r"is \[4160, 256\], but config.json says \[4160, 512\]"),
    ("more layers", config(num_hidden_layers=2), "config.json says 2 layers, but the weights have 1"),
    ("lie", config(num_hidden_layers=2**31), "config.json says 2147483648 layers, but the weights have 1"),
    ("rows", config(vocab_size=2**31), r"is \[4160, 256\], but config.json says \[2147483648, 256\]"),
    ("heads", config(num_attention_heads=2**31), ", but config.json says"),
    ("head size", config(head_dim=2**31), ", but config.json says"),
    ("lora", write("adapter_config.json", "{}"), "is a LoRA adapter, not a model"),
    ("untied", config(tie_word_embeddings=False), "no tensor that becomes output.weight"),
    ("vocabulary", config(vocab_size=4000), r"is \[4160, 256\], but config.json says \[4000, 256\]"),
    ("no weights", remove("model.safetensors"), "has no model.safetensors"),
    ("empty", write("model.safetensors", ""), "is truncated: .* 0 bytes"),
    ("garbage", write("model.safetensors", "x" * 100), "is truncated: its header does not fit in 100 bytes"),
    ("FP8 tensor", retype("model.layers.0.mlp.up_proj.weight", "F8_E4M3", 1), "in 8 bits .* no scale belongs to it"),
    ("integers", retype("model.layers.0.mlp.up_proj.weight", "I32", 4), "has the type I32"),
    ("doubles", retype("model.layers.0.mlp.up_proj.weight", "F64", 8), "has the type F64"),
    ("GPTQ tensor", add("model.layers.0.mlp.up_proj.qweight"), r"quantized already \(INT4, AWQ or GPTQ\)"),
    ("FP8 scale", add("model.layers.0.mlp.up_proj.weight_scale_inv"), r"quantized already \(8 bits\)"),
    ("layers between", add("model.layers.3.mlp.up_proj.weight"), "config.json says 1 layers, but the weights have 4"),
    ("adapter", add("model.layers.0.mlp.up_proj.lora_A.weight"), "is none that qwen3 has"),
    ("empty tensor", add("model.layers.0.mlp.extra.weight", (0, 4)), "no elements"),
    ("no norm", drop("model.norm.weight"), "no tensor that becomes output_norm.weight"),
    ("no embedding", drop("model.embed_tokens.weight"), "no tensor that becomes token_embd.weight"),
    ("no tokenizer", remove("tokenizer.json"), "neither tokenizer.json nor tokenizer.model"),
    ("tokenizer no JSON", write("tokenizer.json", "x"), "is not JSON"),
    ("unigram", tokenizer(lambda t: t["model"].update(type="Unigram")), "Unigram, not byte-level"),
    ("byte fallback", tokenizer(lambda t: t["model"].update(byte_fallback=True)), "BPE, not byte-level"),
    ("pre-tokenizer", tokenizer(split_regex), "the pre-tokenizer is not a known one"),
    ("no pre-tokenizer", tokenizer(lambda t: t.update(pre_tokenizer=None)), "the pre-tokenizer is not a known one"),
    ("normalizer", tokenizer(lambda t: t.update(normalizer={"type": "Lowercase"})), "normalizer 'Lowercase'"),
    ("post-processor", tokenizer(lambda t: t.update(post_processor={"type": "X"})), "post-processor 'X'"),
    ("merge", tokenizer(rename_merge), "does not have two parts"),
    ("clash", tokenizer(clash), "have the same id 7"),
    ("no vocabulary", tokenizer(lambda t: t["model"].pop("vocab") and None), "the tokenizer is malformed"),
    ("token id", tokenizer(lambda t: t["model"]["vocab"].update(a="x")), "has the id 'x'"),
    ("eos", edit("tokenizer_config.json", lambda t: t.update(eos_token="<nope>")), "'<nope>', which is not a token"),
    ("card", write("README.md", "---\nlicense: [\n---\n"), "the head of the model card is malformed"),
    ("tokenizer.model", write("tokenizer.model", "\x0c"), "is not a SentencePiece model"),
    ("empty tokenizer.model", write("tokenizer.model", ""), "without pieces"),
    ("template", write("chat_template.json", "["), "is not a JSON object"),
]


@pytest.mark.parametrize(("change", "sentence"), [pytest.param(c, s, id=i) for i, c, s in REFUSED])
def test_checkpoint_is_refused(tmp_path: Path, change: Change, sentence: str) -> None:
    folder = write_model("qwen3-f32", tmp_path / "model")
    if (folder / "tokenizer_config.json").exists():
        edit("tokenizer_config.json", lambda found: found.pop("chat_template", None) and None)(folder)
    change(folder)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(folder, "bf16")


def test_unsupported_architecture_lists_the_supported_ones(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"architectures": ["GemmaForCausalLM"]})
    with pytest.raises(BadInput) as caught:
        SafetensorsSource.open(tmp_path)
    assert all(name in str(caught.value) for name in supported_classes())


SHARDED: list[tuple[str, Change, str]] = [
    ("missing shard", remove("model-00002-of-00002.safetensors"), "no such file"),
    ("no index", remove(INDEX), f"has 2 safetensors files .* but no {INDEX}"),
    ("index no JSON", write(INDEX, "{"), f"{INDEX}: is malformed"),
    ("index empty", write(INDEX, '{"weight_map": {}}'), "lists no tensor"),
    ("index climbs", write(INDEX, '{"weight_map": {"a": "../x.safetensors"}}'), "unsafe name"),
    ("index type", write(INDEX, '{"weight_map": {"a": 7}}'), "has no file"),
    (
        "promised tensor",
        edit(INDEX, lambda i: i["weight_map"].update({"model.extra": "model-00001-of-00002.safetensors"})),
        "lacks model.extra",
    ),
    ("unlisted tensor", edit(INDEX, lambda i: i["weight_map"].pop("model.norm.weight") and None), "does not exist"),
    (
        "other shard",
        edit(INDEX, lambda i: i["weight_map"].update({"model.norm.weight": "model-00002-of-00002.safetensors"})),
        "which lies in model-00002-of-00002.safetensors by",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), [pytest.param(c, s, id=i) for i, c, s in SHARDED])
def test_index_and_shards_must_agree(tmp_path: Path, change: Change, sentence: str) -> None:
    folder = write_model("qwen3", tmp_path / "model")
    change(folder)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(folder)


@pytest.mark.parametrize("keep", [3, 7, 8, 100, -1])
def test_shard_shorter_than_its_header_says_is_refused(tmp_path: Path, keep: int) -> None:
    folder = write_model("qwen3", tmp_path / "model")
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInput, match="is truncated"):
        SafetensorsSource.open(folder)


def shrink(keep: Callable[[str], bool]) -> dict[str, Any]:
    return {name: values for name, values in weights(MODELS["qwen3moe"]) if keep(name)}


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


def change_model(name: str, folder: Path, change: Callable[[dict[str, Any]], None], **values: Any) -> Path:
    """Write a variant whose weights and configuration are changed."""
    tiny = MODELS[name]
    write_model(name, folder)
    found = dict(weights(tiny))
    change(found)
    write_weights(folder, found, tiny.dtype, tiny.shards)
    config(**values)(folder)
    return folder


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


SCALE = "model.layers.0.mlp.up_proj.weight_scale_inv"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (edit("config.json", lambda c: c.pop("vision_config") and None), "has no vision_config"),
        (edit("config.json", lambda c: c.update(architectures=["Gemma3Tower"])), "the tower of Gemma3Tower is not"),
        (edit("config.json", lambda c: c["vision_config"].update(depth=2**31)), "2147483648 layers of the tower"),
        (edit("config.json", lambda c: c["vision_config"].update(hidden_size=2**31)), ", but config.json says"),
        (edit("config.json", lambda c: c["vision_config"].update(temporal_patch_size=3)), "temporal_patch_size is 3"),
        (edit("config.json", lambda c: c["vision_config"].update(deepstack_visual_indexes=[3])), "not layers of the"),
        (edit("config.json", lambda c: c["text_config"].update(hidden_size=64)), ", but config.json says"),
        (remove("preprocessor_config.json"), "image_mean and image_std are None and None"),
        (edit("preprocessor_config.json", lambda c: c.update(image_std="x")), "not three numbers each"),
    ],
)
def test_projector_is_refused(tmp_path: Path, change: Change, sentence: str) -> None:
    folder = write_model("qwen35-vision", tmp_path / "model")
    change(folder)
    with pytest.raises(BadInput, match=sentence):
        SafetensorsSource.open(folder, part="projector")


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


@pytest.mark.parametrize("name", ["model.gguf", "nowhere"])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadInput, match="no such folder"):
        SafetensorsSource.open(tmp_path / name)


def test_checkpoint_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    folder = write_model("qwen3-f32", tmp_path / "model")
    with SafetensorsSource.open(folder, "f32") as source:
        tensor = source.tensors[-1]
        read = source.rows(tensor)
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(1000)
        with pytest.raises(BadInput, match="became shorter while"):
            read(0, tensor.rows, np.empty(tensor.nbytes, dtype=np.uint8))
