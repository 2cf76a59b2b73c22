"""Checkpoints that are refused: files, types, tokenizers, shards and towers, each with one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.convert.arch import supported_classes
from strata_pack.weights.convert.convert import SafetensorsSource
from tests.tiny_models import write_json, write_model
from tests.weights.convert.damage import (
    INDEX,
    Change,
    add,
    clash,
    config,
    drop,
    edit,
    remove,
    rename_merge,
    retype,
    split_regex,
    tokenizer,
    write,
)

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
    ("card number", write("README.md", "---\nversion: 1.5\n---\n"), r"README\.md: general\.version cannot be '1\.5'"),
    ("card aliases", write("README.md", "---\na: &a [x]\ndatasets: [*a]\n---\n"), r"has a YAML alias \(\*a\)"),
    ("card without end", write("README.md", "---\na: &a [x]\ndatasets: [*a]\n"), r"has a YAML alias \(\*a\)"),
    (
        "deep card",
        write("README.md", "---\ntags: " + "[" * 5000 + "\n---\n"),
        "the head of the model card is malformed",
    ),
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
