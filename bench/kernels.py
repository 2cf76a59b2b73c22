"""Kernels: processor time of one core per type, against ggml's own quantizer in the same process.

    python bench/kernels.py [--weights 1048576] [--rounds 5]

Normal weights in memory, with importances and without. Every result is compared with ggml's, byte for byte.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.files import dump_json  # noqa: E402
from strata_pack.llama.ggml import Ggml, row_nbytes  # noqa: E402
from strata_pack.llama.kernels import PLAIN, WEIGHED, Missing, find_kernels  # noqa: E402
from tests.kernels.distributions import importances, weights  # noqa: E402

RESULT = ROOT / "bench/results/kernels.json"
COLUMNS = 2048


def best(work: Callable[[], object], rounds: int) -> float:
    """Return the least processor time of ``work``, in seconds."""
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def main() -> None:
    """Measure, print, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    kernels, ggml = find_kernels(), Ggml.load()
    if isinstance(kernels, Missing):
        raise SystemExit(f"no kernels: {kernels.reason}")
    source = weights("normal", options.weights // COLUMNS, COLUMNS)
    importance = importances(COLUMNS)
    megabytes = source.nbytes / 1e6
    rows = {}
    print(f"{kernels.name}; MB of F32 a second on one core\ntype               ggml   kernel  times")
    for type in sorted(WEIGHED):
        for used in (None, importance):
            if used is None and type not in PLAIN:
                continue
            out, theirs = (np.empty(len(source) * row_nbytes(type, COLUMNS), np.uint8) for _ in range(2))
            ours_s = best(lambda t=type, o=out, u=used: kernels.quantize_chunk(t, source, o, u), options.rounds)  # type: ignore[misc]
            ggml_s = best(lambda t=type, o=theirs, u=used: ggml.quantize_chunk(t, source, o, u), 2)  # type: ignore[misc]
            if out.tobytes() != theirs.tobytes():
                raise SystemExit(f"{type.name}: other bytes")
            name = f"{type.name}{'' if used is None else ' imatrix'}"
            rows[name] = {"ggml": megabytes / ggml_s, "kernel": megabytes / ours_s, "times": ggml_s / ours_s}
            print(f"{name:15}{megabytes / ggml_s:8.1f}{megabytes / ours_s:9.1f}{ggml_s / ours_s:7.1f}", flush=True)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_bytes(dump_json({"library": kernels.name, "mb_per_s": rows}))


if __name__ == "__main__":
    main()
