"""Converts a safetensors checkpoint to a GGUF model: planned first, then read a few rows at a time.

    with SafetensorsSource.open(folder, "bf16") as source:
        convert_checkpoint(source, Path("model.gguf"))

Whole files are byte-identical to those of llama.cpp's converter. ``SafetensorsSource`` is a ``TensorSource``: the
quantizer reads it directly, without a GGUF in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import read_json_object
from strata_pack.progress import Progress
from strata_pack.suggest import hint
from strata_pack.weights.checkpoint_index import INDEX_SUFFIX
from strata_pack.weights.convert.arch import Architecture, recognise
from strata_pack.weights.convert.cast import F32
from strata_pack.weights.convert.config import Config, linear_layers
from strata_pack.weights.convert.metadata import CheckpointFacts, Extras, model_metadata
from strata_pack.weights.convert.names import FINAL, Names
from strata_pack.weights.convert.outtypes import OUTTYPES, chosen_outtype, tensor_type
from strata_pack.weights.convert.projector import (
    has_tower,
    read_tower,
    tower_metadata,
    tower_tensors,
    tower_views,
)
from strata_pack.weights.convert.qwen4exp import TABLE, ngram_keys
from strata_pack.weights.convert.retrieval import read_retrieval
from strata_pack.weights.convert.rows import view_reader
from strata_pack.weights.convert.rules import Rules, rope_factors
from strata_pack.weights.convert.safetensors import Checkpoint, StoredTensor
from strata_pack.weights.convert.scales import read_encoding
from strata_pack.weights.convert.shapes import check_complete, check_shapes
from strata_pack.weights.convert.text_tensors import ModelPart, TextTensors, text_tensors
from strata_pack.weights.convert.views import View
from strata_pack.weights.convert.vocabulary import read_vocabulary
from strata_pack.weights.convert.write import ConvertResult, write_gguf
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.hub.select import SIDE_FILES
from strata_pack.weights.input_files import InputFiles
from strata_pack.weights.tensor_source import RowReader, SourceTensor

__all__ = ["ConvertResult", "SafetensorsSource", "check_convertible", "convert_checkpoint"]

SourcePart = ModelPart | Literal["projector"]


@dataclass(frozen=True)
class _Planned:
    tensor: SourceTensor
    view: View | None


class ConversionDict(TypedDict):
    """A ``SafetensorsSource`` as JSON; ``parameters`` counts elements."""

    architecture: str
    outtype: str
    parameters: int


class SafetensorsSource:
    """A checkpoint as the GGUF model that it converts to. Use as a context manager; attributes are read-only."""

    label: str
    fingerprint: str
    inputs: InputFiles
    metadata: Mapping[str, MetaValue]
    tensors: Sequence[SourceTensor]
    shards = 1
    architecture: str
    """The header's ``general.architecture``; "clip" for a projector."""
    outtype: str
    parameters: int
    left_out: int
    """The number of tensors of a vision or audio tower, which are not in this file."""
    has_tower: bool
    """Whether that tower can be converted as a projector."""

    def __init__(
        self,
        folder: Path,
        outtype: str = "auto",
        *,
        pre: str | None = None,
        part: SourcePart = "model",
        name: str | None = None,
    ) -> None:
        """Read and check everything but the weights of ``folder``.

        ``outtype`` "auto" keeps the weights' BF16 or F16. ``pre`` names the pre-tokenizer, which is otherwise
        recognised; ``part`` selects what to convert: the model with its layers for multi-token prediction, "trunk"
        without them, "mtp" only these, "projector" the vision tower; ``name`` is the model's name in the header.
        ``BadInput`` for a checkpoint that cannot be converted completely.
        """
        # The folder's name may become the model's name: "." has no name.
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        if not folder.is_dir():
            raise BadInput("no such folder", where=folder, remedy="give the folder of a safetensors checkpoint")
        refuse_adapter(folder)
        if outtype != "auto" and outtype not in OUTTYPES:
            raise WrongUse(
                f"is not an output type{hint(outtype, ['auto', *OUTTYPES])}",
                where=f"--outtype {outtype}",
                remedy=f"give auto, {', '.join(OUTTYPES)}",
            )
        self.label = str(folder)
        self._folder, self._name = folder, name
        self._factors: npt.NDArray[np.float32] | None = None
        self.left_out, self.has_tower = 0, False
        self.inputs = InputFiles.of(path for path in sorted(folder.iterdir()) if _is_read(path))
        with _wrong_kinds(folder):
            # Faults in config.json are reported first, because they are cheaper to find.
            raw = read_json_object(folder / "config.json")
            known = None if part == "projector" else recognise(raw, folder / "config.json")
            read_encoding(raw, folder / "config.json")
            self._checkpoint = Checkpoint(folder)
            try:
                self.inputs += InputFiles.of(self._checkpoint.files)
                if part == "projector":
                    self._read_projector(raw, outtype)
                elif known is not None:
                    self._read_model(raw, *known, outtype, pre, part)
                self.fingerprint = self._fingerprint()
            except BaseException:
                self._checkpoint.close()
                raise

    def _read_model(
        self,
        raw: Mapping[str, Any],
        architecture: Architecture,
        config: Config,
        outtype: str,
        pre: str | None,
        part: ModelPart,
    ) -> None:
        where = self._folder
        found = _checked_tensors(raw, architecture, config, self._checkpoint.tensors.values(), part, where)
        vocabulary = read_vocabulary(where, config, raw, pre)
        retrieval = read_retrieval(where, architecture, raw)
        rules = Rules(architecture, config, where)
        views = [made for view in rules.views(found.named) for made in retrieval.views(view)]
        blocks = config.layers + found.mtp_layers
        self._factors = rope_factors(config)
        self.architecture, self.left_out, self.has_tower = architecture.name, found.other_senses, has_tower(raw)
        self.outtype = chosen_outtype(outtype, found.named)
        names = Names(architecture, blocks)
        self._plan([(self._called(view, names, architecture), view) for view in views])
        needed = _needed(architecture, config, part, blocks)
        judging = retrieval.yes_no is not None
        check_complete(self._planned, (name for name in needed if not judging or name != "output.weight"), where)
        ngrams = None
        if architecture.hyper and part != "mtp":
            table = next((view for view in views if view.name == FINAL + TABLE), None)
            names_there = [view.name for view in views]
            ngrams = ngram_keys(self._checkpoint, found.constants, names_there, table, config)
        self.metadata = model_metadata(
            self._facts(), architecture, config, blocks, vocabulary, Extras(ngrams, retrieval)
        )

    def _read_projector(self, raw: Mapping[str, Any], outtype: str) -> None:
        where = self._folder
        tower = read_tower(raw, where / "config.json")
        encoding = read_encoding(raw, where / "config.json")
        named = tower_tensors(self._checkpoint.tensors.values(), tower, encoding, where)
        self.architecture = "clip"
        self.outtype = chosen_outtype(outtype, named)
        views = tower_views(named, tower, where)
        self._plan([(view.name.removeprefix(FINAL), view) for view in views])
        self.metadata = tower_metadata(self._facts(), tower)

    def _facts(self) -> CheckpointFacts:
        self.tensors = tuple(planned.tensor for planned in self._planned.values())
        self.parameters = sum(tensor.elements for tensor in self.tensors)
        shapes = [(tensor.name, tuple(reversed(tensor.shape))) for tensor in self.tensors]
        return CheckpointFacts(self._folder, shapes, OUTTYPES[self.outtype][1], self._name)

    @classmethod
    def open(cls, folder: Path | str, outtype: str = "auto", **options: Any) -> SafetensorsSource:
        """Return the source; the options are those of the constructor."""
        return cls(Path(folder), outtype, **options)

    def __enter__(self) -> SafetensorsSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; existing readers stop working."""
        self._checkpoint.close()

    def rows(self, tensor: SourceTensor) -> RowReader:
        """Return the reader of a tensor's rows, in the tensor's type."""
        view = self._planned[tensor.name].view
        if view is None:
            assert self._factors is not None
            data = np.frombuffer(self._factors.astype("<f4").tobytes(), dtype=np.uint8)

            def constant(first: int, count: int, out: npt.NDArray[np.uint8]) -> None:
                row = tensor.row_length * 4
                out[: count * row] = data[first * row : (first + count) * row]

            return constant
        return view_reader(self._checkpoint, view, tensor)

    def to_dict(self) -> ConversionDict:
        """Return the result of a conversion as JSON."""
        return {"architecture": self.architecture, "outtype": self.outtype, "parameters": self.parameters}

    def stored(self, name: str) -> tuple[StoredTensor, ...]:
        """Return the checkpoint's tensors from which the tensor ``name`` is made, including scales."""
        view = self._planned[name].view
        found = () if view is None else tuple(piece.tensor for piece in (*view.pieces, *view.appended))
        return (*found, *(tensor.scale.tensor for tensor in found if tensor.scale is not None))

    def _called(self, view: View, names: Names, architecture: Architecture) -> str:
        found = names.find(view.name)
        if found is None:
            raise BadInput(
                f"the tensor {view.name} is none that {architecture.name} has",
                where=self._folder,
                remedy="the checkpoint is of another model, or an adapter",
            )
        return found

    def _plan(self, views: Sequence[tuple[str, View]]) -> None:
        planned: dict[str, _Planned] = {}
        if self._factors is not None:
            tensor = SourceTensor("rope_freqs.weight", (len(self._factors),), F32)
            planned[tensor.name] = _Planned(tensor, None)
        for name, view in views:
            if name in planned:
                raise BadInput(f"{view.name} becomes {name}, which exists already", where=self._folder)
            shape = tuple(reversed(view.shape)) or (1,)
            type_ = tensor_type(name, view.shape, self.outtype)
            planned[name] = _Planned(SourceTensor(name, shape, type_, 0, len(planned)), view)
        self._planned = planned

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for key, value in self.metadata.items():
            digest.update(key.encode() + b"\0" + value.raw)
        for tensor in self.tensors:
            digest.update(f"{tensor.name} {tensor.shape} {tensor.type.name}\n".encode())
        digest.update(self.inputs.fingerprint())
        return digest.hexdigest()


