"""Whether ``prove --source`` blames a good pack, and whether it finds planted damage.

    python bench/proof.py SOURCE.gguf --imatrix FILE --folder FOLDER

SOURCE is quantized into FOLDER with every preset, with and without importances (files that are there are used), and
every tensor compared with its source's. Then damage is planted in the stored tensors of some layers: permuted rows, two
rows in each other's place, the tensor of another layer, a row times 100, a block of the other sign. The table has the
largest errors of each type, which the limits in ``strata_pack/compare/limits.py`` must be above. With ``--rows`` random
rows of other distributions are measured instead, for which SOURCE is not read. The limit: no tensor is blamed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from strata_pack.compare.against_source import problem_of  # noqa: E402
from strata_pack.compare.deviation import Deviation, Stored, deviation  # noqa: E402
from strata_pack.compare.limits import deviation_limits  # noqa: E402
from strata_pack.errors import WrongUse  # noqa: E402
from strata_pack.files import dump_json  # noqa: E402
from strata_pack.llama.ggml import BLOCK_TYPES, Bytes, Floats, row_nbytes  # noqa: E402
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES  # noqa: E402
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q  # noqa: E402
from strata_pack.llama.quantizer import Quantizer  # noqa: E402
from strata_pack.weights.quantize.imatrix import read_imatrix  # noqa: E402
from strata_pack.weights.quantize.plan import plan_quantization  # noqa: E402
from strata_pack.weights.quantize.presets import PRESETS  # noqa: E402
from strata_pack.weights.quantize.run import run_plan  # noqa: E402
from strata_pack.weights.tensor_source import GgufSource, SourceTensor  # noqa: E402

ROWS, COLUMNS = 192, 2048
ROW = 17
DAMAGED = ("attn_q.weight", "ffn_down.weight", "ffn_up.weight")
Kind = tuple[str, bool]
"""A type, and whether importances were used."""


@dataclass(frozen=True)
class Damaged(Stored):
    """A stored tensor after ``damage`` to its weights."""

    damage: Callable[[Floats], Floats]

    def floats(self, first: int, count: int) -> Floats:
        return self.damage(super().floats(0, self.tensor.rows))[first : first + count]


def kinds_of_damage(block: int) -> dict[str, Callable[[Floats], Floats]]:
    """Return the damage to plant, by name."""

    def permuted(weights: Floats) -> Floats:
        return weights[np.random.default_rng(0).permutation(len(weights))]

    def two_rows(weights: Floats) -> Floats:
        weights[[3, 90]] = weights[[90, 3]]
        return weights

    def times_100(weights: Floats) -> Floats:
        weights[ROW] *= 100
        return weights

    def other_sign(weights: Floats) -> Floats:
        weights[ROW, :block] *= -1
        return weights

    return {"permuted": permuted, "two rows": two_rows, "times 100": times_100, "sign": other_sign}


def distributions() -> Iterator[tuple[str, Floats]]:
    """Yield rows of weights by the name of their distribution."""
    draw = np.random.default_rng(0)
    shape = ROWS, COLUMNS
    normal = draw.standard_normal
    some, many = normal(shape), normal(shape)
    some[:, draw.choice(COLUMNS, 20)] *= 20
    many[:, draw.choice(COLUMNS, 300)] *= 8
    found = {
        "normal": normal(shape),
        "student": draw.standard_t(3, shape),
        "laplace": draw.laplace(size=shape),
        "large columns": some,
        "larger columns": many,
        "shifted": normal(shape) + 2,
        "half zero": normal(shape) * (draw.random(shape) < 0.5),
        "rows of other size": normal(shape) * np.exp(2 * normal((ROWS, 1))),
        "columns of other size": normal(shape) * np.exp(normal((1, COLUMNS))),
    }
    for name, weights in found.items():
        for scale in (0.03, 1e-3, 1e-4):
            yield f"{name}, {scale:g}", np.ascontiguousarray(weights * scale, np.float32)


def importances() -> Iterator[Floats | None]:
    """Yield importances: none, spread, far spread, half of them zero, few large ones."""
    draw = np.random.default_rng(1)
    spread = draw.standard_normal(COLUMNS)
    yield None
    for values in (
        np.exp(spread),
        np.exp(3 * spread),
        draw.random(COLUMNS) < 0.5,
        1e-3 + (draw.random(COLUMNS) < 0.02),
    ):
        yield np.ascontiguousarray(values, np.float32)


def in_memory(data: Bytes | Floats, type: Q) -> Stored:
    """Return rows in memory as a stored tensor."""
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(ROWS, -1)

    def read(first: int, count: int, out: Bytes) -> None:
        out[:] = raw[first : first + count].reshape(-1)

    return Stored(SourceTensor("rows", (COLUMNS, ROWS), type), read)


class Found:
    """The largest errors, the blamed tensors and the planted and found damage, by kind."""

    def __init__(self) -> None:
        self.largest: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        self.blamed: Counter[Kind] = Counter()
        self.planted: Counter[tuple[Kind, str]] = Counter()
        self.seen: Counter[tuple[Kind, str]] = Counter()

    def good(self, kind: Kind, tensor: SourceTensor, found: Deviation, source: Q) -> None:
        errors = found.whole, found.row, found.block
        self.largest[kind] = [max(pair) for pair in zip(self.largest[kind], errors, strict=True)]
        self.blamed[kind] += problem(tensor, found, source, weighed=kind[1]) is not None

    def damaged(self, kind: Kind, damage: str, problem: str | None) -> None:
        self.planted[kind, damage] += 1
        self.seen[kind, damage] += problem is not None

    def rows(self) -> list[dict[str, object]]:
        return [
            {
                "type": kind[0],
                "importances": kind[1],
                "errors": errors,
                "blamed": self.blamed[kind],
                "found": {
                    name: [self.seen[kind, name], count] for (of, name), count in self.planted.items() if of == kind
                },
            }
            for kind, errors in sorted(self.largest.items())
        ]


def problem(tensor: SourceTensor, found: Deviation, source: Q, *, weighed: bool) -> str | None:
    """Return what ``prove`` says of a tensor."""
    return problem_of(tensor, found, deviation_limits(tensor.type, source, weighed=weighed))


def measure_rows(found: Found, pool: ThreadPoolExecutor) -> None:
    """Measure every type on random rows."""
    quantizer = Quantizer.load()
    for type in BLOCK_TYPES:
        for _, weights in distributions():
            for values in importances():
                if values is None and quantizer.ggml.requires_imatrix(type):
                    continue
                out = np.empty(ROWS * row_nbytes(type, COLUMNS), np.uint8)
                quantizer.quantize_chunk(type, weights, out, values)
                stored, source = in_memory(out, type), in_memory(weights, Q.F32)
                kind = type.name, values is not None
                found.good(kind, stored.tensor, deviation(stored, source, pool), Q.F32)


def measure_file(path: Path, source: GgufSource, found: Found, pool: ThreadPoolExecutor, *, weighed: bool) -> None:
    """Compare one quantized file with its source, then with damage."""
    theirs = {tensor.name: tensor for tensor in source.tensors}
    with GgufSource(path) as file:
        ours = {tensor.name: tensor for tensor in file.tensors}
        for name, tensor in ours.items():
            kind, original = (tensor.type.name, weighed), theirs[name]
            stored, before = Stored(tensor, file.rows(tensor)), Stored(original, source.rows(original))
            found.good(kind, tensor, deviation(stored, before, pool), original.type)
            if not name.endswith(DAMAGED) or int(name.split(".")[1]) % 9:
                continue
            block = max(32, GGML_QUANT_SIZES[tensor.type][0])
            for damage, change in kinds_of_damage(block).items():
                error = deviation(Damaged(tensor, file.rows(tensor), change), before, pool)
                found.damaged(kind, damage, problem(tensor, error, original.type, weighed=weighed))
            other = ours[name.replace(f"blk.{name.split('.')[1]}.", "blk.1.")]
            error = deviation(Stored(other, file.rows(other)), before, pool)
            found.damaged(kind, "swapped", problem(other, error, original.type, weighed=weighed))


def quantized(source: GgufSource, imatrix: Path | None, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield every file that ``quantize`` writes of ``source``, and whether importances were used."""
    for weighed in (False, True) if imatrix is not None else (False,):
        values = read_imatrix(imatrix) if weighed and imatrix is not None else None
        for preset in PRESETS:
            path = folder / f"{'i' if weighed else 'n'}-{preset}.gguf"
            try:
                if not path.exists():
                    run_plan(plan_quantization(source, preset, values, allow_requantize=True), path)
            except WrongUse as error:
                print(f"{path.name}: {error.problem}", file=sys.stderr)
                continue
            yield path, weighed


def main() -> int:
    """Measure, print, write; 1 if a good tensor is blamed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rows", action="store_true", help="measure random rows instead")
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results/proof.json")
    options = parser.parse_args()
    found = Found()
    with ThreadPoolExecutor(2) as pool:
        if options.rows:
            measure_rows(found, pool)
        else:
            with GgufSource(options.source) as source:
                for path, weighed in quantized(source, options.imatrix, options.folder):
                    measure_file(path, source, found, pool, weighed=weighed)
    rows = found.rows()
    for row in rows:
        print(*(f"{key} {value}" for key, value in row.items()), sep="; ")
    options.out.write_bytes(dump_json({"types": rows}))
    return int(any(found.blamed.values()))


if __name__ == "__main__":
    sys.exit(main())
