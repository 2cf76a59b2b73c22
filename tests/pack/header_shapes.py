"""Headers of real models, made from their public configurations: names, shapes and numbers as converters write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gguf import GGMLQuantizationType as Q
from gguf import GGUFValueType as V

from strata_pack.weights.gguf.file import MetaValue, TensorInfo


@dataclass(frozen=True)
class Model:
    """One public model. ``kind`` says how its layers are built."""

    arch: str
    layers: int
    width: int
    heads: int
    kv: int
    ffn: int
    vocab: int
    head: int | None = None
    experts: int = 0
    expert_ffn: int = 0
    dense: int = 0
    """Leading layers without experts."""
    shared_ffn: int = 0
    extra: tuple[str, ...] = ()
    """More norms and biases of every layer."""
    kind: str = "plain"
    tied: bool = False
    numbers: dict[str, Any] = field(default_factory=dict)


NORMS = ("attn_q_norm.weight", "attn_k_norm.weight")
BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
GEMMA = ("post_attention_norm.weight", "post_ffw_norm.weight")

MODELS: dict[str, Model] = {
    "Llama-3.2-1B": Model("llama", 16, 2048, 32, 8, 8192, 128256, tied=True),
    "Llama-3.1-8B": Model("llama", 32, 4096, 32, 8, 14336, 128256),
    "Llama-3.1-70B": Model("llama", 80, 8192, 64, 8, 28672, 128256),
    "TinyLlama-1.1B": Model("llama", 22, 2048, 32, 4, 5632, 32000),
    "SmolLM2-135M": Model("llama", 30, 576, 9, 3, 1536, 49152, tied=True),
    "Mistral-7B-v0.3": Model("llama", 32, 4096, 32, 8, 14336, 32768),
    "Mistral-Nemo-12B": Model("llama", 40, 5120, 32, 8, 14336, 131072, head=128),
    "Mixtral-8x7B": Model("llama", 32, 4096, 32, 8, 14336, 32000, experts=8, expert_ffn=14336),
    "Qwen2.5-0.5B": Model("qwen2", 24, 896, 14, 2, 4864, 151936, extra=BIASES, tied=True),
    "Qwen2.5-7B": Model("qwen2", 28, 3584, 28, 4, 18944, 152064, extra=BIASES),
    "Qwen2.5-72B": Model("qwen2", 80, 8192, 64, 8, 29568, 152064, extra=BIASES),
    "Qwen1.5-MoE-A2.7B": Model(
        "qwen2moe", 24, 2048, 16, 16, 5632, 151936, experts=60, expert_ffn=1408, shared_ffn=5632, extra=BIASES
    ),
    "Qwen3-0.6B": Model("qwen3", 28, 1024, 16, 8, 3072, 151936, head=128, extra=NORMS, tied=True),
    "Qwen3-8B": Model("qwen3", 36, 4096, 32, 8, 12288, 151936, head=128, extra=NORMS),
    "Qwen3-32B": Model("qwen3", 64, 5120, 64, 8, 25600, 151936, head=128, extra=NORMS),
    "Qwen3-30B-A3B": Model(
        "qwen3moe", 48, 2048, 32, 4, 6144, 151936, head=128, experts=128, expert_ffn=768, extra=NORMS
    ),
    "Qwen3-235B-A22B": Model(
        "qwen3moe", 94, 4096, 64, 4, 12288, 151936, head=128, experts=128, expert_ffn=1536, extra=NORMS
    ),
    "Gemma-2-2B": Model("gemma2", 26, 2304, 8, 4, 9216, 256000, head=256, extra=GEMMA, tied=True),
    "Gemma-3-4B": Model("gemma3", 34, 2560, 8, 4, 10240, 262144, head=256, extra=(*GEMMA, *NORMS), tied=True),
    "OLMo-2-7B": Model("olmo2", 32, 4096, 32, 32, 11008, 100352, kind="post-norm", extra=(*GEMMA, *NORMS)),
    "Phi-3-mini": Model("phi3", 32, 3072, 32, 32, 8192, 32064, kind="fused"),
    "DeepSeek-V2-Lite": Model(
        "deepseek2", 27, 2048, 16, 16, 10944, 102400, experts=64, expert_ffn=1408, dense=1, shared_ffn=2816, kind="mla"
    ),
    "GLM-4.5-Air": Model(
        "glm4moe", 47, 4096, 96, 8, 10944, 151552, head=128, experts=128, expert_ffn=1408, dense=1, shared_ffn=1408,
        extra=("post_attention_norm.weight", *BIASES), kind="draft",
    ),
    "Qwen3-Next-80B-A3B": Model(
        "qwen3next", 48, 2048, 16, 2, 5120, 151936, head=256, experts=512, expert_ffn=512, shared_ffn=512, kind="hybrid"
    ),
    "gpt-oss-20b": Model(
        "gpt-oss", 24, 2880, 64, 8, 2880, 201088, head=64, experts=32, expert_ffn=2880,
        extra=("attn_sinks.weight", *BIASES), kind="gpt-oss",
    ),
}  # fmt: skip


def header(model: Model) -> tuple[dict[str, MetaValue], list[TensorInfo]]:
    """Return metadata and tensor directory of the model as BF16."""
    head = model.head or model.width // model.heads
    numbers: dict[str, int] = {
        "block_count": model.layers, "context_length": 4096, "embedding_length": model.width,
        "feed_forward_length": model.ffn, "attention.head_count": model.heads, "attention.head_count_kv": model.kv,
    }  # fmt: skip
    if model.head is not None:
        numbers |= {"attention.key_length": head, "attention.value_length": head}
    if model.experts:
        numbers |= {
            "expert_count": model.experts,
            "expert_used_count": 2,
            "expert_feed_forward_length": model.expert_ffn,
        }
    values = {"general.architecture": MetaValue.string(model.arch), "general.file_type": MetaValue.uint32(32)}
    values |= {f"{model.arch}.{key}": MetaValue.uint32(number) for key, number in numbers.items()}
    values[f"{model.arch}.rope.freq_base"] = MetaValue(V.FLOAT32, 1e6)
    values[f"{model.arch}.attention.layer_norm_rms_epsilon"] = MetaValue(V.FLOAT32, 1e-6)
    values["tokenizer.ggml.model"] = MetaValue.string("gpt2")
    values["tokenizer.ggml.tokens"] = MetaValue.array(V.STRING, [str(n) for n in range(model.vocab)])
    values["tokenizer.ggml.token_type"] = MetaValue.array(V.INT32, [1] * model.vocab)
    values["tokenizer.ggml.merges"] = MetaValue.array(V.STRING, ["1 2"])
    for key in ("bos", "eos", "padding"):
        values[f"tokenizer.ggml.{key}_token_id"] = MetaValue.uint32(model.vocab - 1)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (model.width, model.vocab),
        "output_norm.weight": (model.width,),
    }
    if not model.tied:
        shapes["output.weight"] = (model.width, model.vocab)
    for layer in range(model.layers):
        parts = {**_attention(model, head, layer), **_feed_forward(model, layer)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    tensors, offset = [], 0
    for name, shape in shapes.items():
        tensors.append(TensorInfo.make(name, shape, Q.F32 if len(shape) == 1 else Q.BF16, offset))
        offset += tensors[-1].nbytes
    return values, tensors


def _attention(model: Model, head: int, layer: int) -> dict[str, tuple[int, ...]]:
    width, queries, keys = model.width, model.heads * head, model.kv * head
    parts: dict[str, tuple[int, ...]] = {"attn_norm.weight": (width,)}
    if model.kind == "hybrid" and (layer + 1) % 4:
        return parts | {
            "attn_qkv.weight": (width, 8192), "attn_gate.weight": (width, 4096), "ssm_a": (32,), "ssm_dt.bias": (32,),
            "ssm_conv1d.weight": (4, 8192), "ssm_ba.weight": (width, 64), "ssm_norm.weight": (128,),
            "ssm_out.weight": (4096, width),
        }  # fmt: skip
    if model.kind == "fused":
        return parts | {"attn_qkv.weight": (width, queries + 2 * keys), "attn_output.weight": (queries, width)}
    if model.kind == "mla":
        return parts | {
            "attn_q.weight": (width, 3072), "attn_kv_a_mqa.weight": (width, 576), "attn_kv_a_norm.weight": (512,),
            "attn_k_b.weight": (128, 512, 16), "attn_v_b.weight": (512, 128, 16), "attn_output.weight": (2048, width),
        }  # fmt: skip
    gate = 2 if model.kind == "hybrid" else 1
    parts |= {
        "attn_q.weight": (width, gate * queries), "attn_k.weight": (width, keys), "attn_v.weight": (width, keys),
        "attn_output.weight": (queries, width),
    }  # fmt: skip
    if model.kind == "post-norm":
        del parts["attn_norm.weight"]
    extra = (*model.extra, *NORMS) if model.kind == "hybrid" else model.extra
    sizes = {"attn_q.bias": queries, "attn_k.bias": keys, "attn_v.bias": keys, "attn_sinks.weight": model.heads}
    norm = model.width if model.kind == "post-norm" else head
    sizes |= {"attn_q_norm.weight": norm, "attn_k_norm.weight": norm}
    parts |= {name: (sizes.get(name, width),) for name in extra}
    if model.kind == "draft" and layer == model.layers - 1:
        parts |= {
            "nextn.eh_proj.weight": (2 * width, width),
            "nextn.enorm.weight": (width,),
            "nextn.hnorm.weight": (width,),
        }
    return parts


def _feed_forward(model: Model, layer: int) -> dict[str, tuple[int, ...]]:
    width = model.width
    norm: dict[str, tuple[int, ...]] = {"ffn_norm.weight": (width,)}
    if model.kind == "post-norm":
        norm = {}
    if model.kind == "gpt-oss":
        norm = {"post_attention_norm.weight": (width,)}
    if not model.experts or layer < model.dense:
        up = 2 * model.ffn if model.kind == "fused" else model.ffn
        gate = {} if model.kind == "fused" else {"ffn_gate.weight": (width, model.ffn)}
        return {**norm, **gate, "ffn_up.weight": (width, up), "ffn_down.weight": (model.ffn, width)}
    parts: dict[str, tuple[int, ...]] = {
        **norm,
        "ffn_gate_inp.weight": (width, model.experts),
        "ffn_gate_exps.weight": (width, model.expert_ffn, model.experts),
        "ffn_up_exps.weight": (width, model.expert_ffn, model.experts),
        "ffn_down_exps.weight": (model.expert_ffn, width, model.experts),
    }
    if model.shared_ffn:
        shared = model.shared_ffn
        parts |= {
            "ffn_gate_shexp.weight": (width, shared), "ffn_up_shexp.weight": (width, shared),
            "ffn_down_shexp.weight": (shared, width),
        }  # fmt: skip
    return parts
