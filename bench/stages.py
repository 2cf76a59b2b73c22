"""Quantizing by stage: the processor time of each, and how far its rate is from the machine's memory and disk.

    python bench/stages.py [--megabytes 200] [--threads 2] [--types Q8_0 Q6_K Q4_K_M Q4_K_M:imatrix ...]

Quantizes a random F16 model in this process with a clock of the thread's own around every stage. Rates are in MB of
the floats a stage stands for (4 bytes a weight) in a second of one core, so that they compare with each other and with
what the machine allows: copying memory, hashing, writing a file and syncing it.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.quantize import machine, make_model  # noqa: E402
from strata_pack.files import dump_json  # noqa: E402
from strata_pack.llama.ggml import Ggml  # noqa: E402
from strata_pack.llama.kernels import Kernels  # noqa: E402
from strata_pack.llama.quantizer import Quantizer  # noqa: E402
from strata_pack.weights.quantize.imatrix import read_imatrix  # noqa: E402
from strata_pack.weights.quantize.journal import PartialFiles  # noqa: E402
from strata_pack.weights.quantize.run import plan_quantization, quantized_types, run_plan  # noqa: E402
from strata_pack.weights.tensor_source import GgufSource  # noqa: E402

RESULT = ROOT / "bench/results/stages.json"
TYPES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_M:imatrix", "IQ4_XS")
STAGES: dict[str, tuple[Any, str]] = {
    "read": (os, "preadv"),
    "F16 to F32": (Kernels, "to_f32"),
    "kernels": (Kernels, "quantize_chunk"),
    "rows again in ggml": (Ggml, "quantize"),
    "NaN and infinities": (Ggml, "is_finite"),
    "write": (PartialFiles, "put"),
    "SHA-256": (PartialFiles, "count"),
}
"""What does each stage's work."""


@contextmanager
def clocked(owner: Any, name: str, spent: dict[str, float], stage: str) -> Iterator[None]:
    """Add the processor time that ``owner.name`` takes, on whatever thread, to ``spent[stage]``."""
    real, lock = getattr(owner, name), threading.Lock()

    def timed(*arguments: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return real(*arguments, **options)
        finally:
            took = time.thread_time() - begin
            with lock:
                spent[stage] += took

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, real)


def stages_of(source: Path, preset: str, threads: int, out: Path) -> tuple[dict[str, float], float]:
    """Return the processor seconds by stage of one run, and the megabytes of floats it stands for."""
    name, _, weighed = preset.partition(":")
    imatrix = read_imatrix(source.with_name("imatrix.gguf")) if weighed else None
    spent: dict[str, float] = defaultdict(float)
    with GgufSource(source) as opened, ExitStack() as stack:
        plan = plan_quantization(opened, name, imatrix)
        # The kernels prove themselves once a process: that is no part of a stage.
        Quantizer.load().entry(quantized_types(plan))
        for stage, (owner, function) in STAGES.items():
            stack.enter_context(clocked(owner, function, spent, stage))
        begin = time.process_time()
        run_plan(plan, out, threads=threads)
        whole = time.process_time() - begin
    spent["all else"] = whole - sum(spent.values())
    return dict(spent), 4 * plan.parameters / 1e6


def limits(folder: Path) -> dict[str, float]:
    """Return what the machine allows, in MB a second: copying memory, SHA-256, writing and syncing (wall)."""
    data = np.random.default_rng(0).integers(0, 255, 64 << 20, np.uint8)
    copy, megabytes = np.empty_like(data), data.nbytes / 1e6

    def rate(work: Any) -> float:
        times = []
        for _ in range(3):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        return megabytes / min(times)

    def write() -> None:
        with (folder / "limit").open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())

    return {
        "memory copy": rate(lambda: np.copyto(copy, data)),
        "SHA-256": rate(lambda: hashlib.sha256(data).digest()),
        "write and sync": rate(write),
    }


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--types", nargs="+", default=TYPES)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source.gguf"
        maker = multiprocessing.get_context("spawn").Process(target=make_model, args=(source, options.megabytes))
        maker.start()
        maker.join()
        allowed = limits(Path(folder))
        print(f"{machine()}; " + ", ".join(f"{name} {value:,.0f} MB/s" for name, value in allowed.items()))
        print(f"{'type':16}" + "".join(f"{stage:>20}" for stage in (*STAGES, "all else")))
        for preset in options.types:
            spent, megabytes = stages_of(source, preset, options.threads, Path(folder) / "out.gguf")
            whole = sum(spent.values())
            cells = (spent.get(stage, 0.0) for stage in (*STAGES, "all else"))
            shown = (f"{s:.2f} s {s / whole:4.0%} {megabytes / s:,.0f}" if s > 0.0005 else "-" for s in cells)
            print(f"{preset:16}" + "".join(f"{cell:>20}" for cell in shown), flush=True)
            found[preset] = {
                "megabytes_of_floats": megabytes,
                "processor_s": whole,
                "stages": {
                    name: {"processor_s": s, "mb_per_s": megabytes / s if s else None} for name, s in spent.items()
                },
            }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_bytes(dump_json({"machine": machine(), "limits_mb_per_s": allowed, "types": found}))


if __name__ == "__main__":
    main()
