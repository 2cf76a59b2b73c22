"""Parts of the variants of tiny checkpoints: config.json of each family, tokenizers, files beside the weights."""

from __future__ import annotations

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


QWEN3 = {
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
QWEN3_MOE = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
LLAMA3 = {
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
LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "partial_rotary_factor": 0.25,
}
QWEN3_NEXT = {
    **QWEN3_MOE,
    **LINEAR,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "shared_expert_intermediate_size": 64,
    "mlp_only_layers": [],
}
ROPE_35 = {
    "rope_type": "default",
    "rope_theta": 10000000,
    "mrope_interleaved": True,
    "mrope_section": [3, 3, 2],
    "partial_rotary_factor": 0.25,
}
QWEN3_5 = {
    **{key: value for key, value in QWEN3.items() if key not in ("rope_theta", "rope_scaling")},
    **LINEAR,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "rope_parameters": ROPE_35,
    "attn_output_gate": True,
    "mtp_num_hidden_layers": 1,
    "tie_word_embeddings": False,
}
QWEN3_5_MOE = {
    **{key: value for key, value in QWEN3_5.items() if key != "intermediate_size"},
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "model_type": "qwen3_5_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
TOWER = {
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
QWEN3_VL = {
    **{key: value for key, value in QWEN3.items() if key not in ("rope_theta", "rope_scaling")},
    "architectures": None,
    "model_type": "qwen3_vl_text",
    "rope_theta": 5000000,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [12, 10, 10], "rope_type": "default"},
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
}
QWEN3_VL_MOE = {
    **QWEN3_VL,
    "model_type": "qwen3_vl_moe_text",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
QWEN2 = {
    **{key: value for key, value in QWEN3.items() if key != "head_dim"},
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 2,
}
QWEN2_MOE = {
    **QWEN2,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
}
JUDGING = (*QWEN_ADDED, ("yes", False), ("no", False), ("|", False))
FLASH = {
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
FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
INT4 = {
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
PREPROCESSOR = """{
  "image_mean": [0.5, 0.5, 0.5],
  "image_std": [0.5, 0.25, 0.5],
  "image_processor_type": "Qwen2VLImageProcessorFast",
  "merge_size": 2,
  "patch_size": 8,
  "temporal_patch_size": 2
}
"""
QWEN_TOKENIZER = {
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
LLAMA3_TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|begin_of_text|>",
    "eos_token": "<|eot_id|>",
    "clean_up_tokenization_spaces": True,
    "model_max_length": 131072,
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
LLAMA3_POST = {
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
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
CARD = """---
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
GENERATION = '{"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "do_sample": true}'
