"""Changes a model while it is quantized, like llama-quantize: prunes layers, replaces metadata, selects importances.

``EditedSource`` is a source with the changes already made, for the planner and the writer. Types are chosen as for the
whole model, as in the reference: by the original number of layers.
Source: ``src/llama-quant.cpp`` and ``tools/quantize`` of llama.cpp.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strata_pack.errors import BadInput, WrongUse
from strata_pack.llama.ggml_types import GGUFValueType
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.tensor_source import RowReader, SourceTensor, TensorSource

MAX_KEY = 127
"""Maximum length of an overridden key and of a string value; llama.cpp stores both in 128 bytes."""
_LAYOUT = re.compile(r"general\.alignment|split\..*|GGUF\..*")
"""Keys that describe the layout of the file: with another value its tensors cannot be read."""
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class Edits:
    """The changes: ``overrides`` in the given order, ``pruned`` layer numbers, and parts of names of weights: only
    their importances are used (``include``), or they are not used (``exclude``)."""

    overrides: tuple[tuple[str, MetaValue], ...] = ()
    pruned: frozenset[int] = frozenset()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


NO_EDITS = Edits()


def make_edits(
    overrides: Sequence[str] = (), prune: str | None = None, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> Edits:
    """Return the edits for command-line flags; ``WrongUse`` for an invalid flag."""
    if include and exclude:
        raise WrongUse("--include-weights and --exclude-weights exclude each other", remedy="give one of the two")
    return Edits(tuple(map(parse_override, overrides)), parse_layers_to_prune(prune), tuple(include), tuple(exclude))


def parse_override(text: str) -> tuple[str, MetaValue]:
    """Return (key, value) of ``KEY=TYPE:VALUE``, TYPE one of int, float, bool, str; ``WrongUse`` for another form."""
    where = f"--override-kv {text}"
    key, equals, typed = text.partition("=")
    type, colon, value = typed.partition(":")
    if not equals or not colon or not key or len(key.encode()) > MAX_KEY or not key.isprintable():
        remedy = "for example tokenizer.ggml.add_bos_token=bool:false"
        raise WrongUse("needs the form KEY=TYPE:VALUE", where=where, remedy=remedy)
    if _LAYOUT.fullmatch(key):
        raise WrongUse(f"{key} describes the layout of the file, which no override changes", where=where)
    maker = _MAKERS.get(type)
    if maker is None:
        raise WrongUse(f"{type!r} is not a type of a value", where=where, remedy=f"choose one of {', '.join(_MAKERS)}")
    try:
        return key, maker(value)
    except ValueError:
        raise WrongUse(f"{value!r} is not a valid {type} value", where=where) from None


def edit_options(edits: Edits) -> dict[str, Any]:
    """Return ``edits`` as JSON data for ``edits_from_options``; empty ones are left out."""
    options: dict[str, Any] = {
        "override_kv": [f"{key}={_TYPE_NAMES[value.type]}:{_text(value)}" for key, value in edits.overrides],
        "prune_layers": sorted(edits.pruned),
        "include_weights": list(edits.include),
        "exclude_weights": list(edits.exclude),
    }
    return {key: value for key, value in options.items() if value}


def edits_from_options(options: Mapping[str, Any]) -> Edits:
    """Return the edits in a manifest's options; ``BadInput`` or ``WrongUse`` if they are invalid."""
    try:
        return Edits(
            tuple(parse_override(text) for text in options.get("override_kv", ())),
            frozenset(int(number) for number in options.get("prune_layers", ())),
            tuple(map(str, options.get("include_weights", ()))),
            tuple(map(str, options.get("exclude_weights", ()))),
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"is malformed ({error})", where="recipe/options") from None


def _text(value: MetaValue) -> str:
    return str(value.value).lower() if value.type is GGUFValueType.BOOL else str(value.value)


def _integer(text: str) -> MetaValue:
    if not text.isascii():
        raise ValueError(text)
    return MetaValue.uint32(int(text))


def _float(text: str) -> MetaValue:
    return MetaValue(GGUFValueType.FLOAT32, float(text))


def _bool(text: str) -> MetaValue:
    if text not in ("true", "false"):
        raise ValueError(text)
    return MetaValue(GGUFValueType.BOOL, text == "true")


def _string(text: str) -> MetaValue:
    if len(text.encode()) > MAX_KEY:
        raise ValueError(text)
    return MetaValue.string(text)


_MAKERS = {"int": _integer, "float": _float, "bool": _bool, "str": _string}
_TYPE_NAMES = {
    GGUFValueType.UINT32: "int",
    GGUFValueType.FLOAT32: "float",
    GGUFValueType.BOOL: "bool",
    GGUFValueType.STRING: "str",
}


def parse_layers_to_prune(text: str | None) -> frozenset[int]:
    """Return the layer numbers in ``text``, such as ``"3,7,8"``; ``WrongUse`` for another form."""
    parts = [] if text is None else text.split(",")
    if not all(part.isascii() and part.strip().isdecimal() and len(part) < 7 for part in parts):
        raise WrongUse(
            "is not a list of layer numbers", where=f"--prune-layers {text}", remedy="write for example 3,7,8"
        )
    return frozenset(map(int, parts))


