"""Quantizing: ``strata_pack`` against llama.cpp's own quantizer (``cyllama``), wall time and peak memory per type.

    python bench/quantize.py [--megabytes 520] [--rounds 3] [--threads 2] [--types Q8_0 Q4_K_M Q4_K_M:imatrix ...]

Makes a random F16 model of the given size on the spot and quantizes it in alternating runs, each in a process of its
own. Both walls end when the file is on the disk: ours syncs before it ends, for the reference it is done here. Beside
the figures stands what the machine allows: the time of reading the source and writing and syncing as many bytes as the
result has, and the share of the cores' time that went into quantizing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.files import CHUNK, dump_json, sha256_file  # noqa: E402
from strata_pack.weights.quantize.imatrix import read_imatrix  # noqa: E402
from tests.weights.quantize.models import Shape, sizes, write_imatrix, write_model  # noqa: E402
from tests.weights.quantize.oracle import SCRIPT as ORACLE_SCRIPT  # noqa: E402

RESULT = ROOT / "bench/results/quantize.json"
TYPES = (
    *("F16", "BF16", "Q8_0", "Q4_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_M:imatrix"),
    *("Q3_K_M", "Q2_K", "Q2_K:imatrix", "IQ4_NL", "IQ4_XS", "IQ4_XS:imatrix"),
)
WALL_TARGETS = {
    "F16": 0.9,
    "Q8_0": 0.8,
    "Q6_K": 0.28,
    "Q5_K_M": 0.20,
    "Q4_K_M": 0.20,
    "Q4_K_M:imatrix": 0.18,
    "IQ4_XS": 0.10,
}
MEMORY_TARGET = 0.15
TOGETHER = ("Q8_0", "Q6_K", "Q4_K_M")
TOGETHER_TARGET = 1.1
SHAPE = Shape(hidden=1024, ffn=3072, heads=16, kv_heads=8, vocab=32768)

OURS = """
import sys
from pathlib import Path
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from strata_pack.weights.quantize.imatrix import read_imatrix
source, out, preset, threads, imatrix = sys.argv[1:]
importances = read_imatrix(Path(imatrix)) if imatrix else None
with GgufSource(source) as opened:
    run_plan(plan_quantization(opened, preset, importances), Path(out), threads=int(threads))
"""
SEVERAL = """
import sys
from pathlib import Path
from strata_pack.weights.quantize.run import Output, plan_quantization, run_plans
from strata_pack.weights.tensor_source import GgufSource
source, out, presets, threads = sys.argv[1:]
with GgufSource(source) as opened:
    outputs = [Output(plan_quantization(opened, name), Path(f"{out}.{name}")) for name in presets.split(",")]
    run_plans(outputs, threads=int(threads))
Path(out).touch()
"""


def machine() -> str:
    """Return the machine in words."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{len(os.sched_getaffinity(0))} cores, {model}, Python {sys.version.split()[0]}"


def make_model(path: Path, megabytes: int) -> None:
    """Write a model of at least ``megabytes`` (F16)."""
    layers = 1
    while sum(2 * _product(size) for size in sizes(replace(SHAPE, layers=layers)).values()) < megabytes * 1_000_000:
        layers += 1
    shape = replace(SHAPE, layers=layers)
    write_model(path, shape)
    imatrix = read_imatrix(write_imatrix(path.with_name("imatrix.gguf"), shape))
    np.savez(path.with_name("imatrix.npz"), **{name: entry.load() for name, entry in imatrix.entries.items()})


def _product(size: tuple[int, ...]) -> int:
    result = 1
    for n in size:
        result *= n
    return result


def measure(script: str, arguments: list[str], out: Path, said: str = "") -> dict[str, float]:
    """Run a script with ``said`` on its stdin.

    Returns seconds to its end, to the file being on the disk, CPU seconds and the peak in MB.
    """
    out.unlink(missing_ok=True)
    os.sync()
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(said.encode())
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    ended = time.perf_counter() - begin
    if status:
        raise SystemExit(f"quantizing to {out.name} failed with status {status}")
    with out.open("rb") as file:
        os.fsync(file.fileno())
    synced = time.perf_counter() - begin
    return {
        "ended_s": ended,
        "wall_s": synced,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
    }


def disk_limit(source: Path, out: Path, scratch: Path) -> float:
    """Return the seconds of reading the source and writing and syncing the bytes of ``out``."""
    begin = time.perf_counter()
    with source.open("rb") as file:
        while file.read(4 * CHUNK):
            pass
    with out.open("rb") as file, scratch.open("wb") as copy:
        while data := file.read(4 * CHUNK):
            copy.write(data)
        copy.flush()
        os.fsync(copy.fileno())
    seconds = time.perf_counter() - begin
    scratch.unlink()
    return seconds


