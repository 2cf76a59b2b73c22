"""A safetensors checkpoint as a GGUF model: planned at once, read a few rows at a time, written or quantized.

    with SafetensorsSource.open(folder, "bf16") as source:
        convert(source, Path("model.gguf"))

Whole files are byte-identical to those of llama.cpp's converter. ``SafetensorsSource`` is a ``TensorSource``: the
quantizer reads it directly, without a GGUF in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, LlamaFileType

from strata_pack.errors import BadInput, WrongUse
from strata_pack.progress import Progress
from strata_pack.weights.convert.arch import Architecture, recognise
from strata_pack.weights.convert.cast import F32
from strata_pack.weights.convert.config import Config, read_json_object
from strata_pack.weights.convert.metadata import build_metadata
from strata_pack.weights.convert.rows import view_reader
from strata_pack.weights.convert.rules import Rules, View, rope_factors, text_tensors
from strata_pack.weights.convert.safetensors import Checkpoint
from strata_pack.weights.convert.vocabulary import read_vocabulary
from strata_pack.weights.convert.write import ConvertResult, write_gguf
from strata_pack.weights.gguf.file import MAX_TENSOR_NAME, MetaValue
from strata_pack.weights.tensor_source import RowReader, SourceTensor

__all__ = ["OUTTYPES", "ConvertResult", "SafetensorsSource", "check_convertible", "convert_checkpoint", "result_dict"]

OUTTYPES: Mapping[str, tuple[GGMLQuantizationType, LlamaFileType]] = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}

# Names that gguf 0.19 does not map for these architectures: multi-token prediction came later.
_MTP_NAMES = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
_ALWAYS_F32 = (".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight", ".ssm_conv1d.weight")


@dataclass(frozen=True)
class _Planned:
    tensor: SourceTensor
    view: View | None


class SafetensorsSource:
    """A checkpoint seen as the GGUF model it becomes. Use as a context manager; attributes are read-only."""

    label: str
    fingerprint: str
    metadata: Mapping[str, MetaValue]
    tensors: Sequence[SourceTensor]
    shards = 1
    architecture: Architecture
    outtype: str
    parameters: int

    def __init__(
        self,
        folder: Path,
        outtype: str = "auto",
        *,
        pre: str | None = None,
        mtp: bool = True,
        name: str | None = None,
    ) -> None:
        """Read and check everything but the weights of ``folder``.

        ``outtype`` "auto" keeps BF16 or F16, whichever the weights have. ``pre`` names the pre-tokenizer instead of
        recognising it; ``mtp`` False leaves out layers for multi-token prediction; ``name`` is the model's name in
        the header. ``BadInput`` for everything that cannot become a whole model.
        """
        # The folder's name may become the model's: "." has none.
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        if not folder.is_dir():
            raise BadInput("no such folder", where=folder, remedy="give the folder of a safetensors checkpoint")
        with _wrong_kinds(folder):
            self._read(folder, outtype, pre, mtp, name)

    def _read(self, folder: Path, outtype: str, pre: str | None, mtp: bool, name: str | None) -> None:
        raw = read_json_object(folder / "config.json")
        self.architecture, config = recognise(raw, folder / "config.json")
        vocabulary = read_vocabulary(folder, config, raw, pre)
        self.label = str(folder)
        self._checkpoint = Checkpoint(folder)
        try:
            views, blocks = self._views(config, mtp)
            self.outtype = _chosen(outtype, views)
            self._planned = self._plan(config, views, blocks)
            self.tensors = tuple(planned.tensor for planned in self._planned.values())
            shapes = [(tensor.name, tuple(reversed(tensor.shape))) for tensor in self.tensors]
            self.parameters = sum(tensor.elements for tensor in self.tensors)
            self.metadata = build_metadata(
                folder,
                self.architecture,
                config,
                shapes,
                OUTTYPES[self.outtype][1],
                blocks,
                vocabulary.tokenizer,
                vocabulary.special,
                name,
            )
            self.fingerprint = self._fingerprint()
        except BaseException:
            self._checkpoint.close()
            raise

    @classmethod
    def open(cls, folder: Path | str, outtype: str = "auto", **options: Any) -> SafetensorsSource:
        """Return the source; the options are those of the constructor."""
        return cls(Path(folder), outtype, **options)

    def __enter__(self) -> SafetensorsSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; readers handed out stop working."""
        self._checkpoint.close()

    def rows(self, tensor: SourceTensor) -> RowReader:
        """Return the reader of a tensor's rows, in the tensor's own type."""
        view = self._planned[tensor.name].view
        if view is None:
            assert self._factors is not None
            data = np.frombuffer(self._factors.astype("<f4").tobytes(), dtype=np.uint8)

            def constant(first: int, count: int, out: npt.NDArray[np.uint8]) -> None:
                row = tensor.row_length * 4
                out[: count * row] = data[first * row : (first + count) * row]

            return constant
        return view_reader(self._checkpoint, view, tensor)

    def _views(self, config: Config, mtp: bool) -> tuple[list[View], int]:
        layers, where = config.layers, self._checkpoint.folder
        stored = self._checkpoint.tensors.values()
        named, mtp_layers = text_tensors(stored, layers, where, mtp=mtp and self.architecture.linear)
        promised = config.get("mtp_num_hidden_layers") or 0
        if mtp and self.architecture.linear and promised > mtp_layers:
            raise BadInput(
                f"config.json promises {promised} MTP layers and the weights have {mtp_layers}",
                where=where,
                remedy="leave them out with --no-mtp",
            )
        rules = Rules(self.architecture, config, where)
        self._factors = rope_factors(config)
        return list(rules.views(named)), layers + mtp_layers

    def _plan(self, config: Config, views: Sequence[View], blocks: int) -> dict[str, _Planned]:
        names = gguf.get_tensor_name_map(self.architecture.gguf, blocks)
        planned: dict[str, _Planned] = {}
        if self._factors is not None:
            tensor = SourceTensor("rope_freqs.weight", (len(self._factors),), F32)
            planned[tensor.name] = _Planned(tensor, None)
        target = OUTTYPES[self.outtype][0]
        for view in views:
            name = self._gguf_name(view.name, names, blocks)
            if name in planned:
                raise BadInput(f"{view.name} becomes {name}, which is there already", where=self._checkpoint.folder)
            shape = tuple(reversed(view.shape)) or (1,)
            type_ = F32 if _stays_f32(name, len(view.shape)) else target
            planned[name] = _Planned(SourceTensor(name, shape, type_, 0, len(planned)), view)
        self._require(planned, config, blocks)
        return planned

    def _gguf_name(self, name: str, names: gguf.TensorNameMap, blocks: int) -> str:
        head, _, suffix = name.rpartition(".")
        for theirs, ours in _MTP_NAMES.items():
            if self.architecture.linear and head == f"model.layers.{blocks - 1}.{theirs}":
                return f"blk.{blocks - 1}.nextn.{ours}.{suffix}"
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None or len(found) > MAX_TENSOR_NAME:
            raise BadInput(
                f"the tensor {name} is none that {self.architecture.name} has",
                where=self._checkpoint.folder,
                remedy="the checkpoint is of another model, or an adapter",
            )
        return str(found)

    def _require(self, planned: Mapping[str, _Planned], config: Config, blocks: int) -> None:
        """Refuse a checkpoint in which whole layers, the embedding or the final norm are missing."""
        wanted = ["token_embd.weight", "output_norm.weight"]
        wanted += [f"blk.{block}.attn_norm.weight" for block in range(blocks)]
        if config.get("tie_word_embeddings") is False:
            wanted.append("output.weight")
        for name in wanted:
            if name not in planned:
                raise BadInput(
                    f"has no tensor that becomes {name}",
                    where=self._checkpoint.folder,
                    remedy="the checkpoint is incomplete or config.json is of another model",
                )
        rows = planned["token_embd.weight"].tensor.shape
        expected = (config.integer("hidden_size"), config.integer("vocab_size"))
        if rows != expected:
            raise BadInput(
                f"the embedding is {list(reversed(rows))} and config.json says {list(reversed(expected))}",
                where=self._checkpoint.folder,
            )

    def _fingerprint(self) -> str:
        digest = hashlib.sha256()
        for key, value in self.metadata.items():
            digest.update(key.encode() + b"\0" + value.raw)
        for tensor in self.tensors:
            digest.update(f"{tensor.name} {tensor.shape} {tensor.type.name}\n".encode())
        for path in self._checkpoint.files:
            status = path.stat()
            digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
        return digest.hexdigest()


