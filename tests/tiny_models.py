"""Tiny checkpoints in Hugging Face layout, the same bytes from the same seed, each in well under a second.

A byte-level BPE of 4,096 tokens is trained on words made from the seed; the weights are random. ``MODELS`` names the
variants that the conversion is proved on. Run alone (``python -m tests.tiny_models NAME FOLDER``) it writes one.
"""

from __future__ import annotations

import functools
import json
import random
import struct
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Array = npt.NDArray[Any]

SEED = 20251129
VOCABULARY = 4096
"""Tokens that are trained; the added ones come behind them."""

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN_ADDED = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<tool_call>", False),
    ("</tool_call>", False),
    ("<think>", False),
    ("</think>", False),
)
LLAMA3_ADDED = (
    ("<|begin_of_text|>", True),
    ("<|end_of_text|>", True),
    ("<|eot_id|>", True),
)


@dataclass(frozen=True)
class Tiny:
    """One variant: ``config`` as in config.json, ``dtype`` of the weights, and what stands beside them."""

    config: Mapping[str, Any]
    dtype: str = "BF16"
    shards: int = 1
    split: str = QWEN2_SPLIT
    added: tuple[tuple[str, bool], ...] = QWEN_ADDED
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    post_processor: Mapping[str, Any] | None = None
    mtp: bool = False
    fused_experts: bool = False
    sentence_piece: bool = False
    prefix: str = "model."


_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 4160,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "bos_token_id": 4096,
    "eos_token_id": 4098,
    "torch_dtype": "bfloat16",
}
_QWEN3_MOE = {
    **_QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4099,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 4096,
    "eos_token_id": [4097, 4098],
    "torch_dtype": "bfloat16",
}
_LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "partial_rotary_factor": 0.25,
}
_QWEN3_NEXT = {
    **_QWEN3_MOE,
    **_LINEAR,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "shared_expert_intermediate_size": 64,
    "mlp_only_layers": [],
}
_ROPE_35 = {
    "rope_type": "default",
    "rope_theta": 10000000,
    "mrope_interleaved": True,
    "mrope_section": [3, 3, 2],
    "partial_rotary_factor": 0.25,
}
_QWEN3_5 = {
    **{key: value for key, value in _QWEN3.items() if key not in ("rope_theta", "rope_scaling")},
    **_LINEAR,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "rope_parameters": _ROPE_35,
    "attn_output_gate": True,
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": False,
}
_QWEN3_5_MOE = {
    **{key: value for key, value in _QWEN3_5.items() if key != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
_QWEN_TOKENIZER = {
    "tokenizer_class": "Qwen2Tokenizer",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "add_bos_token": False,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 4096,
    "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
}
_LLAMA3_TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|begin_of_text|>",
    "eos_token": "<|eot_id|>",
    "clean_up_tokenization_spaces": True,
    "model_max_length": 131072,
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_LLAMA3_POST = {
    "type": "Sequence",
    "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 1}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                "<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [4096], "tokens": ["<|begin_of_text|>"]}
            },
        },
    ],
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_CARD = """---
license: apache-2.0
license_link: https://example.org/LICENSE
language:
- en
- de
tags:
- chat
- tiny
base_model:
- Example/Tiny-1B-Base
datasets:
- example/words
pipeline_tag: text-generation
---
# Tiny
"""
_GENERATION = '{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "do_sample": true}'


def _qwen(config: Mapping[str, Any], **more: Any) -> Tiny:
    options = {"tokenizer_config": _QWEN_TOKENIZER, "post_processor": _BYTE_LEVEL, **more}
    return Tiny(config, **options)


def _llama3(config: Mapping[str, Any], **more: Any) -> Tiny:
    return Tiny(
        config,
        split=LLAMA3_SPLIT,
        added=LLAMA3_ADDED,
        tokenizer_config=_LLAMA3_TOKENIZER,
        post_processor=_LLAMA3_POST,
        **more,
    )


