"""Computes the table of sizes in docs/choosing.md from quantization plans of real models' shapes.

``python tools/size_table.py`` rewrites the table. No weights are needed: a plan depends on names and shapes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.input_files import InputFiles
from strata_pack.weights.quantize.plan import plan_quantization
from strata_pack.weights.tensor_source import RowReader, SourceTensor

DOCUMENT = Path(__file__).parent.parent / "docs/choosing.md"
TABLE = re.compile(r"^\| preset \|.*?\n\n", re.MULTILINE | re.DOTALL)

LOSES = {
    "Q8_0": "next to nothing",
    "Q6_K": "hardly anything",
    "Q5_K_M": "little",
    "Q4_K_M": "some; measure it",
    "IQ4_XS": "as Q4_K_M with an importance matrix",
    "Q3_K_M": "a lot for small models; use an importance matrix and check the calls",
}


@dataclass(frozen=True)
class Model:
    """The shape of a Qwen3 model, as its config.json has it; ``experts`` 0 is a dense one."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    experts: int = 0
    tied: bool = False
    vocab: int = 151_936
    head: int = 128

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield each tensor's name and shape in ggml's order."""
        yield "token_embd.weight", (self.hidden, self.vocab)
        yield "output_norm.weight", (self.hidden,)
        if not self.tied:
            yield "output.weight", (self.hidden, self.vocab)
        query, key = self.heads * self.head, self.kv_heads * self.head
        stack = (self.experts,) if self.experts else ()
        kind = "_exps" if self.experts else ""
        for at in (f"blk.{layer}" for layer in range(self.layers)):
            yield f"{at}.attn_norm.weight", (self.hidden,)
            yield f"{at}.attn_q.weight", (self.hidden, query)
            yield f"{at}.attn_k.weight", (self.hidden, key)
            yield f"{at}.attn_v.weight", (self.hidden, key)
            yield f"{at}.attn_output.weight", (query, self.hidden)
            yield f"{at}.attn_q_norm.weight", (self.head,)
            yield f"{at}.attn_k_norm.weight", (self.head,)
            yield f"{at}.ffn_norm.weight", (self.hidden,)
            if self.experts:
                yield f"{at}.ffn_gate_inp.weight", (self.hidden, self.experts)
            yield f"{at}.ffn_gate{kind}.weight", (self.hidden, self.ffn, *stack)
            yield f"{at}.ffn_up{kind}.weight", (self.hidden, self.ffn, *stack)
            yield f"{at}.ffn_down{kind}.weight", (self.ffn, self.hidden, *stack)


MODELS = (
    Model("Qwen3-0.6B", 1024, 28, 16, 8, 3072, tied=True),
    Model("Qwen3-8B", 4096, 36, 32, 8, 12_288),
    Model("Qwen3-30B-A3B", 2048, 48, 32, 4, 768, experts=128),
)


class Shapes:
    """A ``TensorSource`` that has names, shapes and a header, and no rows."""

    shards = 1
    inputs = InputFiles.of([])
    fingerprint = ""

    def __init__(self, model: Model) -> None:
        self.label = model.name
        self.tensors = tuple(
            SourceTensor(name, shape, Q.F32 if len(shape) == 1 or "gate_inp" in name else Q.BF16, position=position)
            for position, (name, shape) in enumerate(model.tensors())
        )
        arch = "qwen3moe" if model.experts else "qwen3"
        numbers = {
            "block_count": model.layers,
            "embedding_length": model.hidden,
            "attention.head_count": model.heads,
            "attention.head_count_kv": model.kv_heads,
            **({"expert_count": model.experts} if model.experts else {}),
        }
        self.metadata: Mapping[str, MetaValue] = {
            "general.architecture": MetaValue.string(arch),
            **{f"{arch}.{key}": MetaValue.uint32(value) for key, value in numbers.items()},
        }

    def rows(self, tensor: SourceTensor) -> RowReader:
        raise NotImplementedError(f"{tensor.name} has no rows: a plan needs none")


def table() -> str:
    """Return the table: gigabytes (10^9 bytes) of tensors and bits a weight for each preset and model."""
    rows = [
        f"| preset | {' | '.join(model.name for model in MODELS)} | loss |",
        f"| --- | {' | '.join('---' for _ in MODELS)} | --- |",
    ]
    for preset, loses in LOSES.items():
        plans = [plan_quantization(Shapes(model), preset) for model in MODELS]
        sizes = " | ".join(f"{plan.data_bytes / 1e9:.2f} GB ({plan.bits_per_weight:.1f})" for plan in plans)
        rows.append(f"| {preset}{' (the default)' if preset == 'Q4_K_M' else ''} | {sizes} | {loses} |")
    return "\n".join(rows) + "\n\n"


def document_with(text: str) -> str:
    """Return the document ``text`` with its table replaced by a computed one."""
    return TABLE.sub(lambda _: table(), text)


if __name__ == "__main__":
    DOCUMENT.write_text(document_with(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
