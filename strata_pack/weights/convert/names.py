"""Maps tensor names to GGUF: the table of the gguf package, and the names that its version 0.19 lacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

import gguf

from strata_pack.weights.convert.arch import Architecture
from strata_pack.weights.gguf.tensor_info import MAX_TENSOR_NAME

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")

_MTP: Mapping[str, str] = {
    "eh_proj": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head",
    "shared_head.norm": "nextn.shared_head_norm",
}
_HYPER: Mapping[str, str] = {
    "attn_hyper_connection.hc_norm": "hc_attn_norm",
    "attn_hyper_connection.input_mix_weight_down": "hc_attn_down",
    "attn_hyper_connection.input_mix_weight_up": "hc_attn_up",
    "attn_hyper_connection.block_inject_weight": "hc_attn_inject",
    "mlp_hyper_connection.hc_norm": "hc_ffn_norm",
    "mlp_hyper_connection.input_mix_weight_down": "hc_ffn_down",
    "mlp_hyper_connection.input_mix_weight_up": "hc_ffn_up",
    "mlp_hyper_connection.block_inject_weight": "hc_ffn_inject",
    "nextn_hc_head.hc_norm": "nextn.hc_head_norm",
    "nextn_hc_head.input_mix_weight_down": "nextn.hc_head_down",
    "nextn_hc_head.input_mix_weight_up": "nextn.hc_head_up",
    "self_attn.indexer.q_proj": "indexer.q_proj",
    "self_attn.indexer.k_proj": "indexer.k_proj",
    "self_attn.indexer.q_layernorm": "indexer.q_norm",
    "self_attn.indexer.k_layernorm": "indexer.k_norm",
    "ple.key_proj": "ple_key",
    "ple.value_proj": "ple_value",
    "ple.norm_key": "ple_norm_key",
    "ple.norm_query": "ple_norm_query",
    "ple.norm_conv": "ple_norm_conv",
    "ple.conv1d": "ple_conv1d",
}
_HYPER_TOP: Mapping[str, str] = {
    "model.hyper_connection_mixer.hc_norm.weight": "output_hc_norm.weight",
    "model.hyper_connection_mixer.input_mix_weight_down.weight": "output_hc_down.weight",
    "model.hyper_connection_mixer.input_mix_weight_up.weight": "output_hc_up.weight",
}
_NORMS = (".input_layernorm.", ".post_attention_layernorm.", "model.norm.")

FINAL = "gguf:"
"""Prefix of a view's name that is already a GGUF name."""


class Names:
    """The GGUF names of one architecture's tensors, for a model with ``blocks`` blocks, including MTP."""

    def __init__(self, architecture: Architecture, blocks: int) -> None:
        self._architecture = architecture
        self._blocks = blocks
        self._map = gguf.get_tensor_name_map(architecture.gguf, blocks)

    def find(self, name: str) -> str | None:
        """Return the GGUF name for a tensor's Hugging Face name, None for a tensor that the architecture lacks."""
        found = name.removeprefix(FINAL) if name.startswith(FINAL) else self._own(name)
        if found is None and not (self._architecture.hyper and any(norm in name for norm in _NORMS)):
            found = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        return found if found is not None and len(found) <= MAX_TENSOR_NAME else None

    def _own(self, name: str) -> str | None:
        if self._architecture.hyper and name in _HYPER_TOP:
            return _HYPER_TOP[name]
        match = _LAYER.fullmatch(name)
        if match is None or int(match[1]) >= self._blocks:
            return None
        part = _MTP.get(match[2]) if self._architecture.linear else None
        if part is None and self._architecture.hyper:
            part = _HYPER.get(match[2])
        return None if part is None else f"blk.{match[1]}.{part}.{match[3]}"
