"""The variants of tiny checkpoints: configuration as in config.json, tokenizer, and what stands beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
    merged_mtp: bool = False
    """The MTP layer is stored as one more layer, with the names that merges give it."""
    fp8: bool = False
    """Matrices are stored in 8 bits with a scale for each block; the n-gram table has one for all."""
    int4: str = ""
    """Matrices are stored as packed integers of four bits: "plain" or with "zeros"."""
    tower: bool = False
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
_TOWER = {
    "model_type": "qwen3_5",
    "depth": 3,
    "hidden_size": 96,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 176,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 256,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [],
}
_QWEN3_VL = {
    **{key: value for key, value in _QWEN3.items() if key not in ("rope_theta", "rope_scaling")},
    "architectures": None,
    "model_type": "qwen3_vl_text",
    "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default"},
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
}
_QWEN3_VL_MOE = {
    **_QWEN3_VL,
    "model_type": "qwen3_vl_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
_QWEN2 = {
    **{key: value for key, value in _QWEN3.items() if key != "head_dim"},
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 2,
}
_QWEN2_MOE = {
    **_QWEN2,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}
_JUDGING = (*QWEN_ADDED, ("yes", False), ("no", False), ("|", False))
_FLASH = {
    "architectures": ["Qwen4ExpForCausalLM"],
    "model_type": "qwen4_exp_text",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "bos_token_id": 4096,
    "dtype": "bfloat16",
    "eos_token_id": 4098,
    "full_attention_interval": 4,
    "hc_count": 4,
    "hc_lowrank": 32,
    "head_dim": 64,
    "heads_per_ngram": 4,
    "hidden_act": "silu",
    "hidden_size": 128,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
    "indexer_head_dim": 32,
    "indexer_kv_heads": 1,
    "indexer_n_heads": 2,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "make_ngram_vocab_size_divisible_by": 128,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 96,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "ngram_size": 3,
    "ngram_vocab_size_base": 200,
    "num_attention_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "output_gate_type": "sigmoid",
    "ple_conv_kernel_size": 4,
    "ple_embed_dim": 128,
    "ple_layer_ids": [2],
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "shared_expert_intermediate_size": 96,
    "split_ngram_parts": 12,
    "tie_word_embeddings": False,
    "vocab_size": 4160,
}
_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
_INT4 = {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"},
        }
    },
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
_PREPROCESSOR = """{
  "image_mean": [0.5, 0.5, 0.5],
  "image_std": [0.5, 0.25, 0.5],
  "image_processor_type": "Qwen2VLImageProcessorFast",
  "merge_size": 2,
  "patch_size": 8,
  "temporal_patch_size": 2
}
"""
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


def _llama3(config: Mapping[str, Any], prefix_space: bool | None = None, **more: Any) -> Tiny:
    settings = {} if prefix_space is None else {"add_prefix_space": prefix_space}
    return Tiny(
        config,
        split=LLAMA3_SPLIT,
        added=LLAMA3_ADDED,
        tokenizer_config={**_LLAMA3_TOKENIZER, **settings},
        post_processor=_LLAMA3_POST,
        **more,
    )


def _seeing(name: str, kind: str, text: Mapping[str, Any], vision: Mapping[str, Any], **more: Any) -> Tiny:
    """Return a variant with a tower, whose text model is configured apart as in the released files."""
    quantized = {key: value for key, value in text.items() if key == "quantization_config"}
    config = {
        "architectures": [name],
        "image_token_id": 4099,
        "model_type": kind,
        **quantized,
        "text_config": {k: v for k, v in text.items() if k not in ("architectures", "quantization_config")},
        "tie_word_embeddings": False,
        "vision_config": {**vision, "model_type": kind, "out_hidden_size": text["hidden_size"]},
    }
    files = {"preprocessor_config.json": _PREPROCESSOR, "generation_config.json": _GENERATION}
    return _qwen(config, tower=True, prefix="model.language_model.", files=files, **more)


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
    "qwen3-int4": _qwen(
        {**_QWEN3, "num_hidden_layers": 1, "quantization_config": _INT4, "tie_word_embeddings": False}, int4="zeros"
    ),
    "qwen3moe-int4": _qwen(
        {**_QWEN3_MOE, "num_hidden_layers": 2, "quantization_config": _INT4}, shards=2, int4="plain"
    ),
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
    "qwen35-vision": _seeing(
        "Qwen3_5ForConditionalGeneration", "qwen3_5", _QWEN3_5, _TOWER, split=QWEN35_SPLIT, mtp=True
    ),
    "qwen35-merged": _qwen(_QWEN3_5, split=QWEN35_SPLIT, mtp=True, merged_mtp=True),
    "qwen35-fp8": _qwen({**_QWEN3_5, "quantization_config": _FP8}, split=QWEN35_SPLIT, mtp=True, fp8=True),
    "qwen35moe-fp8": _qwen(
        {**_QWEN3_5_MOE, "quantization_config": _FP8}, split=QWEN35_SPLIT, mtp=True, fp8=True, fused_experts=True
    ),
    "qwen3vl": _seeing(
        "Qwen3VLForConditionalGeneration", "qwen3_vl", _QWEN3_VL, {**_TOWER, "deepstack_visual_indexes": [0, 2]}
    ),
    "qwen3vlmoe": _seeing(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        _QWEN3_VL_MOE,
        {**_TOWER, "deepstack_visual_indexes": [1]},
        fused_experts=True,
    ),
    "qwen2": _qwen({**_QWEN2, "tie_word_embeddings": True}, shards=2),
    "qwen2moe": _qwen(_QWEN2_MOE),
    "qwen25vl": _seeing(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        {**_QWEN2, "rope_scaling": {"type": "mrope", "mrope_section": [16, 8, 8]}},
        {**_TOWER, "fullatt_block_indexes": [1], "window_size": 32},
    ),
    "smollm3": _llama3(
        {
            **_LLAMA3,
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "no_rope_layers": [1, 1, 1],
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
            "pad_token_id": 4097,
        }
    ),
    "mistral": _llama3(
        {**_LLAMA3, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096},
        prefix_space=False,
    ),
    "qwen3-dynamic": _qwen({**_QWEN3, "num_hidden_layers": 1, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "qwen3-embedding": _qwen(
        {**_QWEN3, "num_hidden_layers": 1},
        prefix="",
        files={
            "modules.json": '[{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]',
            "1_Pooling/config.json": '{"word_embedding_dimension": 256, "pooling_mode_lasttoken": true}',
        },
    ),
    "qwen3-reranker-tied": _qwen({**_QWEN3, "num_hidden_layers": 1}, added=_JUDGING),
    "qwen3-reranker": _qwen({**_QWEN3, "num_hidden_layers": 1, "tie_word_embeddings": False}, added=_JUDGING),
    "flash": _seeing(
        "Qwen4ExpForConditionalGeneration", "qwen4_exp", _FLASH, _TOWER, split=QWEN35_SPLIT, mtp=True, shards=3
    ),
    "flash-text": _qwen(
        {
            **_FLASH,
            "split_ngram_parts": 1,
            "mtp_num_hidden_layers": 0,
            "ple_embed_dim": 256,
            "eos_token_id": [4098, 4096],
        },
        split=QWEN35_SPLIT,
        fused_experts=True,
    ),
    "flash-plain": _qwen({**_FLASH, "ple_layer_ids": []}, split=QWEN35_SPLIT, mtp=True, dtype="F16"),
    "flash-fp8": _seeing(
        "Qwen4ExpForConditionalGeneration",
        "qwen4_exp",
        {**_FLASH, "quantization_config": _FP8, "ple_layer_ids": []},
        _TOWER,
        split=QWEN35_SPLIT,
        mtp=True,
        fp8=True,
    ),
    "qwen35moe": _qwen(_QWEN3_5_MOE, split=QWEN35_SPLIT, mtp=True, fused_experts=True),
}