def _is_read(path: Path) -> bool:
    """Return whether a file of a checkpoint's folder determines the model: weights, index, configuration, tokenizer."""
    return path.is_file() and (path.name.endswith((".safetensors", INDEX_SUFFIX)) or path.name in SIDE_FILES)


@contextmanager
def _wrong_kinds(folder: Path) -> Iterator[None]:
    """Turn exceptions caused by values of a wrong type into ``BadInput``, because there are too many fields to check
    each.

    A division by zero or of NaN is an error too, so that the header gets no NaN.
    """
    try:
        with np.errstate(divide="raise", invalid="raise"):
            yield
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        problem = f"config.json or a tokenizer file has a value of a wrong type ({error})"
        raise BadInput(problem, where=folder, remedy="fetch it again") from error


def refuse_adapter(folder: Path) -> None:
    """Raise ``BadInput`` for a LoRA adapter, which is not a model but changes to one."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        if (folder / name).is_file():
            raise BadInput(
                "is a LoRA adapter, not a model",
                where=folder,
                remedy="merge it into its base model first (PEFT's merge_and_unload), then convert the result",
            )


def check_convertible(
    folder: Path, pre: str | None = None, tensors: Iterable[StoredTensor] | None = None
) -> Architecture:
    """Check configuration and tokenizer of a checkpoint whose weights may be missing; raises ``BadInput``.

    ``tensors`` are from the headers of the weights, if known: config.json's sizes are first compared with them.
    """
    refuse_adapter(folder)
    raw = read_json_object(folder / "config.json")
    with _wrong_kinds(folder):
        architecture, config = recognise(raw, folder / "config.json")
        if tensors is None:
            read_encoding(raw, folder / "config.json")
        else:
            stored = list(tensors)
            _checked_tensors(raw, architecture, config, stored, "model", folder)
            if has_tower(raw) and any("visual." in tensor.name for tensor in stored):
                tower = read_tower(raw, folder / "config.json")
                tower_tensors(stored, tower, read_encoding(raw, folder / "config.json"), folder)
        read_vocabulary(folder, config, raw, pre)
    return architecture


def _checked_tensors(
    raw: Mapping[str, Any],
    architecture: Architecture,
    config: Config,
    stored: Iterable[StoredTensor],
    part: ModelPart,
    where: Path,
) -> TextTensors:
    found = text_tensors(stored, architecture, config, read_encoding(raw, where / "config.json"), part, where)
    check_shapes(found.named, architecture, config, where)
    return found


def _needed(architecture: Architecture, config: Config, part: ModelPart, blocks: int) -> Iterator[str]:
    """Yield the names of required tensors: those that every layer of its kind has."""
    yield "token_embd.weight"
    hyper = architecture.hyper
    trunk = 0 if part == "mtp" else config.layers
    if config.get("tie_word_embeddings") is False:
        yield "output.weight"
    if trunk:
        yield from ("output_hc_norm.weight", "output_hc_down.weight") if hyper else ("output_norm.weight",)
    linear = linear_layers(config) if architecture.linear else [False] * config.layers
    for block in [*range(trunk), *range(config.layers, blocks)]:
        yield f"blk.{block}.{'hc_attn_norm' if hyper else 'attn_norm'}.weight"
        yield f"blk.{block}.{'ssm_out' if block < trunk and linear[block] else 'attn_output'}.weight"
    for block in range(config.layers, blocks):
        yield from (f"blk.{block}.nextn.{name}.weight" for name in ("eh_proj", "enorm", "hnorm"))


def convert_checkpoint(
    source: SafetensorsSource, out_path: Path, *, progress: Progress | None = None, threads: int | None = None
) -> ConvertResult:
    """Write ``source`` to ``out_path`` atomically and return the facts of the file.

    The disk space is checked first. ``EnvironmentFailure`` if it is too small or writing fails, ``BadInput`` if the
    checkpoint changes meanwhile.
    """
    if out_path.suffix != ".gguf":
        raise BadInput("the name of a GGUF file must end in .gguf", where=out_path)
    return write_gguf(source, out_path, progress=progress, threads=threads)
