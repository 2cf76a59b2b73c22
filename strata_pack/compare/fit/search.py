"""Searches the recipe of the best file of a given size, from a source and an optional importance matrix.

    result = fit(source, parse_budget("600MiB"), imatrix)
    Path("fit.toml").write_text(result.text)        # gives the same bytes later, without a search

``errors`` measures the error of every tensor at every type. The cost of an error is measured on the model
(``sensitivity``) or, for models too large for that, taken from the table below. ``choose`` then chooses the types, and
``trial`` compares the mix with llama-quantize's presets of that size.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from strata_pack.compare.fit.budget import FitBudget, parse_budget
from strata_pack.compare.fit.choose import Option, choose, next_step
from strata_pack.compare.fit.errors import PEAK, Errors, error_table
from strata_pack.compare.fit.planner import ONE_FILE, FileShape, Planner
from strata_pack.compare.fit.room import FileRoom
from strata_pack.compare.fit.sensitivity import Sensitivity, group_of, measure, probe_type
from strata_pack.compare.fit.trial import Mix, least_divergent, preset_mixes
from strata_pack.compare.texts import Text, texts
from strata_pack.errors import BadInput
from strata_pack.files import dump_json, read_state, sha256_text, write_atomic
from strata_pack.llama.ggml_types import GGML_QUANT_SIZES
from strata_pack.llama.ggml_types import GGMLQuantizationType as Q
from strata_pack.llama.logits_native import LAYOUT_OF
from strata_pack.progress import Progress, Silent
from strata_pack.resources import cache_dir
from strata_pack.weights.quantize.command import open_tensors
from strata_pack.weights.quantize.edits import NO_EDITS, EditedSource, Edits, edit_imatrix
from strata_pack.weights.quantize.imatrix import Imatrix, read_imatrix
from strata_pack.weights.quantize.presets import PRESETS
from strata_pack.weights.quantize.recipes import Recipe, read_recipe
from strata_pack.weights.quantize.rows import usable_cores
from strata_pack.weights.quantize.run import output_sizes, run_plan
from strata_pack.weights.tensor_source import SourceTensor, TensorSource

MEASURED_UP_TO = 2_000_000_000
"""Largest number of weights for which sensitivities are measured by default: each measurement is an evaluation."""
NOTICEABLE = 0.005
"""Share of the budget that may be left without a reason."""
KNOWN_COSTS: Mapping[str, float] = {
    "attn_v": 0.27,
    "attn_k": 0.14,
    "attn_q": 0.14,
    "attn_output": 0.3,
    "ffn_down": 0.3,
    "ffn_up": 0.3,
    "ffn_gate": 0.3,
}
"""Cost in nats of one unit of relative error, by the tensor's role; 1 for others. Divided by the number of layers."""
SCRATCH = "strata-fit-"
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class FitResult:
    """The result of a search. ``text`` is the recipe file; sizes in bytes, ``predicted_kl`` in nats (mean
    divergence)."""

    budget: int
    size: int
    bits_per_weight: float
    recipe: Recipe
    text: str
    predicted_kl: float
    types: Mapping[str, Q]
    sensitivities: Mapping[str, Sensitivity] = field(default_factory=dict)
    unspent: str = ""
    """Why a noticeable part of the budget is left; empty if it is not."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "budget": self.budget,
            "size": self.size,
            "bits_per_weight": round(self.bits_per_weight, 4),
            "predicted_kl": self.predicted_kl,
            "measured": bool(self.sensitivities),
            "unspent": self.unspent,
            "types": {name: type.name for name, type in self.types.items()},
        }


def fit(
    source: TensorSource,
    budget: FitBudget,
    imatrix: Imatrix | None = None,
    *,
    shape: FileShape = ONE_FILE,
    probe: bool | None = None,
    over: Sequence[Text] = (),
    threads: int | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Return the recipe for the best file within ``budget``.

    ``shape``: what else is in the file, and what is allowed. ``probe``: measure sensitivities on the model (``None``:
    up to two billion weights). ``over``: the texts to measure on. Raises ``WrongUse`` if the smallest mix is larger
    than the budget, and as ``plan_quantization``.
    """
    progress, threads = progress or Silent(), threads or usable_cores()
    planner, over = Planner(source, imatrix, shape), tuple(over) or texts()
    room = FileRoom.of(planner, budget)
    plan, opened, free = room.plan, room.opened, room.free
    room.check({tensor.name: dict.fromkeys(room.types[tensor.name], 0.0) for tensor in opened})
    cache = cache_dir() / "fit" / f"{sha256_text(source.fingerprint)[:32]}.json"
    errors = error_table(source, opened, room.types, imatrix, threads=threads, cache=cache, progress=progress)
    room.check(errors)
    layers = _layers(opened)
    groups: dict[str, list[SourceTensor]] = {}
    for tensor in opened:
        if len(errors[tensor.name]) > 1:
            groups.setdefault(group_of(tensor.name, layers), []).append(tensor)
    found: dict[str, Sensitivity] = {}
    if not room.holds_source and (probe if probe is not None else plan.parameters <= MEASURED_UP_TO):
        with _named(source):
            found = _probe(planner, groups, errors, over, threads, progress)
    options = {one.name: room.options(one, errors[one.name], _cost(one.name, layers, found)) for one in opened}
    chosen: Mix = choose(options, free)
    if found:
        rivals = preset_mixes(source, options, free, imatrix)
        mixes = [(mix, _recipe_of(budget, mix, layers)) for mix in (chosen, *rivals)]
        place = _place(planner, over, "mixes")
        chosen = least_divergent(planner, mixes, over, cache=place, threads=threads, progress=progress)
    text = _recipe_of(budget, chosen, layers)
    return replace(
        _result(planner, room.limit, text, chosen, found), unspent=_unspent(chosen, options, free, room.limit)
    )


