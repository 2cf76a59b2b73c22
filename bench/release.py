"""What a release costs over its parts, and a plan of a huge one by measured rates.

    python bench/release.py overhead [--rounds 3]
    python bench/release.py scale [--terabytes 1] [--machines 32] [--cores 32]

``overhead`` makes the packs of two tiny models, eight presets each, once with plain calls of the functions that the
nodes call and once as a release, in turns; the release may take 5 percent more. ``scale`` simulates
``release run --split-tensors``: tensors wait for a free machine, each fetches, quantizes and writes at rates that were
measured (kernels by ``bench/kernels.py``, hashing here and now) or that are stated, and shares network and storage.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.convert import machine  # noqa: E402
from strata_pack.files import dump_json, sha256_file  # noqa: E402
from strata_pack.pack.build import build_pack  # noqa: E402
from strata_pack.pack.layout import Pack  # noqa: E402
from strata_pack.pack.request import BuildRequest  # noqa: E402
from strata_pack.pack.verification import verify  # noqa: E402
from strata_pack.progress import Silent  # noqa: E402
from strata_pack.release.local_executor import InProcess  # noqa: E402
from strata_pack.release.release_file import read_release  # noqa: E402
from strata_pack.release.run import open_schedule, run_releases  # noqa: E402
from strata_pack.report import html  # noqa: E402
from strata_pack.smoke.prove import prove_golden  # noqa: E402
from strata_pack.weights.quantize.recipes import make_recipe  # noqa: E402
from tests.tiny_models import write_model  # noqa: E402

RESULT = ROOT / "bench/results/release.json"
KERNELS = ROOT / "bench/results/kernels.json"
TARGET = 0.05
PRESETS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0", "Q5_0", "IQ4_XS")
MODELS = ("qwen3", "qwen3moe")
TEMPLATE = "qwen3.8-flash-next"


def parts(models: list[Path], out: Path) -> float:
    """Do what the nodes do with plain calls, and return the seconds."""
    started = time.perf_counter()
    for model in models:
        for file in sorted(model.iterdir()):
            sha256_file(file)
        for preset in PRESETS:
            target = out / f"{model.name}-{preset}"
            build_pack(BuildRequest(str(model), target, make_recipe(preset), template=TEMPLATE, name=target.name))
            html(verify(target))
            html(prove_golden(Pack.open(target), Silent()))
    return time.perf_counter() - started


def release(models: list[Path], folder: Path) -> tuple[float, float]:
    """Run the same as releases, from reading the files to the page; return the seconds, and those within nodes."""
    files = []
    for model in models:
        packs = "\n".join(f'[[pack]]\nquant = "{preset}"' for preset in PRESETS)
        text = f'[release]\nname = "{model.name}"\nsource = "{model}"\nout = "{model.name}"\ntemplate = "{TEMPLATE}"\n'
        files.append(folder / f"{model.name}.toml")
        files[-1].write_text(text + packs + "\n")
    started = time.perf_counter()
    outcome = run_releases([open_schedule(read_release(file)) for file in files], InProcess(Silent()))
    seconds = time.perf_counter() - started
    if outcome.exit_code:
        raise SystemExit("the release did not end well")
    within = sum(result["seconds"] for schedule in outcome.schedules for result in schedule.found.values())
    return seconds, within


def overhead(rounds: int) -> dict[str, Any]:
    """Return the seconds of both, by round, and what the release adds to the best of the parts and to its own nodes.

    A release can be faster than its parts: its packs are built from one reading.
    """
    found: dict[str, list[float]] = {"parts": [], "release": [], "nodes": []}
    with tempfile.TemporaryDirectory(prefix="bench-release-") as name:
        root = Path(name)
        models = [write_model(variant, root / f"models/Tiny-{variant}") for variant in MODELS]
        parts([models[0]], root / "warm")
        for number in range(rounds):
            (root / f"r{number}").mkdir()
            found["parts"].append(parts(models, root / f"p{number}"))
            whole, within = release(models, root / f"r{number}")
            found["release"].append(whole)
            found["nodes"].append(within)
    share = min(found["release"]) / min(found["parts"]) - 1
    between = min(whole / within - 1 for whole, within in zip(found["release"], found["nodes"], strict=True))
    return {
        "seconds": found,
        "overhead": share,
        "between": between,
        "target": TARGET,
        "nodes": len(MODELS) * (2 + 5 * len(PRESETS)),
    }


@dataclass(frozen=True)
class Rates:
    """Bytes a second. ``network`` of one machine, ``hub`` of all together, ``storage`` of the shared folder together,
    ``sha256`` of one core; ``quantize``: weights a second of one core, all presets of a weight together."""

    network: float
    hub: float
    storage: float
    sha256: float
    quantize: float


def hash_rate() -> float:
    """Return the bytes that one core hashes in a second of its time: other work on the machine counts for nothing."""
    data = bytes(64 << 20)
    best = 0.0
    for _ in range(3):
        started = time.process_time()
        hashlib.sha256(data).digest()
        best = max(best, len(data) / (time.process_time() - started))
    return best


def quantize_rate() -> float:
    """Return the weights a second that one core turns into all eight presets, by the kernels' measured rates."""
    measured = json.loads(KERNELS.read_bytes())["mb_per_s"]
    types = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_K", "Q4_0", "Q5_0", "IQ4_XS")
    seconds = 0.0
    for type_ in types:
        rates = measured.get(type_) or measured[f"{type_} imatrix"]
        # The rates are megabytes of 32-bit floats that go in.
        seconds += 4 / (rates["kernel"] * 1e6)
    return 1 / seconds


