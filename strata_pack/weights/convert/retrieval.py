"""Converts Qwen3 retrieval models, which have the text model's class name: embedding models and rerankers.

A reranker's GGUF has two rows of the output matrix, those of the tokens "yes" and "no", and its prompt template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, PoolingType

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, read_json, read_json_object
from strata_pack.weights.convert.arch import CARD_LIMIT, Architecture
from strata_pack.weights.convert.names import FINAL
from strata_pack.weights.convert.views import View
from strata_pack.weights.tokenizer.bpe import TOKENIZER_LIMIT

_MODES = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS, "lasttoken": PoolingType.LAST}
_SWITCHES = {"mean_tokens": "mean", "cls_token": "cls", "lasttoken": "lasttoken"}
_CARDS = ("# qwen3-reranker", "# qwen3-vl-reranker")
_NAMES = ("qwen3-reranker", "qwen3-vl-reranker")
_JUDGE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""The prompt template of Qwen3-Reranker's model card, with the two placeholders that llama.cpp fills."""


@dataclass(frozen=True)
class Retrieval:
    """The properties of a retrieval model: its pooling, and a reranker's rows of "yes" and "no"."""

    pooling: PoolingType | None = None
    yes_no: tuple[int, int] | None = None
    tied: bool = False

    def views(self, view: View) -> list[View]:
        """Return the views for an output tensor: a reranker's classifier is taken from the output matrix."""
        source = "model.embed_tokens.weight" if self.tied else "lm_head.weight"
        if self.yes_no is None or view.name != source:
            return [view]
        judge = View(FINAL + "cls.output.weight", view.shape, view.pieces).take(np.array(self.yes_no))
        return [judge, view] if self.tied else [judge]

    def add_keys(self, writer: GGUFWriter) -> None:
        """Add the keys of pooling and reranking."""
        if self.pooling is not None:
            writer.add_pooling_type(self.pooling)
        if self.yes_no is not None:
            writer.add_pooling_type(PoolingType.RANK)
            writer.add_classifier_output_labels(["yes", "no"])
            writer.add_chat_template([{"name": "rerank", "template": _JUDGE}])


def read_retrieval(folder: Path, architecture: Architecture, raw: Mapping[str, Any]) -> Retrieval:
    """Return the retrieval properties of the folder; empty for a generating model."""
    if architecture.name not in ("qwen2", "qwen3", "qwen3vl"):
        return Retrieval()
    pooling = _pooling(folder)
    if not architecture.name.startswith("qwen3") or not _is_reranker(folder, raw):
        return Retrieval(pooling)
    tokenizer = read_json_object(folder / "tokenizer.json", TOKENIZER_LIMIT)
    ids = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer.get("added_tokens") or []}}
    missing = [word for word in ("yes", "no") if type(ids.get(word)) is not int]
    if missing:
        raise BadInput(f"is a reranker whose tokenizer has no token {missing[0]!r}", where=folder)
    return Retrieval(pooling, (ids["yes"], ids["no"]), bool(raw.get("tie_word_embeddings", False)))


def _pooling(folder: Path) -> PoolingType | None:
    modules = folder / "modules.json"
    if not modules.is_file():
        return None
    listed = read_modules(modules)
    name = next((str(m.get("path")) for m in reversed(listed) if str(m.get("type")).endswith("Pooling")), None)
    if name is None:
        return None
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise BadInput(f"names the folder {name!r}", where=modules)
    settings = read_json_object(folder / name / "config.json")
    mode = next((mode for key, mode in _SWITCHES.items() if settings.get(f"pooling_mode_{key}")), None)
    found = _MODES.get(mode or str(settings.get("pooling_mode")))
    if found is None:
        raise BadInput("has another pooling mode than mean, cls and lasttoken", where=folder / name / "config.json")
    return found


def read_modules(path: Path) -> list[dict[str, Any]]:
    """Return the modules of a sentence-transformers model; ``BadInput`` if the file is not a list of objects."""
    found = read_json(path, CARD_LIMIT)
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise BadInput("is not a list of modules", where=path)
    return found


def _is_reranker(folder: Path, raw: Mapping[str, Any]) -> bool:
    card = folder / "README.md"
    head = read_bytes(card, CARD_LIMIT).decode("utf-8", "replace").lower() if card.is_file() else ""
    hints = (folder.name, str(raw.get("_name_or_path", "")))
    return any(title in head for title in _CARDS) or any(name in hint.lower() for hint in hints for name in _NAMES)