@contextmanager
def _named(source: TensorSource) -> Iterator[None]:
    """Say of a copy that llama.cpp does not load which source it is a copy of."""
    try:
        yield
    except BadInput as error:
        if error.where is None or SCRATCH not in error.where:
            raise
        remedy = "use the table of typical costs: --no-fit-probe"
        raise BadInput(
            f"a copy of it cannot be measured: {error.problem}", where=source.label, remedy=remedy
        ) from error


def _layers(tensors: Sequence[SourceTensor]) -> int:
    numbers = [int(match[1]) for tensor in tensors if (match := _BLOCK.match(tensor.name))]
    return max(numbers, default=-1) + 1


def _recipe_of(budget: FitBudget, mix: Mix, layers: int) -> str:
    return recipe_text(budget, {name: option.type for name, option in mix.items()}, layers)


def _place(planner: Planner, over: Sequence[Text], kind: str, *facts: object) -> Path:
    """Return the cache file of what was measured on a source with an imatrix and texts."""
    imatrix = planner.imatrix
    weights = None if imatrix is None else [imatrix.sha256, sorted(imatrix.entries)]
    key = [planner.source.fingerprint, weights, [text.sha256 for text in over], *facts, LAYOUT_OF]
    return cache_dir() / "fit" / f"{sha256_text(json.dumps(key))[:32]}-{kind}.json"