def compare(source: Path, preset: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the figures of one type: medians over the rounds, the largest peak."""
    from strata_pack.weights.quantize.presets import PRESETS

    name, _, weighed = preset.partition(":")
    file_type = PRESETS[name].file_type
    outs = {"ours": scratch / "ours.gguf", "reference": scratch / "reference.gguf"}
    values: dict[str, Any] = {"ftype": file_type, "nthread": options.threads}
    if weighed:
        values["imatrix"] = str(scratch / "imatrix.npz")
    imatrix = str(scratch / "imatrix.gguf") if weighed else ""
    plans = {
        "ours": (OURS, [str(source), str(outs["ours"]), name, str(options.threads), imatrix], ""),
        "reference": (ORACLE_SCRIPT, [], json.dumps([[str(source), str(outs["reference"]), values]])),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in plans}
    for _ in range(options.rounds):
        for side, (script, arguments, said) in plans.items():
            runs[side].append(measure(script, arguments, outs[side], said))
    figures: dict[str, Any] = {
        name: {
            **{key: statistics.median(run[key] for run in found) for key in ("ended_s", "wall_s", "cpu_s")},
            "peak_mb": max(run["peak_mb"] for run in found),
        }
        for name, found in runs.items()
    }
    ours, theirs = figures["ours"], figures["reference"]
    figures |= {
        "wall_ratio": ours["wall_s"] / theirs["wall_s"],
        "ended_ratio": ours["ended_s"] / theirs["ended_s"],
        "cpu_ratio": ours["cpu_s"] / theirs["cpu_s"],
        "memory_ratio": ours["peak_mb"] / theirs["peak_mb"],
        "identical": sha256_file(outs["ours"]) == sha256_file(outs["reference"]),
        "megabytes": outs["ours"].stat().st_size / 1e6,
        "disk_s": disk_limit(source, outs["ours"], scratch / "copy"),
        "core_share": ours["cpu_s"] / ours["wall_s"] / options.threads,
    }
    for path in outs.values():
        path.unlink()
    return figures


def together(source: Path, results: Mapping[str, Any], options: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """Return the wall of several presets from one reading, and what their single runs say it may take.

    That is reading the source once and the sum of what each single run took beyond its reading.
    """
    begin = time.perf_counter()
    with source.open("rb") as file:
        while file.read(4 * CHUNK):
            pass
    reading = time.perf_counter() - begin
    out = scratch / "together"
    arguments = [str(source), str(out), ",".join(TOGETHER), str(options.threads)]
    walls = [measure(SEVERAL, arguments, out)["ended_s"] for _ in range(options.rounds)]
    for preset in TOGETHER:
        Path(f"{out}.{preset}").unlink()
    allowed = reading + sum(results[preset]["ours"]["ended_s"] - reading for preset in TOGETHER)
    return {"wall_s": statistics.median(walls), "allowed_s": allowed, "ratio": statistics.median(walls) / allowed}


def show(preset: str, found: Mapping[str, Any]) -> None:
    """Print one row."""
    ours, theirs = found["ours"], found["reference"]
    print(
        f"{preset:15}{found['megabytes']:8.0f}{ours['wall_s']:9.2f}{theirs['wall_s']:9.2f}{found['wall_ratio']:7.2f}"
        f"{found['cpu_ratio']:7.2f}{ours['peak_mb']:9.0f}{theirs['peak_mb']:9.0f}{found['memory_ratio']:7.2f}"
        f"{found['disk_s']:8.2f}{found['core_share']:7.0%}  {'same bytes' if found['identical'] else 'OTHER BYTES'}",
        flush=True,
    )


def main() -> None:
    """Measure, print, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=520)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--scratch", type=Path, help="folder for the models (about three times their size)")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        source = Path(folder) / "source.gguf"
        # In another process: what this one has ever held would count as the peak of the processes it starts.
        maker = multiprocessing.get_context("spawn").Process(target=make_model, args=(source, options.megabytes))
        maker.start()
        maker.join()
        megabytes = source.stat().st_size / 1e6
        print(f"{machine()}; source {megabytes:.0f} MB (F16), {options.threads} threads, {options.rounds} rounds")
        print("type                 MB   ours s    ref s  ratio    cpu  ours MB   ref MB  ratio  disk s  cores")
        for preset in options.types:
            results[preset] = compare(source, preset, options, Path(folder))
            show(preset, results[preset])
        if set(TOGETHER) <= set(options.types):
            several = together(source, results, options, Path(folder))
            wall, ratio = several["wall_s"], several["ratio"]
            print(f"{'+'.join(TOGETHER)} from one reading: {wall:.2f} s, {ratio:.2f} of the sum")
        else:
            several = {}
    summary = {
        "machine": machine(),
        "source_mb": megabytes,
        "threads": options.threads,
        "rounds": options.rounds,
        "targets": {"wall": WALL_TARGETS, "memory": MEMORY_TARGET, "together": TOGETHER_TARGET},
        "types": results,
        "together": several,
    }
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_bytes(dump_json(summary))


if __name__ == "__main__":
    main()
