"""Builds the GGUF header of a converted model, with its keys in llama.cpp's order.

``gguf.GGUFWriter`` provides the keys and their types; it only collects them and writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFValueType, GGUFWriter, LlamaFileType

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, read_json_object
from strata_pack.weights.card_yaml import MALFORMED, refuse_aliases
from strata_pack.weights.convert.arch import CARD_LIMIT, Architecture
from strata_pack.weights.convert.config import Config
from strata_pack.weights.convert.parameters import add_family, add_parameters
from strata_pack.weights.convert.qwen4exp import NgramKeys
from strata_pack.weights.convert.retrieval import Retrieval
from strata_pack.weights.convert.vocabulary import Vocabulary
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.tokenizer.special import SpecialTokens

_GRANITE_VOCABULARY = 49152


class Collector(GGUFWriter):
    """A ``GGUFWriter`` that only collects keys; it is never opened or written."""

    def __init__(self, architecture: str) -> None:
        logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
        super().__init__(path=None, arch=architecture)


@dataclass(frozen=True)
class CheckpointFacts:
    """Inputs of the header in addition to the configuration.

    ``tensors`` are GGUF name and shape as PyTorch counts it; ``name`` overrides the model's name.
    """

    folder: Path
    tensors: Sequence[tuple[str, tuple[int, ...]]]
    file_type: LlamaFileType
    name: str | None = None


@dataclass(frozen=True)
class Extras:
    """Additional properties of some models: the values of an n-gram embedding, and those of a retrieval model."""

    ngrams: NgramKeys | None = None
    retrieval: Retrieval = field(default_factory=Retrieval)


def model_metadata(
    facts: CheckpointFacts,
    architecture: Architecture,
    config: Config,
    blocks: int,
    vocabulary: Vocabulary,
    extras: Extras,
) -> dict[str, MetaValue]:
    """Return the whole header of a text model with ``blocks`` layers, including MTP layers.

    ``BadInput`` if a value does not fit its key.
    """
    writer = Collector(architecture.name)
    add_general(writer, facts, gguf.GGUFType.MODEL)
    add_parameters(writer, config, blocks)
    writer.add_file_type(facts.file_type)
    extras.retrieval.add_keys(writer)
    add_family(writer, architecture, config, blocks, extras.ngrams)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if architecture.rotate:
        _space_prefix(writer, facts.folder)
    _tokenizer(writer, vocabulary.tokenizer, vocabulary.special)
    if architecture.rotate and config.get("vocab_size") == _GRANITE_VOCABULARY:
        writer.add_add_bos_token(False)
    return collected(writer, config.where)


def _space_prefix(writer: GGUFWriter, folder: Path) -> None:
    """Add ``add_space_prefix`` if the Llama family's tokenizer settings have it."""
    settings = folder / "tokenizer_config.json"
    prefix = read_json_object(settings).get("add_prefix_space") if settings.is_file() else None
    if prefix is not None:
        writer.add_add_space_prefix(prefix)


def add_general(writer: GGUFWriter, facts: CheckpointFacts, kind: str) -> None:
    """Add the keys ``general.*`` from the model card, the folder's name and the number of parameters."""
    for tensor, shape in facts.tensors:
        writer.add_tensor_info(tensor, shape, _FLOAT32, 0, gguf.GGMLQuantizationType.F32)
    counts = writer.get_total_parameter_count()
    metadata = _general(facts.folder, counts[0], facts.name)
    if metadata.size_label is None and counts[0] > 0:
        metadata.size_label = gguf.size_label(*counts)
    writer.add_type(kind)
    metadata.set_gguf_meta_model(writer)


_FLOAT32 = np.dtype("float32")


def _general(folder: Path, parameters: int, name: str | None) -> gguf.Metadata:
    card = folder / "README.md"
    text = read_bytes(card, CARD_LIMIT).decode("utf-8", "replace") if card.exists() else ""
    generation = folder / "generation_config.json"
    settings = read_json_object(generation) if generation.exists() else {}
    try:
        refuse_aliases(_head(text), card)
        metadata = gguf.Metadata.load(None, folder, name, parameters)
    except MALFORMED as error:
        reason = " ".join(str(error).split())
        raise BadInput(f"the head of the model card is malformed ({reason})", where=card, remedy="repair it") from error
    # The converter, which is newer than gguf 0.19, reads this name too.
    if "repetition_penalty" in settings and "penalty_repeat" not in settings:
        metadata.sampling_penalty_repeat = settings["repetition_penalty"]
    if metadata.name is None:
        metadata.name = folder.name
    return metadata


def _head(card: str) -> str:
    """Return the text that ``gguf.Metadata`` reads as YAML: lines to the next ``---``, or to the end without one."""
    first, *lines = card.splitlines() or [""]
    return "\n".join(takewhile(lambda line: line != "---", lines)).replace("\t", "  ") if first == "---" else ""


def _tokenizer(writer: GGUFWriter, tokenizer: Mapping[str, Any], special: SpecialTokens) -> None:
    writer.add_tokenizer_model(tokenizer["model"])
    writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(tokenizer["tokens"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
    writer.add_token_types(tokenizer["types"])
    if tokenizer.get("merges"):
        writer.add_token_merges(tokenizer["merges"])
    for role, number in special.ids.items():
        add = getattr(writer, f"add_{role}_token_id", None)
        if add is not None:
            add(number)
    for role, flag in special.added.items():
        add = getattr(writer, f"add_add_{role}_token", None)
        if add is not None:
            add(flag)
    if special.templates:
        writer.add_chat_template([{"name": name, "template": text} for name, text in special.templates.items()])


def collected(writer: GGUFWriter, where: Path) -> dict[str, MetaValue]:
    """Return the keys collected by ``writer``, in order; ``BadInput`` for a value that does not fit its key."""
    found: dict[str, MetaValue] = {}
    for key, entry in writer.kv_data[0].items():
        value, item_type = entry.value, None
        if entry.type is GGUFValueType.ARRAY:
            value = list(value)
            item_type = GGUFValueType(entry.sub_type or GGUFValueType.get_type(value[0]))
        try:
            found[key] = MetaValue(entry.type, value, item_type)
        except ValueError as error:
            said = f"{key} cannot be {str(entry.value)[:80]!r} ({error})"
            raise BadInput(said, where=where.with_name(_said_in(key, where.name))) from error
    return found


def _said_in(key: str, config: str) -> str:
    """Return the name of the file that gives ``key`` its value."""
    if key.startswith("general.sampling."):
        return "generation_config.json"
    return "README.md" if key.startswith("general.") else config