def fit_file(
    source: str,
    size: str,
    imatrix: Path | None = None,
    *,
    edits: Edits = NO_EDITS,
    mtp: bool = True,
    shape: FileShape = ONE_FILE,
    probe: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Return ``fit`` of the local model ``source`` for a size such as ``600MiB``.

    ``edits`` are applied to it first; without ``mtp`` a checkpoint's draft head is left out.
    """
    budget = parse_budget(size)
    importances = None if imatrix is None else read_imatrix(imatrix)
    with open_tensors(source, mtp=mtp) as opened:
        edited = EditedSource(opened, edits)
        kept = None if importances is None else edit_imatrix(importances, edited, edits)
        shape = replace(shape, closing=edited.closing)
        return fit(edited, budget, kept, shape=shape, probe=probe, threads=threads, progress=progress)


def _unspent(chosen: Mapping[str, Option[Q]], options: Mapping[str, Sequence[Option[Q]]], free: int, limit: int) -> str:
    """Return why a noticeable part of the budget is left, or nothing."""
    left = free - sum(option.nbytes for option in chosen.values())
    if left <= NOTICEABLE * limit:
        return ""
    step = next_step(chosen, options)
    if step is None:
        return "every tensor is stored as exactly as it can be, so a larger file would be no closer to the source"
    name, option, more = step
    return (
        f"{left:,} bytes are left, and the smallest step to a closer file, {name} as {option.type.name}, takes {more:,}"
    )


def _result(
    planner: Planner,
    limit: int,
    text: str,
    chosen: Mapping[str, Option[Q]],
    found: Mapping[str, Sensitivity],
) -> FitResult:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fit.toml"
        path.write_text(text, encoding="utf-8")
        recipe = read_recipe(path)
    plan = planner.plan(recipe)
    return FitResult(
        budget=limit,
        size=sum(output_sizes(plan)),
        bits_per_weight=plan.bits_per_weight,
        recipe=recipe,
        text=text,
        predicted_kl=sum(option.cost for option in chosen.values()),
        types={name: option.type for name, option in chosen.items()},
        sensitivities=found,
    )


def _cost(name: str, layers: int, found: Mapping[str, Sensitivity]) -> float:
    """Return the cost in nats of one unit of relative error in the tensor."""
    group = group_of(name, layers)
    if group in found:
        # The group's tensors were rounded together: its divergence is divided by the sum of their errors.
        return found[group].cost
    known = next((cost for part, cost in KNOWN_COSTS.items() if part in name), 1.0)
    return known / max(layers, 1) if name.startswith("blk.") else known


def _probe(
    planner: Planner,
    groups: Mapping[str, Sequence[SourceTensor]],
    errors: Errors,
    over: Sequence[Text],
    threads: int,
    progress: Progress,
) -> dict[str, Sensitivity]:
    """Return the sensitivity of each group; cached for each source, imatrix and set of texts."""
    probes = {tensor.name: probe_type(errors[tensor.name]).name for tensors in groups.values() for tensor in tensors}
    place = _place(planner, over, "costs", probes, PEAK)
    known = _read_costs(place)
    found = {group: known[group] for group in groups if group in known}
    if len(found) == len(groups):
        return found
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder:
        base = Path(folder) / "base.gguf"
        run_plan(planner.trial("F16"), base, threads=threads)
        rest = {group: tensors for group, tensors in groups.items() if group not in found}
        for new in measure(base, rest, errors, planner.imatrix, over, Path(folder), threads=threads, progress=progress):
            found[new.group] = new
            # At once: a group takes minutes on a large model, and an interrupted search continues here.
            write_atomic(place, dump_json({name: [one.cost, one.measured] for name, one in found.items()}))
    return found


def _read_costs(place: Path) -> dict[str, Sensitivity]:
    try:
        return {name: Sensitivity(name, float(cost), float(seen)) for name, (cost, seen) in read_state(place).items()}
    except (ValueError, TypeError):
        return {}


def nearest_preset(bits: float, types: Collection[Q]) -> str:
    """Return the preset on which a recipe of ``bits`` per weight is based; it determines the file type in the header.

    Readers of the header expect matrices of that type, so a preset of one of ``types`` is chosen if there is one.
    """
    ladder = {"Q2_K": 3.0, "Q3_K_M": 4.2, "Q4_K_M": 5.2, "Q5_K_M": 6.1, "Q6_K": 7.5, "Q8_0": 12.0}
    if present := {name: most for name, most in ladder.items() if PRESETS[name].base in types}:
        return next((name for name, most in present.items() if bits <= most), list(present)[-1])
    others = (name for name, preset in PRESETS.items() if preset.base in types and not preset.copy)
    return next(others, "F16")


def recipe_text(budget: FitBudget, types: Mapping[str, Q], layers: int) -> str:
    """Return the recipe file: a rule for each kind of tensor and type, with its layers."""
    bits = [8 * GGML_QUANT_SIZES[type][1] / GGML_QUANT_SIZES[type][0] for type in types.values()]
    kinds: dict[tuple[str, Q], list[int]] = {}
    for name, type in types.items():
        match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
        pattern = rf"^{re.escape(name)}$" if match is None else rf"^blk\.\d+\.{re.escape(match[2])}$"
        kinds.setdefault((pattern, type), []).extend([] if match is None else [int(match[1])])
    rules = []
    for (pattern, type), numbers in sorted(kinds.items(), key=lambda one: (one[0][0], one[0][1].name)):
        # A TOML text in single quotes needs no escapes, but cannot hold a quote.
        quoted = json.dumps(pattern) if "'" in pattern else f"'{pattern}'"
        lines = ["[[rule]]", f"tensors = {quoted}"]
        if numbers and sorted(numbers) != list(range(layers)):
            lines.append(f'layers = "{layer_ranges(numbers)}"')
        rules.append("\n".join([*lines, f'type = "{type.name}"']))
    base = nearest_preset(sum(bits) / max(len(bits), 1), set(types.values()))
    head = f'# The best mix found for --fit "{budget.text}".\nbase = "{base}"'
    return "\n\n".join([head, *rules]) + "\n"


def layer_ranges(numbers: Sequence[int]) -> str:
    """Return block numbers in the recipe's notation: ``0-3,7``."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