BITS = {
    "Q8_0": 8.5,
    "Q6_K": 6.56,
    "Q5_K_M": 5.67,
    "Q4_K_M": 4.83,
    "Q4_K_S": 4.57,
    "Q4_0": 4.55,
    "Q5_0": 5.54,
    "IQ4_XS": 4.3,
}
"""Bits a weight of a preset over a whole model."""
STACKED = 0.9
"""Share of the weights in stacked experts of a huge mixture: few, large tensors."""


def tensors_of(weights: float, layers: int = 96) -> list[float]:
    """Return the weights of each tensor of a mixture of experts: three stacked ones and ten small ones a layer."""
    large = [weights * STACKED / (3 * layers)] * (3 * layers)
    small = [weights * (1 - STACKED) / (10 * layers)] * (10 * layers)
    return [*large, *small]


def simulate(terabytes: float, machines: int, cores: int, rates: Rates) -> dict[str, Any]:
    """Return the hours of every stage and what limits it.

    Tensors go to machines as they become free, the largest first. Network and storage are shared evenly by all that
    work, which holds while most of them do.
    """
    source = terabytes * 1e12
    weights = source / 2
    outputs = {preset: weights * bits / 8 for preset, bits in BITS.items()}
    written = sum(outputs.values())
    network = min(rates.network, rates.hub / machines)
    storage = rates.storage / machines
    ends = [0.0] * machines
    busy = {"fetch": 0.0, "quantize": 0.0, "write": 0.0}
    for size in sorted(tensors_of(weights), reverse=True):
        stages = {
            "fetch": 2 * size / network,
            "quantize": size / (rates.quantize * cores),
            # The bytes of the source are written and read once, each pack's once.
            "write": (2 * 2 * size + size * sum(BITS.values()) / 8) / storage,
        }
        for name, seconds in stages.items():
            busy[name] += seconds / machines
        heapq.heapreplace(ends, ends[0] + sum(stages.values()))
    tensors = max(ends)
    # One node proves the source's hashes, four files at once; a pack is hashed when it is put together and when it is
    # verified, and both read from the shared folder.
    prove = max(source / (4 * rates.sha256), source / min(rates.storage, 4 * rates.sha256))
    packs = max(max(outputs.values()) / rates.sha256, written / rates.storage) * 2
    hours = {"tensors": tensors, "prove the source": prove, "hash and verify packs": packs}
    limit = max(busy, key=lambda name: busy[name])
    total = sum(hours.values())
    return {
        "terabytes": terabytes,
        "machines": machines,
        "cores": cores,
        "source_bytes": source,
        "pack_bytes": outputs,
        "hours": {name: seconds / 3600 for name, seconds in hours.items()},
        "total_hours": total / 3600,
        "tensor_hours_by_what": {name: seconds / 3600 for name, seconds in busy.items()},
        "limit": limit,
        "rates": asdict(rates),
    }


def show_scale(found: dict[str, Any]) -> None:
    print(f"{found['terabytes']:g} TB of BF16 to 8 presets on {found['machines']} machines of {found['cores']} cores")
    for name, hours in found["hours"].items():
        print(f"  {name:24} {hours:6.2f} h")
    for name, hours in found["tensor_hours_by_what"].items():
        print(f"    of a machine's time: {name:10} {hours:6.2f} h")
    print(f"  {'in all':24} {found['total_hours']:6.2f} h; the limit: {found['limit']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("overhead")
    first.add_argument("--rounds", type=int, default=3)
    second = commands.add_parser("scale")
    second.add_argument("--terabytes", type=float, default=1.0)
    second.add_argument("--machines", type=int, default=32)
    second.add_argument("--cores", type=int, default=32)
    second.add_argument("--network-gbit", type=float, default=10.0)
    second.add_argument("--hub-gbit", type=float, default=100.0)
    second.add_argument("--storage-gb", type=float, default=10.0, help="GB a second of the shared folder")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(RESULT.read_bytes()) if RESULT.is_file() else {}
    if options.command == "overhead":
        measured = overhead(options.rounds)
        for name, seconds in measured["seconds"].items():
            print(f"{name:10} {' '.join(f'{one:7.2f}' for one in seconds)} s")
        print(f"between    {measured['between']:+.1%} of the time within nodes")
        print(f"overhead   {measured['overhead']:+.1%} (target: at most {TARGET:.0%}) over {measured['nodes']} nodes")
        known |= {"machine": machine(), "load": os.getloadavg()[0], "overhead": measured}
    else:
        rates = Rates(
            network=options.network_gbit * 1e9 / 8,
            hub=options.hub_gbit * 1e9 / 8,
            storage=options.storage_gb * 1e9,
            sha256=hash_rate(),
            quantize=quantize_rate(),
        )
        runs: list[Callable[[], dict[str, Any]]] = [
            lambda: simulate(options.terabytes, options.machines, options.cores, rates),
            lambda: simulate(options.terabytes, 1, options.cores, rates),
        ]
        found = [run() for run in runs]
        for one in found:
            show_scale(one)
        known |= {"scale": found}
    RESULT.write_bytes(dump_json(known))


if __name__ == "__main__":
    main()
