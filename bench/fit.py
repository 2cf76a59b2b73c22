"""The best mix for a size against llama-quantize's presets: KL divergence from the source at the size of each preset.

    python bench/fit.py MODEL [--unround SEED] [--imatrix FILE] [--presets Q4_K_M,...] [--windows N] [--folder DIR]

For every preset the model is quantized with it and with ``fit`` for a file of exactly that size, both with the same
importance matrix, and both are compared with the source. With ``--folder`` the files stay there and are not made again.
Prints a table and writes JSON.

A model that is quantized already is stored exactly from its own size on, so nothing is left to choose. ``--unround``
first makes a float model that stands in for the lost original: to every weight it adds noise, uniform within half a
step of its block's grid, so that it would round to the same number.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.compare.fit.budget import FitBudget  # noqa: E402
from strata_pack.compare.fit.planner import FileShape  # noqa: E402
from strata_pack.compare.fit.search import fit  # noqa: E402
from strata_pack.compare.many import CompareOptions, compare_many  # noqa: E402
from strata_pack.files import dump_json  # noqa: E402
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES  # noqa: E402
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q  # noqa: E402
from strata_pack.weights.gguf.file import GgufFile  # noqa: E402
from strata_pack.weights.quantize.imatrix import Imatrix, read_imatrix  # noqa: E402
from strata_pack.weights.quantize.plan import plan_quantization  # noqa: E402
from strata_pack.weights.quantize.run import run_plan  # noqa: E402
from strata_pack.weights.tensor_source import GgufSource  # noqa: E402

PRESETS = "Q3_K_S,Q3_K_M,IQ4_XS,IQ4_NL,Q4_0,Q4_K_S,Q4_K_M,Q5_K_S,Q5_K_M,Q6_K,Q8_0"


GRIDS = Q.Q4_1, Q.Q8_0
"""The types that ``unround`` knows: a block begins with the size of a step, a half float."""


def unround(source: GgufSource, out: Path, seed: int) -> None:
    """Write ``source`` as F16 to ``out``, each quantized weight moved at random within half a step of its grid."""
    run_plan(plan_quantization(source, "F16", allow_requantize=True), out)
    draw = np.random.default_rng(seed)
    with GgufFile.open(out) as made:
        weights = np.memmap(out, np.uint8, "r+")
        for tensor in source.tensors:
            if tensor.type not in GRIDS:
                continue
            data = np.empty(tensor.nbytes, np.uint8)
            source.rows(tensor)(0, tensor.rows, data)
            block, nbytes = GGML_QUANT_SIZES[tensor.type]
            blocks = data.reshape(-1, nbytes)
            step = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
            info = made.tensor(tensor.name)
            start = made.data_offset + info.offset
            values = weights[start : start + info.nbytes].view(np.float16).reshape(-1, block)
            exact = values.astype(np.float32)
            low, high = exact.min(axis=1, keepdims=True), exact.max(axis=1, keepdims=True)
            if tensor.type is Q.Q8_0:
                high = np.maximum(high, -low)
                low = -high
            moved = exact + step * draw.uniform(-0.5, 0.5, exact.shape).astype(np.float32)
            values[:] = np.clip(moved, low, high).astype(np.float16)
        weights.flush()


def judge(
    source: GgufSource, model: Path, preset: str, imatrix: Imatrix | None, folder: Path, windows: int
) -> dict[str, Any]:
    """Make both files of ``preset`` and compare them with ``model``."""
    plan = plan_quantization(source, preset, imatrix, allow_requantize=True)
    theirs, ours = folder / f"{preset}.gguf", folder / f"fit-{preset}.gguf"
    if not theirs.exists():
        run_plan(plan, theirs)
    size = theirs.stat().st_size
    started = time.perf_counter()
    found = fit(source, FitBudget(f"{size} bytes", size), imatrix, shape=FileShape(allow_requantize=True))
    seconds = time.perf_counter() - started
    if not ours.exists():
        run_plan(plan_quantization(source, found.recipe, imatrix, allow_requantize=True), ours)
    settings = CompareOptions(limit=windows, keep_logits=folder / "logits")
    kl, fit_kl = (one.total.kl_mean for one in compare_many([theirs, ours], model, (), settings))
    row = {"preset": preset, "size": size, "fit_size": ours.stat().st_size, "fit_seconds": seconds}
    row |= {"kl": kl, "fit_kl": fit_kl, "unspent": found.unspent}
    return row | {"ratio": fit_kl / kl, "filled": row["fit_size"] / size}


def main() -> None:
    """Run the comparison that the arguments describe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--unround", type=int, metavar="SEED")
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "fit.json")
    options = parser.parse_args()
    imatrix = None if options.imatrix is None else read_imatrix(options.imatrix)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        model = options.model
        if options.unround is not None:
            model = folder / f"unrounded-{options.unround}.gguf"
            if not model.exists():
                with GgufSource(options.model) as rounded:
                    unround(rounded, model, options.unround)
        source = stack.enter_context(GgufSource(model))
        for preset in options.presets.split(","):
            row = judge(source, model, preset, imatrix, folder, options.windows)
            rows.append(row)
            print(
                f"{preset:8s} {row['size'] / 1e6:8.1f} MB  KL {row['kl']:.6f}  fit {row['fit_kl']:.6f} "
                f"({row['ratio']:.2f}), {row['filled']:.2%} of the size, {row['fit_seconds']:.0f} s {row['unspent']}",
                flush=True,
            )
    ratios = [row["ratio"] for row in rows]
    summary = {
        "rows": rows,
        "not_worse": sum(ratio <= 1 for ratio in ratios),
        "presets": len(rows),
        "median_ratio": statistics.median(ratios),
    }
    print(f"at most the preset's: {summary['not_worse']} of {len(rows)}; median ratio {summary['median_ratio']:.2f}")
    options.out.write_bytes(dump_json(summary))


if __name__ == "__main__":
    main()
