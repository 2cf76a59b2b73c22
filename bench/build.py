"""Where the time of a whole build goes: every stage of ``strata-pack build`` beside what the machine can do.

    python bench/build.py [--megabytes 600] [--preset Q4_K_M] [--rounds 3] [--together]

Makes a random Qwen3 checkpoint of the given size on the spot and builds a pack from it, each round in a process of its
own (imports count). Reading, quantizing and writing are what a build is for; all else together may take 5 percent.
Beside it stand three floors of the same machine: reading the checkpoint, quantizing as many weights from memory with
all cores, and writing the finished model and syncing it. With ``--together`` several presets are built from one reading
too: the wall may be 1.1 times that of reading once and what each single build took beyond its reading.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.convert import machine, make_checkpoint  # noqa: E402
from strata_pack.files import CHUNK, dump_json  # noqa: E402

RESULT = ROOT / "bench/results/build.json"
WORK = "quantize"
"""The stage that reads, quantizes and writes."""
TARGET = 0.05
TOGETHER = ("Q8_0", "Q6_K", "Q4_K_M")
TOGETHER_TARGET = 1.1
SAMPLE = 1 << 24
"""Weights quantized for the floor."""

BUILD = """
import json, sys, time
started = time.perf_counter()
from pathlib import Path
from strata_pack.pack.build import build_packs
from strata_pack.pack.request import BuildRequest
imported = time.perf_counter()
presets = sys.argv[3].split(",")
outs = [Path(f"{sys.argv[2]}-{name}") if len(presets) > 1 else Path(sys.argv[2]) for name in presets]
result = build_packs([BuildRequest(sys.argv[1], out, name) for out, name in zip(outs, presets)])[0]
ended = time.perf_counter()
print(json.dumps({"wall": ended - started, "imports": imported - started, "stages": dict(result.seconds)}))
"""


def build_once(source: Path, out: Path, preset: str) -> dict[str, Any]:
    """Build a pack in a process of its own; return its wall time and stages in seconds."""
    command = [sys.executable, "-c", BUILD, str(source), str(out), preset]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def together(source: Path, work: Path, read_s: float, rounds: int) -> dict[str, Any]:
    """Return the wall of TOGETHER from one reading, and what reading once and each preset's own work allow."""
    alone = {
        preset: statistics.median(build_once(source, work / f"{preset}-{n}", preset)["wall"] for n in range(rounds))
        for preset in TOGETHER
    }
    walls = [build_once(source, work / f"together{n}", ",".join(TOGETHER))["wall"] for n in range(rounds)]
    allowed = read_s + sum(wall - read_s for wall in alone.values())
    wall = statistics.median(walls)
    print(f"{'+'.join(TOGETHER)} from one reading: {wall:.2f} s, {wall / allowed:.2f} of the sum ({allowed:.2f} s)")
    return {"alone": alone, "wall": wall, "allowed": allowed, "ratio": wall / allowed, "target": TOGETHER_TARGET}


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def read_all(folder: Path) -> None:
    """Read every file of ``folder`` once."""
    buffer = bytearray(8 * CHUNK)
    for path in folder.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def write_and_sync(path: Path, size: int) -> None:
    """Write ``size`` bytes and wait for the disk."""
    block = os.urandom(8 * CHUNK)
    with path.open("wb", buffering=0) as file:
        while size > 0:
            size -= file.write(block[:size])
        os.fsync(file.fileno())
    path.unlink()


def quantize_from_memory(types: dict[str, int]) -> float:
    """Return the seconds that quantizing ``types`` (weights by type) takes with all cores when nothing is read."""
    from gguf import GGMLQuantizationType

    from strata_pack.llama.ggml import row_nbytes
    from strata_pack.llama.quantizer import Quantizer

    quantizer = Quantizer.load()
    rows = np.random.default_rng(0).standard_normal((SAMPLE // 1024, 1024), dtype=np.float32) * np.float32(0.02)
    cores = len(os.sched_getaffinity(0))

    def sample(type: GGMLQuantizationType) -> float:
        """Return the seconds for SAMPLE weights."""
        parts = np.array_split(rows, cores * 8)
        outs = [np.empty(len(part) * row_nbytes(type, 1024), np.uint8) for part in parts]
        with ThreadPoolExecutor(cores) as pool:
            return timed(lambda: list(pool.map(quantizer.quantize_chunk, [type] * len(parts), parts, outs)))

    quantized = {name: weights for name, weights in types.items() if name != "F32"}
    return sum(sample(GGMLQuantizationType[name]) * weights / SAMPLE for name, weights in quantized.items())


def weights_by_type(pack: Path) -> tuple[dict[str, int], int]:
    """Return the weights by type and the bytes of a pack's model."""
    from strata_pack.pack.layout import Pack
    from strata_pack.weights.gguf.file import GgufFile

    types: dict[str, int] = {}
    size = 0
    for path in Pack.open(pack).model_files:
        with GgufFile.open(path) as gguf:
            size += gguf.file_size
            for tensor in gguf.tensors:
                types[tensor.type.name] = types.get(tensor.type.name, 0) + tensor.elements
    return types, size


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--preset", default="Q4_K_M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-build-") as folder:
        work = Path(folder)
        source = work / "checkpoint"
        source.mkdir()
        make_checkpoint(source, "qwen3", options.megabytes)
        rounds = [build_once(source, work / f"pack{number}", options.preset) for number in range(options.rounds)]
        types, size = weights_by_type(work / "pack0")
        floors = {
            "read": timed(lambda: read_all(source)),
            "quantize": quantize_from_memory(types),
            "write": timed(lambda: write_and_sync(work / "floor", size)),
        }
        several = together(source, work, floors["read"], options.rounds) if options.together else {}
    names = ["imports", *rounds[0]["stages"]]
    median = {name: statistics.median({"imports": r["imports"], **r["stages"]}[name] for r in rounds) for name in names}
    wall = statistics.median(r["wall"] for r in rounds)
    other = statistics.median(1 - r["stages"][WORK] / r["wall"] for r in rounds)
    for name, seconds in median.items():
        print(f"{name:18} {seconds:8.2f} s {seconds / wall:7.1%}")
    print(f"{'whole build':18} {wall:8.2f} s; all but {WORK}: {other:.1%} (target: at most {TARGET:.0%})")
    print("floors: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in floors.items()))
    print(
        f"{WORK} against the sum of the floors: {median[WORK] / sum(floors.values()):.2f}, "
        f"against the largest: {median[WORK] / max(floors.values()):.2f}"
    )
    value = {
        "machine": machine(),
        "load": os.getloadavg()[0],
        "megabytes": options.megabytes,
        "preset": options.preset,
        "model_bytes": size,
        "wall_s": wall,
        "stages_s": median,
        "floors_s": floors,
        "share_of_all_else": other,
        "target": TARGET,
        "rounds": rounds,
        "together": several,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_bytes(dump_json(value))


if __name__ == "__main__":
    main()
