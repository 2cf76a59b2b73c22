"""Handles a pack's projector: the vision encoder of its model, in a separate GGUF.

A checkpoint's vision tower is converted to a projector by default; a GGUF's projector is the file next to it, or the
one given with --mmproj. A projector of another model is refused: its vectors have another width, or enter layers that
the model lacks.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import CHUNK, atomic_writer, sha256_file
from strata_pack.pack.file_names import file_stem
from strata_pack.pack.manifest import FileEntry, ProjectorEntry
from strata_pack.pack.paths import MODEL_DIR
from strata_pack.progress import Progress
from strata_pack.weights.gguf.file import GgufFile, MetaValue

if TYPE_CHECKING:  # only building needs numpy and the converter; verifying does not
    from strata_pack.pack.model_source import Model
    from strata_pack.pack.request import BuildRequest
    from strata_pack.weights.tensor_source import TensorSource

PREFIX = "mmproj-"
ROLE = "projector"
_KIND = "general.type"
_FILE_TYPES = {0: "F32", 1: "F16", 7: "Q8_0", 32: "BF16"}
_HEADER_ROOM = 1 << 20


@dataclass(frozen=True)
class PlannedProjector:
    """A projector that a build will put into the pack: copied from ``path``, or converted where that is None."""

    source: TensorSource
    type: str
    path: Path | None

    @property
    def nbytes(self) -> int:
        """The size on disk in bytes; an upper estimate."""
        return sum(tensor.nbytes + 32 for tensor in self.source.tensors) + _HEADER_ROOM


@contextmanager
def open_projector(
    request: BuildRequest, model: Model, tensors: TensorSource, progress: Progress
) -> Iterator[PlannedProjector | None]:
    """Yield the projector for the pack of ``model`` (opened as ``tensors``), or ``None``.

    Raises ``BadInput`` for a projector of another model and ``WrongUse`` if a file is named with a checkpoint.
    """
    from strata_pack.weights.convert.convert import SafetensorsSource
    from strata_pack.weights.tensor_source import GgufSource

    if not request.projector:
        yield None
        return
    if isinstance(tensors, SafetensorsSource):
        if request.projector_file is not None:
            raise WrongUse("the checkpoint's own tower is converted", where="--mmproj", remedy="leave it out")
        if tensors.left_out and not tensors.has_tower:
            progress.note(
                f"{tensors.label}: its vision or audio tower is left out: this kind of tower cannot be converted"
            )
        if not tensors.left_out or not tensors.has_tower:
            yield None
            return
        folder = Path(tensors.label)
        with SafetensorsSource.open(folder, request.projector_type, part="projector") as tower:
            check_pair(tensors.metadata, tower.metadata, folder)
            yield PlannedProjector(tower, tower.outtype.upper(), None)
        return
    path = request.projector_file or _beside(model, progress)
    if path is None:
        yield None
        return
    with GgufSource(path) as copied:
        check_pair(tensors.metadata, copied.metadata, path)
        yield PlannedProjector(copied, _type_of(copied.metadata), path)


def _beside(model: Model, progress: Progress) -> Path | None:
    """Return the only projector in the folder of a GGUF model, ``None`` (with a note) if there are several."""
    if model.folder is None:
        return None
    found = sorted(path for path in model.folder.glob("*.gguf") if "mmproj" in path.name.lower())
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        progress.note(f"{model.folder}: has {len(found)} projectors ({names}); name one with --mmproj to pack it")
    return found[0] if len(found) == 1 else None


def _type_of(metadata: Mapping[str, MetaValue]) -> str:
    value = metadata.get("general.file_type")
    return _FILE_TYPES.get(int(value.value), "GGUF") if value is not None else "GGUF"


def check_pair(model: Mapping[str, MetaValue], projector: Mapping[str, MetaValue], where: Path) -> None:
    """Raise ``BadInput`` for a GGUF that is not a projector, or not of the model with the header ``model``."""
    kind = _value(projector, _KIND)
    if kind != "mmproj":
        raise BadInput(f"is not a projector (general.type is {kind!r})", where=where)
    architecture = _value(model, "general.architecture")
    width, wanted = _value(projector, "clip.vision.projection_dim"), _value(model, f"{architecture}.embedding_length")
    if width != wanted:
        raise BadInput(
            f"is the projector of another model: it gives vectors of {width} and the model takes {wanted}",
            where=where,
            remedy="take the projector from the model's own release",
        )
    deep = _value(projector, "clip.vision.is_deepstack_layers")
    reaching, taken = sum(map(bool, deep or ())), _value(model, f"{architecture}.n_deepstack_layers") or 0
    if reaching != taken:
        raise BadInput(
            f"is the projector of another model: it feeds {reaching} layers and the model expects {taken}",
            where=where,
            remedy="take the projector from the model's own release",
        )


_OTHER_KINDS = {
    "mmproj": ("a projector, not a model", "build the pack of its model, with --mmproj naming this file"),
    "adapter": ("a LoRA adapter, not a model", "merge it into its base model first"),
    "imatrix": ("an importance matrix, not a model", "give it with --imatrix"),
}


_DRAFT_MODELS = {"eagle3": "EAGLE-3", "dflash": "DFlash"}
"""Architectures of draft models in separate files."""


def refuse_other_kinds(metadata: Mapping[str, MetaValue], where: str) -> None:
    """Raise ``BadInput`` for a GGUF that is not a model; the message says what it is."""
    kind = _OTHER_KINDS.get(str(_value(metadata, _KIND)))
    if kind is not None:
        raise BadInput(f"is {kind[0]}", where=where, remedy=kind[1])
    draft = _DRAFT_MODELS.get(str(_value(metadata, "general.architecture")))
    if draft is not None:
        raise BadInput(
            f"is a draft model ({draft}), which is not supported", where=where, remedy="take the model itself"
        )


def _value(metadata: Mapping[str, MetaValue], key: str) -> Any:
    found = metadata.get(key)
    return None if found is None else found.value


@dataclass(frozen=True)
class WrittenProjector:
    """The manifest's entry of a written projector."""

    file: FileEntry
    entry: ProjectorEntry


