"""The best mix for a size: budgets, the choice, errors, and a whole search on a tiny model."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.compare.fit import errors as fit_errors
from strata_pack.compare.fit.budget import parse_budget
from strata_pack.compare.fit.choose import Option, choose, hull, smallest
from strata_pack.compare.fit.errors import PEAK, error_table, limited
from strata_pack.compare.fit.planner import FileShape
from strata_pack.compare.fit.search import fit, layer_ranges, nearest_preset
from strata_pack.compare.fit.sensitivity import Sensitivity, group_of
from strata_pack.errors import WrongUse
from strata_pack.llama.memory import OVERHEAD
from strata_pack.progress import Silent
from strata_pack.weights.gguf.file import MetaValue
from strata_pack.weights.imatrix.collect import ImatrixRequest, make_imatrix
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.plan import plan_quantization
from strata_pack.weights.quantize.presets import PRESETS
from strata_pack.weights.quantize.run import run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.compare.test_compare import write_wide
from tests.pack.tiny_gguf import STOCK, metadata, tensors, write_file

SHAPE = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.embedding_length": 64,
}


@pytest.mark.parametrize(
    ("text", "size"),
    [("600MiB", 600 << 20), ("600 MiB", 600 << 20), ("1.5GB", 1_500_000_000), ("4bpw", 500), ("4.5 bpw", 562)],
)
def test_a_size_is_read_as_people_write_it(text: str, size: int) -> None:
    assert parse_budget(text).file_bytes(1000, {}) == size


def test_a_card_leaves_what_cache_and_buffers_do_not_take() -> None:
    left = parse_budget("1GiB card at 4k context").file_bytes(1000, SHAPE)
    assert left == (1 << 30) - OVERHEAD - 4096 * 2 * 32 * 8


def test_a_card_that_is_full_of_cache_is_refused() -> None:
    with pytest.raises(WrongUse, match="leave nothing for the weights"):
        parse_budget("1MiB card at 4k context").file_bytes(1000, SHAPE)


@pytest.mark.parametrize(
    "text", ["", "much", "600", "600 parsecs", "card at 32k context", "4bpw card at 4k context", "9" * 400 + "bpw"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(WrongUse, match=r"600MiB|unit|size in bytes"):
        parse_budget(text)


OPTIONS = st.lists(
    st.builds(Option, st.just("t"), st.integers(1, 40), st.integers(0, 30).map(float)), min_size=1, max_size=5
)


@given(OPTIONS)
def test_a_hull_grows_in_bytes_falls_in_cost_and_gains_less_and_less(options: list[Option[str]]) -> None:
    steps = hull(options)
    gains = [(a.cost - b.cost) / (b.nbytes - a.nbytes) for a, b in itertools.pairwise(steps)]
    assert all(gain > 0 for gain in gains)
    assert gains == sorted(gains, reverse=True)
    assert steps[0].nbytes == min(option.nbytes for option in options)
    assert steps[-1].cost == min(option.cost for option in options)


@given(st.lists(OPTIONS, min_size=1, max_size=4), st.integers(0, 160))
@settings(max_examples=300, deadline=None)
def test_a_choice_fits_and_is_within_one_step_of_the_best(tensors: list[list[Option[str]]], budget: int) -> None:
    options = {str(number): some for number, some in enumerate(tensors)}
    if budget < smallest(options):
        with pytest.raises(ValueError, match="the smallest choice"):
            choose(options, budget)
        return
    chosen = choose(options, budget)
    assert sum(option.nbytes for option in chosen.values()) <= budget
    cost = sum(option.cost for option in chosen.values())
    best = min(
        sum(option.cost for option in some)
        for some in itertools.product(*options.values())
        if sum(option.nbytes for option in some) <= budget
    )
    step = max((a.cost - b.cost for some in options.values() for a, b in itertools.pairwise(hull(some))), default=0.0)
    assert cost <= best + step + 1e-9


def test_a_large_step_is_taken_though_small_ones_save_more_per_byte() -> None:
    large = [Option("small", 100, 10.0), Option("large", 200, 1.0)]
    others = {str(number): [Option("small", 10, 1.1), Option("large", 20, 0.1)] for number in range(2)}
    chosen = choose({"embedding": large, **others}, 220)
    assert chosen["embedding"].type == "large"


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("blk.0.attn_q.weight", "attn_q first"),
        ("blk.15.attn_q.weight", "attn_q middle"),
        ("blk.29.ffn_down.weight", "ffn_down last"),
        ("token_embd.weight", "token_embd.weight"),
    ],
)
def test_tensors_are_grouped_by_what_they_do_and_where(name: str, group: str) -> None:
    assert group_of(name, 30) == group


def test_layers_are_written_as_ranges() -> None:
    assert layer_ranges([7, 0, 1, 2, 9, 10]) == "0-2,7,9-10"


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    return write_wide(tmp_path / "wide.gguf")


def test_fewer_bits_have_larger_errors_and_the_own_type_none(wide: Path) -> None:
    with GgufSource(wide) as source:
        tensors = [tensor for tensor in source.tensors if tensor.name == "blk.0.ffn_up.weight"]
        types = (Q.Q2_K, Q.Q4_K, Q.Q6_K, Q.Q8_0, Q.F16, Q.F32)
        table = error_table(source, tensors, {tensors[0].name: types}, None, threads=1, cache=None, progress=Silent())
    errors = [table["blk.0.ffn_up.weight"][type] for type in types]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0


def test_errors_are_found_again_in_the_cache(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "errors.json"
    with GgufSource(wide) as source:
        tensors = [tensor for tensor in source.tensors if len(tensor.shape) == 2]
        types = {tensor.name: (Q.Q4_K,) for tensor in tensors}
        first = error_table(source, tensors, types, None, threads=1, cache=cache, progress=Silent())
        monkeypatch.setattr(fit_errors, "_error", None)
        assert error_table(source, tensors, types, None, threads=1, cache=cache, progress=Silent()) == first


def test_one_column_with_all_importance_does_not_hide_the_others() -> None:
    importances = np.ones((1, 8), np.float32)
    importances[0, 3] = 1e9
    assert limited(importances).tolist() == [[1, 1, 1, PEAK, 1, 1, 1, 1]]
    assert limited(np.eye(1, 8, dtype=np.float32)).max() == 1  # no other column has any


@pytest.mark.parametrize("bits", [4.6, 5.5, 7.0])
def test_a_file_ends_just_below_its_size_and_the_recipe_makes_it_again(wide: Path, tmp_path: Path, bits: float) -> None:
    with GgufSource(wide) as source:
        found = fit(source, parse_budget(f"{bits}bpw"), probe=False, threads=1)
        run_plan(plan_quantization(source, found.recipe), tmp_path / "fit.gguf")
    size = (tmp_path / "fit.gguf").stat().st_size
    assert size == found.size <= found.budget
    assert found.size > 0.9 * found.budget  # one tensor of this tiny model is a tenth of it
    (tmp_path / "again.toml").write_text(found.text)
    from strata_pack.weights.quantize.recipes import read_recipe

    with GgufSource(wide) as source:
        run_plan(plan_quantization(source, read_recipe(tmp_path / "again.toml")), tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "fit.gguf").read_bytes()


@pytest.mark.parametrize(
    ("bits", "why"),
    [
        (8, r"[\d,]+ bytes are left, and the smallest step to a closer file, .* as \w+, takes [\d,]+"),
        (99, "every tensor is stored as exactly as it can be"),
    ],
)
def test_a_budget_that_cannot_be_spent_says_why(wide: Path, bits: float, why: str) -> None:
    with GgufSource(wide) as source:
        found = fit(source, parse_budget(f"{bits}bpw"), probe=False, threads=1)
    assert found.size < 0.995 * found.budget
    assert re.match(why, found.unspent)


def test_more_bytes_never_cost_more(wide: Path) -> None:
    with GgufSource(wide) as source:
        costs = [fit(source, parse_budget(f"{b}bpw"), probe=False, threads=1).predicted_kl for b in (4.6, 5, 6, 8)]
    assert costs == sorted(costs, reverse=True)


def test_a_size_that_nothing_fits_is_refused_with_the_smallest(wide: Path) -> None:
    with GgufSource(wide) as source, pytest.raises(WrongUse, match=r"the smallest mix takes [\d,]+ bytes"):
        fit(source, parse_budget("10kB"), probe=False, threads=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("quantize", "{wide}", "{there}"), "exists already"),
        (("quantize", "{wide}"), "no FILE to write is given"),
        (("build", "{wide}", "--out", "{folder}"), "in it is read by this command"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_search(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr("strata_pack.compare.fit.search.fit", None)
    (tmp_path / "there.gguf").write_bytes(b"x")
    given = [one.format(wide=wide, there=tmp_path / "there.gguf", folder=tmp_path) for one in arguments]
    result = CliRunner().invoke(app, [*given, "--fit", "5bpw"])
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_cost_of_errors_is_measured_once_on_the_model_and_leaves_it_alone(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = wide.read_bytes()
    with GgufSource(wide) as source:
        found = fit(source, parse_budget("5bpw"), probe=True, threads=1)
    assert {group.split()[0] for group in found.sensitivities} >= {"attn_q", "ffn_down", "token_embd.weight"}
    assert all(one.cost > 0 for one in found.sensitivities.values())
    assert wide.read_bytes() == before
    monkeypatch.setattr("strata_pack.compare.fit.search.measure", None)  # the second time it is known
    with GgufSource(wide) as source:
        assert fit(source, parse_budget("5bpw"), probe=True, threads=1).sensitivities == found.sensitivities
    assert np.isfinite(found.predicted_kl)


def test_an_interrupted_measurement_continues_after_the_last_group(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_base: Path, groups: Mapping[str, object], *_: object, **__: object) -> Iterator[Sensitivity]:
        asked.append(len(groups))
        for number, group in enumerate(groups):
            if len(asked) == 1 and number == 2:
                raise KeyboardInterrupt
            yield Sensitivity(group, 1.0, 0.1)

    asked: list[int] = []
    monkeypatch.setattr("strata_pack.compare.fit.search.measure", interrupted)
    with GgufSource(wide) as source:
        with pytest.raises(KeyboardInterrupt):
            fit(source, parse_budget("5bpw"), probe=True, threads=1)
        found = fit(source, parse_budget("5bpw"), probe=True, threads=1)
    assert asked == [len(found.sensitivities), len(found.sensitivities) - 2]


@given(st.floats(0.5, 32.0), st.sets(st.sampled_from([Q.Q2_K, Q.Q4_K, Q.Q5_0, Q.Q6_K, Q.IQ4_XS, Q.F16]), min_size=1))
def test_the_base_of_a_mix_is_a_preset_of_one_of_its_types(bits: float, types: set[Q]) -> None:
    assert PRESETS[nearest_preset(bits, types)].base in types


def test_a_size_is_one_line_of_the_recipe() -> None:
    assert parse_budget("16GiB\n card AT  32K context").text == "16GiB card AT 32K context"


def test_bits_per_weight_are_those_of_the_tensors(tmp_path: Path) -> None:
    long = {"tokenizer.chat_template": MetaValue.string("x" * 50_000)}
    write_file(tmp_path / "long.gguf", {**metadata(STOCK, 256), **long}, tensors(0, 256, 0.1))
    with GgufSource(tmp_path / "long.gguf") as source:
        assert fit(source, parse_budget("6bpw"), probe=False, threads=1).bits_per_weight > 5.9


@pytest.mark.parametrize("flags", [("--tensor-type", "attn_q=F32"), ("--pure",), ("--quant", "Q4_K_M")])
def test_flags_that_name_types_are_refused_with_a_size(wide: Path, flags: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["quantize", str(wide), "--dry-run", "--fit", "5bpw", *flags])
    assert result.exit_code == 2
    assert f"it excludes {flags[0]}" in result.stderr


def test_a_quantized_source_keeps_its_types_unless_that_is_allowed(tmp_path: Path) -> None:
    with GgufSource(write_wide(tmp_path / "eight.gguf", Q.Q8_0)) as source:
        with pytest.raises(WrongUse, match="--allow-requantize"):
            fit(source, parse_budget("5bpw"), probe=False, threads=1)
        kept = fit(source, parse_budget("12bpw"), probe=False, threads=1)
        smaller = fit(source, parse_budget("5bpw"), shape=FileShape(allow_requantize=True), probe=False, threads=1)
    assert set(kept.types.values()) == {Q.Q8_0}
    assert Q.Q8_0 not in smaller.types.values()


def test_a_search_sees_the_model_without_the_pruned_layers(tmp_path: Path) -> None:
    deep = tensors(0, 256, 0.1)
    deep |= {name.replace("blk.0", "blk.1"): data for name, data in deep.items() if "blk.0" in name}
    two = MetaValue.uint32(2)
    write_file(tmp_path / "deep.gguf", {**metadata(STOCK, 256), "llama.block_count": two}, deep)
    given = ["quantize", str(tmp_path / "deep.gguf"), str(tmp_path / "out.gguf"), "--prune-layers", "0"]
    result = CliRunner().invoke(app, [*given, "--fit", "700kB", "--json"])
    assert json.loads(result.stdout)["fit"]["budget"] == 700_000
    assert 680_000 < (tmp_path / "out.gguf").stat().st_size <= 700_000


def test_an_interrupted_error_table_keeps_what_it_has(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(*_: object) -> float:
        asked.append(1)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return 0.5

    asked: list[int] = []
    monkeypatch.setattr(fit_errors, "_error", error)
    cache = tmp_path / "errors.json"
    with GgufSource(wide) as source:
        some = [tensor for tensor in source.tensors if len(tensor.shape) == 2]
        types = {tensor.name: (Q.Q4_K,) for tensor in some}
        with pytest.raises(KeyboardInterrupt):
            error_table(source, some, types, None, threads=1, cache=cache, progress=Silent())
    assert len(json.loads(cache.read_text())) == 2


def test_a_table_that_stays_on_the_disk_takes_nothing_of_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {"per_layer_token_embd.weight": np.ones((4096, 256), np.float32)}
    write_file(tmp_path / "m.gguf", metadata(STOCK, 256), tensors(0, 256, 0.1) | table)
    budget = parse_budget(f"{OVERHEAD // 1000 + 1500}kB card at 512 context")
    with GgufSource(tmp_path / "m.gguf") as source:
        held = fit(source, budget, probe=False, threads=1)
        monkeypatch.setattr("strata_pack.compare.fit.planner.LAZY_ABOVE", 0)
        lazy = fit(source, budget, probe=False, threads=1)
    assert lazy.size > held.budget
    assert lazy.predicted_kl < held.predicted_kl


def test_a_tensor_with_a_quote_in_its_name_has_a_rule(tmp_path: Path) -> None:
    odd = "blk.0.it's \\ odd.weight"
    write_file(tmp_path / "m.gguf", metadata(STOCK, 256), tensors(0, 256, 0.1) | {odd: np.ones((8, 256), np.float32)})
    with GgufSource(tmp_path / "m.gguf") as source:
        found = fit(source, parse_budget("8bpw"), probe=False, threads=1)
        assert plan_quantization(source, found.recipe).types[odd] == found.types[odd].name


def test_a_budget_too_small_for_the_usual_types_tries_the_slow_ones(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_imatrix(ImatrixRequest(wide, tmp_path / "i.gguf", context=64, chunks=1))
    monkeypatch.setattr("strata_pack.compare.fit.room.SMALL_BITS", 0.0)
    with GgufSource(wide) as source:
        found = fit(source, parse_budget("280kB"), read_imatrix(tmp_path / "i.gguf"), probe=False, threads=1)
    assert found.size <= 280_000