@contextmanager
def _wrong_kinds(folder: Path) -> Iterator[None]:
    """Turn what the code makes of a value of a wrong kind into ``BadInput``: there are too many fields to check each.

    A division by zero or of NaN is an error too, not a warning and a header full of NaN.
    """
    try:
        with np.errstate(divide="raise", invalid="raise"):
            yield
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        problem = f"config.json or a tokenizer file holds a value of a wrong kind ({error})"
        raise BadInput(problem, where=folder, remedy="fetch it again") from error


def check_convertible(folder: Path, pre: str | None = None) -> Architecture:
    """Check configuration and tokenizer of a checkpoint whose weights need not be there yet; ``BadInput`` by name."""
    raw = read_json_object(folder / "config.json")
    with _wrong_kinds(folder):
        architecture, config = recognise(raw, folder / "config.json")
        read_vocabulary(folder, config, raw, pre)
    return architecture


def convert_checkpoint(
    source: SafetensorsSource, out_path: Path, *, progress: Progress | None = None, threads: int | None = None
) -> ConvertResult:
    """Write ``source`` to ``out_path``, whole or not at all, and return what was written.

    The disk is checked before the first byte. ``EnvironmentFailure`` when it is too small or fails, ``BadInput`` when
    the checkpoint changes meanwhile.
    """
    if out_path.suffix != ".gguf":
        raise BadInput("the name of a GGUF file ends in .gguf", where=out_path)
    return write_gguf(source, out_path, progress=progress, threads=threads)


def result_dict(source: SafetensorsSource, result: ConvertResult) -> dict[str, object]:
    """Return a result as the JSON object of ``convert --json``."""
    return {
        "ok": True,
        "file": str(result.path),
        "size": result.size,
        "sha256": result.sha256,
        "architecture": source.architecture.name,
        "outtype": source.outtype,
        "parameters": source.parameters,
        "tensors": len(result.tensor_types),
    }


def _chosen(outtype: str, views: Sequence[View]) -> str:
    """Return the type to write; "auto" is that of the first stored matrix, F16 if it has neither half type."""
    if outtype != "auto":
        if outtype not in OUTTYPES:
            raise WrongUse(
                "is no type to convert to", where=f"--outtype {outtype}", remedy="give bf16, f16, f32 or auto"
            )
        return outtype
    for view in views:
        tensor = view.pieces[0].tensor
        if len(tensor.shape) > 1 and tensor.dtype in ("BF16", "F16"):
            return tensor.dtype.lower()
    return "f16"


def _stays_f32(name: str, dimensions: int) -> bool:
    return dimensions <= 1 or name.endswith(("_norm.weight", *_ALWAYS_F32)) or not name.endswith(".weight")
