"""The variants of tiny checkpoints: configuration as in config.json, tokenizer, and what stands beside the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.tiny_configs import (
    BYTE_LEVEL,
    CARD,
    FLASH,
    FP8,
    GENERATION,
    INT4,
    JUDGING,
    LLAMA3,
    LLAMA3_ADDED,
    LLAMA3_POST,
    LLAMA3_ROPE,
    LLAMA3_SPLIT,
    LLAMA3_TOKENIZER,
    PREPROCESSOR,
    QWEN2,
    QWEN2_MOE,
    QWEN2_SPLIT,
    QWEN3,
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_MOE,
    QWEN3_NEXT,
    QWEN3_VL,
    QWEN3_VL_MOE,
    QWEN35_SPLIT,
    QWEN_ADDED,
    QWEN_TOKENIZER,
    TOWER,
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


def _qwen(config: Mapping[str, Any], **more: Any) -> Tiny:
    options = {"tokenizer_config": QWEN_TOKENIZER, "post_processor": BYTE_LEVEL, **more}
    return Tiny(config, **options)


def _llama3(config: Mapping[str, Any], prefix_space: bool | None = None, **more: Any) -> Tiny:
    settings = {} if prefix_space is None else {"add_prefix_space": prefix_space}
    return Tiny(
        config,
        split=LLAMA3_SPLIT,
        added=LLAMA3_ADDED,
        tokenizer_config={**LLAMA3_TOKENIZER, **settings},
        post_processor=LLAMA3_POST,
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
    files = {"preprocessor_config.json": PREPROCESSOR, "generation_config.json": GENERATION}
    return _qwen(config, tower=True, prefix="model.language_model.", files=files, **more)


MODELS: dict[str, Tiny] = {
    "qwen3": _qwen(QWEN3, shards=2),
    "qwen3-f16": _qwen({**QWEN3, "tie_word_embeddings": False}, dtype="F16"),
    "qwen3-f32": _qwen({**QWEN3, "num_hidden_layers": 1}, dtype="F32"),
    "qwen3-yarn-4B-v1.5-chat": _qwen(
        {
            **QWEN3,
            "num_hidden_layers": 1,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        files={"README.md": CARD, "generation_config.json": GENERATION, "chat_template.jinja": "{{ messages }}"},
        tokenizer_config={key: value for key, value in QWEN_TOKENIZER.items() if key != "chat_template"},
    ),
    "qwen3moe": _qwen(QWEN3_MOE, shards=3),
    "qwen3-int4": _qwen(
        {**QWEN3, "num_hidden_layers": 1, "quantization_config": INT4, "tie_word_embeddings": False}, int4="zeros"
    ),
    "qwen3moe-int4": _qwen({**QWEN3_MOE, "num_hidden_layers": 2, "quantization_config": INT4}, shards=2, int4="plain"),
    "qwen3moe-fused": _qwen({**QWEN3_MOE, "num_hidden_layers": 2}, fused_experts=True),
    "llama3": _llama3(LLAMA3, shards=2),
    "llama3-rope": _llama3({**LLAMA3, "num_hidden_layers": 1, "head_dim": 64, "rope_scaling": LLAMA3_ROPE}),
    "llama-tied": _llama3({**LLAMA3, "num_hidden_layers": 1, "tie_word_embeddings": True}, dtype="F16"),
    "llama2": Tiny(
        {**LLAMA3, "num_hidden_layers": 1, "vocab_size": 320, "bos_token_id": 1, "eos_token_id": 2},
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
    "qwen3next": _qwen(QWEN3_NEXT, mtp=True),
    "qwen35": _qwen(QWEN3_5, split=QWEN35_SPLIT, mtp=True),
    "qwen35-vision": _seeing(
        "Qwen3_5ForConditionalGeneration", "qwen3_5", QWEN3_5, TOWER, split=QWEN35_SPLIT, mtp=True
    ),
    "qwen35-merged": _qwen(QWEN3_5, split=QWEN35_SPLIT, mtp=True, merged_mtp=True),
    "qwen35-fp8": _qwen({**QWEN3_5, "quantization_config": FP8}, split=QWEN35_SPLIT, mtp=True, fp8=True),
    "qwen35moe-fp8": _qwen(
        {**QWEN3_5_MOE, "quantization_config": FP8}, split=QWEN35_SPLIT, mtp=True, fp8=True, fused_experts=True
    ),
    "qwen3vl": _seeing(
        "Qwen3VLForConditionalGeneration", "qwen3_vl", QWEN3_VL, {**TOWER, "deepstack_visual_indexes": [0, 2]}
    ),
    "qwen3vlmoe": _seeing(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe",
        QWEN3_VL_MOE,
        {**TOWER, "deepstack_visual_indexes": [1]},
        fused_experts=True,
    ),
    "qwen2": _qwen({**QWEN2, "tie_word_embeddings": True}, shards=2),
    "qwen2moe": _qwen(QWEN2_MOE),
    "qwen25vl": _seeing(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        {**QWEN2, "rope_scaling": {"type": "mrope", "mrope_section": [16, 8, 8]}},
        {**TOWER, "fullatt_block_indexes": [1], "window_size": 32},
    ),
    "smollm3": _llama3(
        {
            **LLAMA3,
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "no_rope_layers": [1, 1, 1],
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
            "pad_token_id": 4097,
        }
    ),
    "mistral": _llama3(
        {**LLAMA3, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 4096},
        prefix_space=False,
    ),
    "qwen3-dynamic": _qwen({**QWEN3, "num_hidden_layers": 1, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "qwen3-embedding": _qwen(
        {**QWEN3, "num_hidden_layers": 1},
        prefix="",
        files={
            "modules.json": '[{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]',
            "1_Pooling/config.json": '{"word_embedding_dimension": 256, "pooling_mode_lasttoken": true}',
        },
    ),
    "qwen3-reranker-tied": _qwen({**QWEN3, "num_hidden_layers": 1}, added=JUDGING),
    "qwen3-reranker": _qwen({**QWEN3, "num_hidden_layers": 1, "tie_word_embeddings": False}, added=JUDGING),
    "flash": _seeing(
        "Qwen4ExpForConditionalGeneration", "qwen4_exp", FLASH, TOWER, split=QWEN35_SPLIT, mtp=True, shards=3
    ),
    "flash-text": _qwen(
        {
            **FLASH,
            "split_ngram_parts": 1,
            "mtp_num_hidden_layers": 0,
            "ple_embed_dim": 256,
            "eos_token_id": [4098, 4096],
        },
        split=QWEN35_SPLIT,
        fused_experts=True,
    ),
    "flash-plain": _qwen({**FLASH, "ple_layer_ids": []}, split=QWEN35_SPLIT, mtp=True, dtype="F16"),
    "flash-fp8": _seeing(
        "Qwen4ExpForConditionalGeneration",
        "qwen4_exp",
        {**FLASH, "quantization_config": FP8, "ple_layer_ids": []},
        TOWER,
        split=QWEN35_SPLIT,
        mtp=True,
        fp8=True,
    ),
    "qwen35moe": _qwen(QWEN3_5_MOE, split=QWEN35_SPLIT, mtp=True, fused_experts=True),
}
