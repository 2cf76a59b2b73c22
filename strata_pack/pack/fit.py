"""Estimates, before a model is loaded, whether it fits in the memory of this machine."""

from __future__ import annotations

from pathlib import Path

from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.memory import Fit, MemoryNeed, Room, main_memory, memory_need
from strata_pack.llama.runtimes import Runtime, runtime_devices
from strata_pack.pack.layout import Pack
from strata_pack.pack.projector import check_pair
from strata_pack.weights.gguf.file import GgufFile, shard_paths
from strata_pack.weights.preflight import size_text


class DoesNotFit(EnvironmentFailure):
    """The model needs more memory than is available; nothing was loaded."""


def model_files(path: Path) -> list[Path]:
    """Return the GGUF files of a pack or of a (first shard of a) model."""
    return Pack.open(path).model_files if path.is_dir() else shard_paths(path)


def own_projector(path: Path) -> Path | None:
    """Return the projector of a pack, ``None`` for a pack without one and for a GGUF."""
    return Pack.open(path).projector_path if path.is_dir() else None


def need_of(path: Path, context: int, slots: int = 1, projector: Path | None = None) -> MemoryNeed:
    """Return the memory that a server needs for the model in ``path`` (pack or GGUF) and its ``projector``, if any.

    ``context`` counts the tokens of all ``slots`` together. Raises ``BadInput`` for a file that is not a GGUF, and for
    the projector of another model.
    """
    metadata: dict[str, object] = {}
    tensors: list[tuple[str, int]] = []
    for number, file in enumerate(model_files(path)):
        with GgufFile.open(file) as gguf:
            if number == 0:
                metadata = {name: value.value for name, value in gguf.metadata.items()}
                if projector is not None:
                    with GgufFile.open(projector) as eyes:
                        check_pair(gguf.metadata, eyes.metadata, projector)
            tensors += [(info.name, info.nbytes) for info in gguf.tensors]
    seeing = 0 if projector is None else projector.stat().st_size
    return memory_need(metadata, tensors, context, slots=slots, projector=seeing)


def room_of(runtime: Runtime) -> Room:
    """Return the memory in which ``runtime`` loads a model: its GPUs and, for the rest, main memory; or main memory
    only."""
    main = main_memory()
    gpus = runtime_devices(runtime)
    if not gpus:
        return main
    return Room(sum(gpu.memory_free for gpu in gpus), ", ".join(gpu.description for gpu in gpus), main.free)


def fit_of(path: Path, context: int, runtime: Runtime, slots: int = 1, projector: Path | None = None) -> Fit:
    """Return the memory that the model in ``path`` needs and that ``runtime`` has; raises ``BadInput`` as
    ``need_of``."""
    return Fit(need_of(path, context, slots, projector), room_of(runtime))


def fit_sentence(fit: Fit) -> str:
    """Return the forecast as a sentence: each part that needs memory, and the free memory."""
    need, room = fit.need, fit.room
    cache = "a KV cache of unknown size" if need.kv_cache is None else f"{size_text(need.kv_cache)} of KV cache"
    lazy = f" ({size_text(need.lazy)} of n-gram table stay on the disk)" if need.lazy else ""
    rest = f" and {size_text(room.main_memory)} in main memory" if room.main_memory else ""
    eyes = f"{size_text(need.projector)} of projector, " if need.projector else ""
    parts = f"{size_text(need.held)} of weights{lazy}, {eyes}{cache} and buffers"
    return f"{size_text(need.total)} for {parts}; {size_text(room.free)} free in {room.place}{rest}"


def refuse_misfit(path: Path, fit: Fit) -> None:
    """Raise ``DoesNotFit`` if the model does not fit, even with layers in main memory."""
    if not fit.runs:
        raise DoesNotFit(
            f"needs {fit_sentence(fit)}",
            where=path,
            remedy="use a smaller context or a smaller quantization, or start it anyway with --anyway",
        )