@dataclass(frozen=True)
class ProjectorPlace:
    """A pack in its build folder ``root``, and its projector, if any."""

    planned: PlannedProjector | None
    request: BuildRequest
    root: Path


def write_projectors(
    places: Sequence[ProjectorPlace], model: Model, progress: Progress
) -> list[WrittenProjector | None]:
    """Write the projectors into their packs; a projector of several packs is converted once and copied."""
    done: dict[tuple[str, Path | None], Path] = {}
    written: list[WrittenProjector | None] = []
    for place in places:
        planned = place.planned
        if planned is None:
            written.append(None)
            continue
        key = (planned.type, planned.path)
        one = _write_projector(planned, done.get(key, planned.path), place, model, progress)
        done.setdefault(key, place.root / one.file["path"])
        written.append(one)
    return written


def _write_projector(
    planned: PlannedProjector, copied: Path | None, place: ProjectorPlace, model: Model, progress: Progress
) -> WrittenProjector:
    """Write ``planned`` into a pack, as a copy if the same projector was already written."""
    request = place.request
    stem = file_stem(request.name) if request.name else model.name
    name = f"{MODEL_DIR}/{PREFIX}{stem}-{planned.type}.gguf"
    target = place.root / name
    if copied is None:
        from strata_pack.weights.convert.write import write_gguf

        result = write_gguf(planned.source, target, progress=progress, threads=request.threads)
        size, digest = result.size, result.sha256
    else:
        with atomic_writer(target) as file, copied.open("rb") as source:
            shutil.copyfileobj(source, file, CHUNK)
        size, digest = target.stat().st_size, sha256_file(target)
    parameters = sum(tensor.elements for tensor in planned.source.tensors)
    return WrittenProjector(
        FileEntry(path=name, size=size, sha256=digest, role=ROLE),
        ProjectorEntry(file=name, type=planned.type, parameters=parameters),
    )


def projector_faults(model: Path, projector: Path, entry: ProjectorEntry) -> list[str]:
    """Return the problems of a pack's projector: wrong kind, wrong model, wrong type, wrong size."""
    with GgufFile.open(model) as head, GgufFile.open(projector) as file:
        check_pair(head.metadata, file.metadata, projector)
        elements = sum(tensor.elements for tensor in file.tensors)
        type_ = _type_of(file.metadata)
    wrong = []
    if elements != entry["parameters"]:
        wrong.append(f"the projector has {elements} weights and the manifest says {entry['parameters']}")
    if type_ != entry["type"]:
        wrong.append(f"the projector is {type_} and the manifest says {entry['type']}")
    return wrong
