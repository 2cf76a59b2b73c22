"""Lists the supported model classes: GGUF architecture, defaults, rules.

A class that is not in the table is refused by name. Every entry is tested by whole-file comparison with llama.cpp's
converter. Defaults are those of the class's configuration in transformers, for keys that a config.json may omit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf import MODEL_ARCH

from strata_pack.errors import BadInput
from strata_pack.files import read_json_object
from strata_pack.weights.convert import defaults
from strata_pack.weights.convert.config import Config, architecture_name, effective, require


@dataclass(frozen=True)
class Architecture:
    """One family: its GGUF architecture, and the rules for its tensors and parameters.

    ``gguf`` is the architecture whose table of names is used, because the gguf package may lack the family's own.
    ``moe``: experts are stacked. ``rotate``: rows of Q and K are permuted from the order of transformers to ggml's.
    ``linear``: linear attention (Qwen3-Next and its successors); ``tiled``: its value heads are tiled by key head.
    ``hyper``: hyper-connections in place of norms, an indexer and n-gram embeddings (Qwen3.8-Flash-Next).
    ``seeing``: layers of the vision tower feed into the model (deepstack); the header has their number.
    ``transposed``: fused experts are stored input first. ``head_norms``: Q and K have their own norms.
    ``derives_head_dim``: the class computes a missing ``head_dim``, so the GGUF always has it.
    """

    name: str
    gguf: MODEL_ARCH
    classes: tuple[str, ...]
    defaults: Mapping[str, Any]
    moe: bool = False
    rotate: bool = False
    linear: bool = False
    tiled: bool = False
    hyper: bool = False
    seeing: bool = False
    transposed: bool = False
    head_norms: bool = True
    derives_head_dim: bool = False


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("qwen3", MODEL_ARCH.QWEN3, ("Qwen3ForCausalLM",), defaults.QWEN3),
    Architecture("qwen3moe", MODEL_ARCH.QWEN3MOE, ("Qwen3MoeForCausalLM",), defaults.QWEN3_MOE, moe=True),
    Architecture(
        "llama",
        MODEL_ARCH.LLAMA,
        ("LlamaForCausalLM",),
        defaults.LLAMA,
        rotate=True,
        head_norms=False,
        derives_head_dim=True,
    ),
    Architecture(
        "llama",
        MODEL_ARCH.LLAMA,
        ("MistralForCausalLM",),
        defaults.MISTRAL,
        rotate=True,
        head_norms=False,
    ),
    Architecture(
        "smollm3", MODEL_ARCH.SMOLLM3, ("SmolLM3ForCausalLM",), defaults.SMOLLM3, rotate=True, head_norms=False
    ),
    Architecture("qwen2", MODEL_ARCH.QWEN2, ("Qwen2ForCausalLM",), defaults.QWEN2, head_norms=False),
    Architecture(
        "qwen2moe", MODEL_ARCH.QWEN2MOE, ("Qwen2MoeForCausalLM",), defaults.QWEN2_MOE, moe=True, head_norms=False
    ),
    Architecture(
        "qwen2vl",
        MODEL_ARCH.QWEN2VL,
        ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        defaults.QWEN2,
        head_norms=False,
    ),
    Architecture("qwen3vl", MODEL_ARCH.QWEN3VL, ("Qwen3VLForConditionalGeneration",), defaults.QWEN3_VL, seeing=True),
    Architecture(
        "qwen3vlmoe",
        MODEL_ARCH.QWEN3VLMOE,
        ("Qwen3VLMoeForConditionalGeneration",),
        defaults.QWEN3_VL_MOE,
        moe=True,
        seeing=True,
        transposed=True,
        derives_head_dim=True,
    ),
    Architecture(
        "qwen3next", MODEL_ARCH.QWEN3NEXT, ("Qwen3NextForCausalLM",), defaults.QWEN3_NEXT, moe=True, linear=True
    ),
    Architecture(
        "qwen35",
        MODEL_ARCH.QWEN35,
        ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
        defaults.QWEN3_5,
        linear=True,
        tiled=True,
    ),
    Architecture(
        "qwen35moe",
        MODEL_ARCH.QWEN35MOE,
        ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        defaults.QWEN3_5_MOE,
        moe=True,
        linear=True,
        tiled=True,
    ),
    Architecture(
        "qwen4exp",
        MODEL_ARCH.QWEN35MOE,
        ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"),
        {},
        moe=True,
        linear=True,
        tiled=True,
        hyper=True,
    ),
)

_BY_CLASS = {name: architecture for architecture in ARCHITECTURES for name in architecture.classes}
_CODE_LLAMA_VOCABULARY = 32016
CARD_LIMIT = 8 << 20
_NEEDS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_LINEAR_NEEDS = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
_HYPER_NEEDS = (
    "hc_count",
    "hc_lowrank",
    "indexer_n_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)
_DERIVED = {"draft_vocab_size": "a draft model (EAGLE-3)", "dflash_config": "a draft model (DFlash)"}
_DRAFTS = {"eagle": "a draft model (EAGLE-3)", "dflash": "a draft model (DFlash)", "dspark": "a draft model (DSpark)"}


def supported_classes() -> tuple[str, ...]:
    """Return the names of all classes that can be converted."""
    return tuple(_BY_CLASS)


def is_known(folder: Path) -> bool:
    """Return whether the class of a checkpoint is supported; raises ``BadInput`` if config.json names no class."""
    path = folder / "config.json"
    return architecture_name(read_json_object(path), path) in _BY_CLASS


def recognise(raw: Mapping[str, Any], where: Path) -> tuple[Architecture, Config]:
    """Return the architecture and completed configuration of a config.json.

    ``BadInput``, with the name, for an unsupported class, for draft models, and for missing or impossible sizes.
    """
    name = architecture_name(raw, where)
    for part, kind in _DRAFTS.items():
        if part in name.lower():
            raise BadInput(f"is {kind}, which is not supported", where=where)
    architecture = _BY_CLASS.get(name)
    if architecture is None:
        raise BadInput(
            f"the architecture {name} is not supported",
            where=where,
            remedy="try llama.cpp's own converter (`--converter reference`), use a GGUF of "
            f"the model; supported are {', '.join(_BY_CLASS)}",
        )
    for key, kind in _DERIVED.items():
        if key in raw:
            raise BadInput(f"is {kind}, which is not supported", where=where)
    config = effective(raw, architecture.defaults, where)
    if architecture.derives_head_dim and config.get("head_dim") is None:
        config = replace(config, values={**config.values, "head_dim": config.head_dim})
    require(config, _NEEDS)
    _refuse_relatives(architecture, config, where)
    if architecture.moe:
        require(config, ("num_experts_per_tok", "moe_intermediate_size"))
        config.integer("num_local_experts", "num_experts")
    if architecture.linear:
        require(config, _LINEAR_NEEDS)
    if architecture.hyper:
        require(config, _HYPER_NEEDS)
    return architecture, config


def _refuse_relatives(architecture: Architecture, config: Config, where: Path) -> None:
    """Refuse models with a supported class's name that need further steps of llama.cpp's converter."""
    if architecture.name == "llama" and config.get("vocab_size") == _CODE_LLAMA_VOCABULARY:
        problem = "is CodeLlama, whose infill vocabulary is not supported"
        raise BadInput(problem, where=where.parent, remedy="use a GGUF version of the model")
