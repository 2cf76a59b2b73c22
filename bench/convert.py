"""Conversion to BF16: ``strata-pack convert`` against llama.cpp's script, wall time and peak memory.

    python bench/convert.py [--torch-python PYTHON --script CONVERT_HF_TO_GGUF.PY] [--megabytes 600] [--rounds 3]

Makes a random Qwen3 checkpoint of the given size on the spot and converts it in alternating runs, each in a process of
its own. Without a Python that has torch and transformers only our own side is measured. Also says how far the run is
from what the disk takes: the time of writing the same bytes and syncing them.
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
from tests.tiny_models import MODELS, tensor_shapes, write_json, write_model, write_safetensors  # noqa: E402

RESULT = ROOT / "bench/results/convert.json"
MODES = {"dense": "qwen3", "moe": "qwen3moe"}
OUTTYPES = ("bf16", "f16")
WIDE = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
WIDE_EXPERTS = {"moe_intermediate_size": 384, "num_experts": 16, "num_experts_per_tok": 4}
TARGETS = {"wall": 0.75, "memory": 0.6}


def machine() -> str:
    """Return the machine in words."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{len(os.sched_getaffinity(0))} cores, {model}, Python {sys.version.split()[0]}"


def make_checkpoint(folder: Path, variant: str, megabytes: int) -> None:
    """Write a checkpoint of about ``megabytes`` in two shards: the tiny one, with wide layers."""
    write_model(variant, folder)
    for path in folder.glob("model*"):
        path.unlink()
    wide = {**MODELS[variant].config, **WIDE}
    if "num_experts" in wide:
        wide |= WIDE_EXPERTS

    def shapes(layers: int) -> dict[str, tuple[int, ...]]:
        return dict(tensor_shapes(replace(MODELS[variant], config={**wide, "num_hidden_layers": layers})))

    layers = 1
    while sum(int(np.prod(shape)) * 2 for shape in shapes(layers).values()) < megabytes * 1_000_000:
        layers += 1
    write_json(folder / "config.json", {**wide, "num_hidden_layers": layers})
    stored = shapes(layers)
    dice = np.random.default_rng(1)
    noise = (dice.standard_normal(1 << 22, dtype=np.float32) * 0.02).view(np.uint32) >> 16
    pool = noise.astype("<u2").tobytes()
    names = list(stored)
    weight_map = {}
    for shard, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
        file = f"model-{shard:05d}-of-00002.safetensors"
        tensors = {}
        for name in part:
            size = int(np.prod(stored[name])) * 2
            tensors[name] = ("BF16", stored[name], (pool * (size // len(pool) + 1))[:size])
        write_safetensors(folder / file, tensors)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def measure(command: list[str], out: Path) -> tuple[float, float]:
    """Run a command; return the seconds until ``out`` is on the disk, and the peak resident memory in MB.

    Ours syncs its output before it ends; the script leaves that to the system, so it is done for it here.
    """
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if out.exists():
        with out.open("rb") as file:
            os.fsync(file.fileno())
    wall = time.perf_counter() - begin
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{errors.decode()[-2000:]}")
    return wall, usage.ru_maxrss * 1024 / 1e6


def copy_time(source: Path, target: Path) -> float:
    """Return the seconds of reading the file, writing it elsewhere and syncing it: the disk's own limit."""
    begin = time.perf_counter()
    with source.open("rb") as from_, target.open("wb") as to:
        while data := from_.read(4 * CHUNK):
            to.write(data)
        to.flush()
        os.fsync(to.fileno())
    return time.perf_counter() - begin


def compare(folder: Path, outtype: str, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return the figures of one checkpoint and type."""
    ours, theirs = scratch / "ours.gguf", scratch / "theirs.gguf"
    commands = {
        "ours": [
            sys.executable,
            "-m",
            "strata_pack",
            "convert",
            str(folder),
            "--outtype",
            outtype,
            "-q",
            "-o",
            str(ours),
        ]
    }
    if options.torch_python:
        reference = ROOT / "tests/weights/reference_convert.py"
        arguments = [str(folder), "--outtype", outtype, "--outfile", str(theirs)]
        script = [options.torch_python, str(reference), options.script, "--pre", "qwen2", "--", *arguments]
        commands["script"] = script
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            for path in (ours, theirs):
                path.unlink(missing_ok=True)
            runs[name].append(measure(command, ours if name == "ours" else theirs))
    figures: dict[str, Any] = {
        name: {"wall_s": statistics.median(w for w, _ in found), "peak_mb": max(m for _, m in found)}
        for name, found in runs.items()
    }
    if "script" in commands:
        measure(commands["ours"], ours)
        figures["identical"] = sha256_file(ours) == sha256_file(theirs)
        for key, figure in (("wall", "wall_s"), ("memory", "peak_mb")):
            figures[f"{key}_ratio"] = figures["ours"][figure] / figures["script"][figure]
    figures["megabytes"] = ours.stat().st_size / 1e6
    figures["copy_and_sync_s"] = copy_time(ours, scratch / "copy")
    (scratch / "copy").unlink()
    return figures


def show(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the table."""
    heads = ("MB", "ours s", "script s", "ratio", "ours MB", "script MB", "ratio", "copy s")
    print(f"{'model':14}" + "".join(f"{head:>10}" for head in heads))
    for name, found in results.items():
        script = found.get("script", {"wall_s": float("nan"), "peak_mb": float("nan")})
        wall, memory = found.get("wall_ratio", float("nan")), found.get("memory_ratio", float("nan"))
        ours = found["ours"]
        times = (ours["wall_s"], script["wall_s"], wall)
        sizes = (ours["peak_mb"], script["peak_mb"])
        print(
            f"{name:14}{found['megabytes']:10.0f}"
            + "".join(f"{value:10.2f}" for value in times)
            + "".join(f"{value:10.0f}" for value in sizes)
            + f"{memory:10.2f}{found['copy_and_sync_s']:10.2f}"
        )


def main() -> None:
    """Measure, print, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python")
    parser.add_argument("--script")
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if bool(options.torch_python) != bool(options.script):
        parser.error("--torch-python and --script belong together")
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for mode, variant in MODES.items():
            folder = Path(scratch) / mode
            # In another process: what this one has ever held would count as the peak of the processes it starts.
            maker = multiprocessing.get_context("spawn").Process(
                target=make_checkpoint, args=(folder, variant, options.megabytes)
            )
            maker.start()
            maker.join()
            for outtype in OUTTYPES:
                results[f"{mode} {outtype}"] = compare(folder, outtype, options, Path(scratch))
    show(results)
    RESULT.parent.mkdir(exist_ok=True)
    about = {"machine": machine(), "rounds": options.rounds, "targets": TARGETS}
    RESULT.write_bytes(dump_json({"about": about, "results": results}))
    print(json.dumps(about))


if __name__ == "__main__":
    main()
