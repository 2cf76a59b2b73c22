"""Says before loading whether a model on disk fits in the memory of this machine."""

from __future__ import annotations

from pathlib import Path

from strata_pack.llama.devices import nvidia_devices
from strata_pack.llama.memory import Fit, available_memory, kv_cache_bytes
from strata_pack.llama.runtimes import Runtime
from strata_pack.pack.layout import Pack
from strata_pack.weights.gguf.file import GgufFile, shard_paths


def model_files(path: Path) -> list[Path]:
    """Return the GGUF files of a pack or of a (first shard of a) model."""
    return Pack.open(path).model_files if path.is_dir() else shard_paths(path)


def fit_of(path: Path, context: int, runtime: Runtime) -> Fit:
    """Return what the model in ``path`` needs with ``context`` tokens, and what there is for ``runtime``.

    A CUDA runtime is measured against the free memory of the GPUs (llama.cpp leaves layers that do not fit in main
    memory); any other against main memory. Raises ``BadInput`` for a file that is no GGUF or does not say its shape.
    """
    files = model_files(path)
    with GgufFile.open(files[0]) as gguf:
        metadata = {name: value.value for name, value in gguf.metadata.items()}
    weights = sum(file.stat().st_size for file in files)
    gpus = nvidia_devices() if runtime.backend == "cuda" else ()
    available = sum(gpu.memory_free for gpu in gpus) if gpus else available_memory()
    place = ", ".join(gpu.description for gpu in gpus) if gpus else "main memory"
    return Fit(weights, kv_cache_bytes(metadata, context), available, place)