MODELS: dict[str, Tiny] = {
    "qwen3": _qwen(_QWEN3, shards=2),
    "qwen3-f16": _qwen({**_QWEN3, "tie_word_embeddings": False}, dtype="F16"),
    "qwen3-f32": _qwen({**_QWEN3, "num_hidden_layers": 1}, dtype="F32"),
    "qwen3-yarn-4B-v1.5-chat": _qwen(
        {
            **_QWEN3,
            "num_hidden_layers": 1,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        files={"README.md": _CARD, "generation_config.json": _GENERATION, "chat_template.jinja": "{{ messages }}"},
        tokenizer_config={key: value for key, value in _QWEN_TOKENIZER.items() if key != "chat_template"},
    ),
    "qwen3moe": _qwen(_QWEN3_MOE, shards=3),
    "qwen3moe-fused": _qwen({**_QWEN3_MOE, "num_hidden_layers": 2}, fused_experts=True),
    "llama3": _llama3(_LLAMA3, shards=2),
    "llama3-rope": _llama3({**_LLAMA3, "num_hidden_layers": 1, "head_dim": 64, "rope_scaling": _LLAMA3_ROPE}),
    "llama-tied": _llama3({**_LLAMA3, "num_hidden_layers": 1, "tie_word_embeddings": True}, dtype="F16"),
    "llama2": Tiny(
        {**_LLAMA3, "num_hidden_layers": 1, "vocab_size": 320, "bos_token_id": 1, "eos_token_id": 2},
        dtype="F16",
        tokenizer_config={
            "tokenizer_class": "LlamaTokenizer",
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": {"content": "</s>", "special": True},
            "unk_token": "<unk>",
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": {
                "0": {"content": "<unk>", "special": True},
                "1": {"content": "<s>", "special": True},
                "2": {"content": "</s>", "special": True},
                "310": {"content": "\u2581tool\u2581", "special": False},
                "900": {"content": "<out of range>", "special": True},
            },
        },
        files={"added_tokens.json": '{"<extra>": 311, "<|looks special|>": 312}'},
        sentence_piece=True,
    ),
    "qwen3next": _qwen(_QWEN3_NEXT, mtp=True),
    "qwen35": _qwen(_QWEN3_5, split=QWEN35_SPLIT, mtp=True),
    "qwen35-vision": _qwen(
        {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "model_type": "qwen3_5",
            "text_config": {k: v for k, v in _QWEN3_5.items() if k != "architectures"},
            "vision_config": {"model_type": "qwen3_5", "hidden_size": 64},
            "tie_word_embeddings": False,
        },
        split=QWEN35_SPLIT,
        mtp=True,
        prefix="model.language_model.",
    ),
    "qwen35moe": _qwen(_QWEN3_5_MOE, split=QWEN35_SPLIT, mtp=True, fused_experts=True),
}


def write_model(name: str, folder: Path) -> Path:
    """Write the variant ``name`` into ``folder`` (made at need) and return it.

    The name of the folder goes into the GGUF's metadata: compare conversions of equally named folders only.
    """
    tiny = MODELS[name]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", tiny.config)
    if tiny.sentence_piece:
        (folder / "tokenizer.model").write_bytes(sentence_piece_model())
    else:
        (folder / "tokenizer.json").write_text(tokenizer_json(tiny), encoding="utf-8")
    write_json(folder / "tokenizer_config.json", tiny.tokenizer_config)
    for file, text in tiny.files.items():
        (folder / file).write_text(text, encoding="utf-8")
    write_weights(folder, dict(weights(tiny)), tiny.dtype, tiny.shards)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


@functools.cache
def _trained(split: str) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    return tokenizer.to_str()


def _sentences() -> Iterator[str]:
    dice = random.Random(SEED)
    syllables = [c + v for c in "bdfghjklmnprstvwz" for v in ("a", "e", "i", "o", "u", "ä", "oo")]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(6000)]
    weights_ = [1 / rank for rank in range(1, len(words) + 1)]
    for _ in range(1500):
        line = dice.choices(words, weights_, k=dice.randint(4, 24))
        yield " ".join(line).capitalize() + f", {dice.randint(0, 99999)}.\n"


def tokenizer_json(tiny: Tiny) -> str:
    """Return the variant's tokenizer.json."""
    tokenizer = Tokenizer.from_str(_trained(tiny.split))
    assert tokenizer.get_vocab_size() == VOCABULARY
    for text, special in tiny.added:
        token = AddedToken(text, special=special, normalized=False)
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    found = json.loads(tokenizer.to_str())
    found["post_processor"] = tiny.post_processor
    return json.dumps(found, ensure_ascii=False)


def sentence_piece_model() -> bytes:
    """Return a tokenizer.model of 300 pieces: unknown, two control, bytes, words, one user-defined, one unused."""
    normal, unknown, control, user_defined, unused, byte = range(1, 7)
    pieces = [("<unk>", 0.0, unknown), ("<s>", 0.0, control), ("</s>", 0.0, control)]
    pieces += [(f"<0x{n:02X}>", 0.0, byte) for n in range(256)]
    words = [f"\u2581{a}{b}" for a in "abcdeé" for b in "mnopqr"]
    pieces += [(word, -float(n), normal) for n, word in enumerate([*words, "a", "b", "c"])]
    pieces += [("<user>", 0.0, user_defined), ("<unused>", 0.0, unused)]

    def field(number: int, wire: int, data: bytes) -> bytes:
        return bytes([number << 3 | wire]) + data

    def message(number: int, data: bytes) -> bytes:
        size = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
        return field(number, 2, size + data)

    model = b"".join(
        message(1, message(1, text.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([kind])))
        for text, score, kind in pieces
    )
    bpe, byte_fallback = field(3, 0, bytes([2])), b"\x98\x02\x01"  # model_type = 3, byte_fallback = 35
    return model + message(2, bpe + byte_fallback) + message(3, message(1, b"identity"))


def weights(tiny: Tiny) -> Iterator[tuple[str, Array]]:
    """Yield name and float32 values of every tensor."""
    dice = np.random.default_rng(SEED)
    for name, shape in tensor_shapes(tiny):
        # Norms lie around 1, the rest around 0; A_log is positive as in a trained model.
        base = 1.0 if name.endswith("norm.weight") else 0.0
        values = dice.standard_normal(shape, dtype=np.float32) * np.float32(0.05) + np.float32(base)
        yield name, np.abs(values) * 40 if name.endswith("A_log") else values