PER_LAYER = (
    *("attention.head_count", "attention.head_count_kv", "attention.recurrent_layers"),
    *("attention.sliding_window_pattern", "feed_forward_length", "swiglu_clamp_exp", "swiglu_clamp_shexp"),
)
"""The keys whose value may be a list with an entry for each layer (llama.cpp, ``llama-arch.cpp``)."""


class EditedSource:
    """A ``TensorSource`` with ``edits`` applied. ``closing`` keys go to the end of the header, as in llama-quantize."""

    def __init__(self, source: TensorSource, edits: Edits) -> None:
        """Raise ``WrongUse`` for a missing layer, and if no layer would be left."""
        self._source = source
        self.label, self.inputs = source.label, source.inputs
        numbers = _renumbered(source.tensors, edits.pruned)
        self._originals: dict[str, SourceTensor] = {}
        for tensor in source.tensors:
            name = _renamed(tensor.name, numbers)
            if name is not None:
                self._originals[name] = tensor
        self.tensors: Sequence[SourceTensor] = tuple(
            replace(tensor, name=name) for name, tensor in self._originals.items()
        )
        self.shards = max((tensor.shard for tensor in self.tensors), default=0) + 1 if edits.pruned else source.shards
        # Types are chosen by the overridden header, but with the number of layers before pruning.
        self.metadata: Mapping[str, MetaValue] = {**source.metadata, **dict(edits.overrides)}
        self.closing = dict(edits.overrides)
        if edits.pruned:
            key = f"{_architecture(source)}.block_count"
            self.closing.pop(key, None)
            self.closing[key] = MetaValue.uint32(len({new for new in numbers.values() if new is not None}))
            self.closing |= _without_layers(source, edits.pruned)
        digest = hashlib.sha256(source.fingerprint.encode())
        digest.update(repr((sorted(edits.pruned), [(key, value.raw) for key, value in edits.overrides])).encode())
        self.fingerprint = source.fingerprint if edits == NO_EDITS else digest.hexdigest()

    def rows(self, tensor: SourceTensor) -> RowReader:
        """Return the reader of the rows of ``tensor``, which has another name in the source."""
        return self._source.rows(self._originals[tensor.name])

    def original_name(self, name: str) -> str:
        """Return the name of the tensor ``name`` in the source."""
        return self._originals[name].name


def edit_imatrix(imatrix: Imatrix, source: EditedSource, edits: Edits) -> Imatrix | None:
    """Return the selected importances by the new names; ``None`` if nothing is left."""
    kept = {
        name: entry
        for name, entry in imatrix.entries.items()
        if not any(part in name for part in edits.exclude)
        and (not edits.include or any(part in name for part in edits.include))
    }
    if not kept:
        return None
    originals = {tensor.name: source.original_name(tensor.name) for tensor in source.tensors}
    return replace(imatrix, entries={new: kept[old] for new, old in originals.items() if old in kept})


def _architecture(source: TensorSource) -> str:
    value = source.metadata.get("general.architecture")
    if value is None or not isinstance(value.value, str):
        raise BadInput("the header has no general.architecture, so it is no model", where=source.label)
    return value.value


def _without_layers(source: TensorSource, pruned: frozenset[int]) -> dict[str, MetaValue]:
    """Return the header's lists with an entry for each layer, without those of ``pruned``.

    llama-quantize leaves them as they are; llama.cpp does not load a model with a list of another length.
    """
    architecture = _architecture(source)
    count = source.metadata.get(f"{architecture}.block_count")
    lists: dict[str, MetaValue] = {}
    for name in PER_LAYER:
        value = source.metadata.get(f"{architecture}.{name}")
        if count is None or value is None or value.item_type is None or len(value.value) != count.value:
            continue
        kept = [entry for layer, entry in enumerate(value.value) if layer not in pruned]
        lists[f"{architecture}.{name}"] = MetaValue.array(value.item_type, kept)
    return lists


def _renumbered(tensors: Iterable[SourceTensor], pruned: frozenset[int]) -> dict[int, int | None]:
    """Return a dict from old to new layer numbers, ``None`` for a pruned layer."""
    there = sorted({int(match[1]) for tensor in tensors if (match := _BLOCK.search(tensor.name))})
    missing = sorted(pruned - set(there))
    if missing:
        listed = f"layers 0 to {there[-1]}" if there else "no layers"
        raise WrongUse(f"there is no layer {missing[0]}: the model has {listed}", where="--prune-layers")
    if pruned and len(pruned) == len(there):
        raise WrongUse("no layer would be left", where="--prune-layers")
    kept = [number for number in there if number not in pruned]
    return {**dict.fromkeys(pruned), **{old: new for new, old in enumerate(kept)}} if pruned else {n: n for n in there}


def _renamed(name: str, numbers: Mapping[int, int | None]) -> str | None:
    match = _BLOCK.search(name)
    if match is None:
        return name
    new = numbers[int(match[1])]
    return None if new is None else f"{name[: match.start(1)]}{new}{name[match.end(1) :]}"