def tensor_shapes(tiny: Tiny) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor."""
    config = {**tiny.config, **tiny.config.get("text_config", {})}
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    root = tiny.prefix
    yield f"{root}embed_tokens.weight", (vocabulary, width)
    yield f"{root}norm.weight", (width,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (vocabulary, width)
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    for layer, kind in enumerate(kinds[: config["num_hidden_layers"]]):
        yield from _layer(f"{root}layers.{layer}.", config, kind, tiny.fused_experts)
    if tiny.mtp:
        yield "mtp.fc.weight", (width, 2 * width)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            yield f"mtp.{norm}.weight", (width,)
        yield from _layer("mtp.layers.0.", config, "full_attention", tiny.fused_experts)
    if "vision_config" in tiny.config:
        yield "model.visual.patch_embed.proj.weight", (64, 3, 2, 4, 4)
        yield "model.visual.blocks.0.attn.qkv.weight", (192, 64)


def _layer(at: str, config: Mapping[str, Any], kind: str, fused: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = config["hidden_size"]
    yield f"{at}input_layernorm.weight", (width,)
    yield f"{at}post_attention_layernorm.weight", (width,)
    yield from _linear(at, config) if kind == "linear_attention" else _attention(at, config)
    if "num_experts" not in config:
        yield from _mlp(f"{at}mlp.", width, config["intermediate_size"])
        return
    experts, inner = config["num_experts"], config["moe_intermediate_size"]
    yield f"{at}mlp.gate.weight", (experts, width)
    if fused:
        yield f"{at}mlp.experts.gate_up_proj", (experts, 2 * inner, width)
        yield f"{at}mlp.experts.down_proj", (experts, width, inner)
    else:
        for expert in range(experts):
            yield from _mlp(f"{at}mlp.experts.{expert}.", width, inner)
    if shared := config.get("shared_expert_intermediate_size"):
        yield from _mlp(f"{at}mlp.shared_expert.", width, shared)
        yield f"{at}mlp.shared_expert_gate.weight", (1, width)


def _mlp(at: str, width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}gate_proj.weight", (inner, width)
    yield f"{at}up_proj.weight", (inner, width)
    yield f"{at}down_proj.weight", (width, inner)


def _attention(at: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or width // heads
    # The Qwen3-Next family keeps an output gate in the rows of q_proj.
    doubled = 2 if "linear_num_key_heads" in config else 1
    yield f"{at}self_attn.q_proj.weight", (heads * size * doubled, width)
    yield f"{at}self_attn.k_proj.weight", (kv_heads * size, width)
    yield f"{at}self_attn.v_proj.weight", (kv_heads * size, width)
    yield f"{at}self_attn.o_proj.weight", (width, heads * size)
    if config["model_type"] != "llama":
        yield f"{at}self_attn.q_norm.weight", (size,)
        yield f"{at}self_attn.k_norm.weight", (size,)


def _linear(at: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = config["hidden_size"]
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_rows, value_rows = keys * config["linear_key_head_dim"], values * config["linear_value_head_dim"]
    if config["model_type"] == "qwen3_next":
        yield f"{at}linear_attn.in_proj_qkvz.weight", (2 * key_rows + 2 * value_rows, width)
        yield f"{at}linear_attn.in_proj_ba.weight", (2 * values, width)
    else:
        yield f"{at}linear_attn.in_proj_qkv.weight", (2 * key_rows + value_rows, width)
        yield f"{at}linear_attn.in_proj_z.weight", (value_rows, width)
        yield f"{at}linear_attn.in_proj_b.weight", (values, width)
        yield f"{at}linear_attn.in_proj_a.weight", (values, width)
    yield f"{at}linear_attn.conv1d.weight", (2 * key_rows + value_rows, 1, config["linear_conv_kernel_dim"])
    yield f"{at}linear_attn.dt_bias", (values,)
    yield f"{at}linear_attn.A_log", (values,)
    yield f"{at}linear_attn.norm.weight", (config["linear_value_head_dim"],)
    yield f"{at}linear_attn.out_proj.weight", (width, value_rows)


def encode(values: Array, dtype: str) -> bytes:
    """Return float32 values as the bytes of a safetensors dtype."""
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    return bytes(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes())


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> None:
    """Write a safetensors file of (dtype, shape, bytes) by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, _, data in tensors.values())


def write_weights(folder: Path, tensors: Mapping[str, Array], dtype: str, shards: int) -> None:
    """Write tensors as one file, or as shards with their index."""
    encoded = {name: (dtype, values.shape, encode(values, dtype)) for name, values in tensors.items()}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", encoded)
        return
    names = list(encoded)
    weight_map = {}
    for shard in range(shards):
        part = names[len(names) * shard // shards : len(names) * (shard + 1) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        write_safetensors(folder / file, {name: encoded[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    total = sum(len(data) for _, _, data in encoded.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


if __name__ == "__main__":
    write_model(sys.argv[1], Path(sys.argv[2]))
