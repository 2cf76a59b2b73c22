"""Recipes and type flags: what they choose, how they differ from their base, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_pack.errors import BadInput, WrongUse
from strata_pack.weights.quantize.recipes import Recipe, make_recipe, parse_layers, parse_tensor_type, read_recipe
from strata_pack.weights.quantize.run import QuantPlan, plan_quantization
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.quantize.models import DENSE, MOE, ODD, write_model

EXAMPLE = """
base = "Q4_K_M"
embedding = "Q8_0"

[[rule]]
tensors = "ffn_down"
layers = "0-1,7-"
type = "Q6_K"

[[rule]]
tensors = 'attn_[qk]\\.weight'
type = "q5_k"
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufSource]:
    folder = tmp_path_factory.mktemp("recipes")
    shapes = {"dense": DENSE, "moe": MOE, "odd": ODD}
    return {name: GgufSource(write_model(folder / f"{name}.gguf", shape)) for name, shape in shapes.items()}


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(EXAMPLE)
    return path


def changed(plan: QuantPlan) -> dict[str, str]:
    return {t.name: t.type.name for t in plan.tensors if t.type is not t.base_type}


def plan(source: GgufSource, recipe: Recipe | str) -> QuantPlan:
    return plan_quantization(source, recipe)


def test_a_recipe_changes_the_tensors_its_rules_name_and_no_other(
    recipe_file: Path, sources: dict[str, GgufSource]
) -> None:
    recipe = read_recipe(recipe_file)
    mixed, base = plan(sources["dense"], recipe), plan(sources["dense"], "Q4_K_M")
    base_types = dict(base.types)
    expected = base_types | {"token_embd.weight": "Q8_0"}
    expected |= {f"blk.{i}.ffn_down.weight": "Q6_K" for i in (0, 1, 7, 8)}
    expected |= {f"blk.{i}.attn_{r}.weight": "Q5_K" for i in range(9) for r in "qk"}
    assert mixed.types == expected
    assert {t.name: t.base_type.name for t in mixed.tensors} == base_types
    assert recipe.label == "Q4_K_M+"
    assert recipe.text == EXAMPLE


def test_the_first_matching_rule_wins(sources: dict[str, GgufSource]) -> None:
    recipe = make_recipe("Q4_K_M", tensor_types=[r"blk\.0\.ffn_up=Q8_0", "ffn_up=Q3_K"])
    types = plan(sources["dense"], recipe).types
    assert types["blk.0.ffn_up.weight"] == "Q8_0"
    assert {types[f"blk.{i}.ffn_up.weight"] for i in range(1, 9)} == {"Q3_K"}


def test_flags_come_before_the_rules_of_the_file(recipe_file: Path, sources: dict[str, GgufSource]) -> None:
    recipe = make_recipe(None, recipe_file, tensor_types=[r"blk\.0\.ffn_down=Q8_0"], embedding="Q4_0")
    types = plan(sources["dense"], recipe).types
    assert (types["blk.0.ffn_down.weight"], types["blk.1.ffn_down.weight"]) == ("Q8_0", "Q6_K")
    assert types["token_embd.weight"] == "Q4_0"


def test_a_preset_replaces_the_base_of_the_file(recipe_file: Path) -> None:
    assert make_recipe("Q6_K", recipe_file).base.name == "Q6_K"


def test_fallback_rules_apply_after_the_recipe(sources: dict[str, GgufSource]) -> None:
    recipe = make_recipe("Q8_0", tensor_types=["attn_q=Q4_K", "attn_k=IQ4_XS"])
    types = plan(sources["odd"], recipe).types
    assert (types["blk.0.attn_q.weight"], types["blk.0.attn_k.weight"]) == ("Q5_0", "IQ4_NL")


def test_the_output_type_counts_for_a_tied_embedding(sources: dict[str, GgufSource]) -> None:
    types = plan(sources["odd"], make_recipe("Q4_0", output="Q5_1")).types
    assert types["token_embd.weight"] == "Q5_1"


def test_pure_gives_every_matrix_the_base_type(sources: dict[str, GgufSource]) -> None:
    mixed = plan(sources["moe"], make_recipe("Q4_K_M", pure=True))
    assert {t.type.name for t in mixed.tensors if len(t.source.shape) > 1 and "gate_inp" not in t.name} == {"Q4_K"}


def test_a_left_output_keeps_its_type(sources: dict[str, GgufSource]) -> None:
    assert plan(sources["dense"], make_recipe("Q4_K_M", leave_output=True)).types["output.weight"] == "F16"


def test_the_base_preset_alone_has_its_plain_name() -> None:
    assert make_recipe("q4_k").label == "Q4_K_M"
    assert make_recipe().base.name == "Q4_K_M"


IDLE = {
    "matches nothing": ("ffn_dwon=Q6_K", "matches no tensor"),
    "matches only norms": ("attn_norm=Q6_K", "only tensors that are never quantized"),
    "is shadowed by an earlier rule": (r"blk\.0\.ffn_up=Q6_K", "an earlier rule or flag matches"),
}


@pytest.mark.parametrize("case", IDLE)
def test_a_rule_without_effect_is_refused(case: str, sources: dict[str, GgufSource]) -> None:
    rule, words = IDLE[case]
    with pytest.raises(WrongUse, match=words) as caught:
        plan(sources["dense"], make_recipe("Q4_K_M", tensor_types=["ffn_up=Q5_K", rule]))
    assert rule in str(caught.value)


def test_a_rule_to_a_type_that_needs_an_imatrix_is_refused(sources: dict[str, GgufSource]) -> None:
    with pytest.raises(WrongUse, match=r"blk\.0\.ffn_up\.weight as IQ2_XS needs an imatrix"):
        plan(sources["dense"], make_recipe("Q4_K_M", tensor_types=["ffn_up=IQ2_XS"]))


def test_even_the_embedding_cannot_have_a_type_that_aborts_without_importances(sources: dict[str, GgufSource]) -> None:
    with pytest.raises(WrongUse, match=r"token_embd\.weight as IQ2_XXS needs an imatrix"):
        plan(sources["dense"], make_recipe("Q4_K_M", embedding="IQ2_XXS"))


BAD_FILES = {
    "no TOML": ("base = ", "is no TOML"),
    "no UTF-8": (b"\xff", "is no TOML"),
    "no base": ("pure = true", "has no base preset"),
    "unknown preset": ('base = "Q4_Z"', "no preset is called 'Q4_Z'"),
    "unknown key": ('base = "Q8_0"\nbsae = 1', "unknown key 'bsae'"),
    "unknown rule key": (
        'base = "Q8_0"\n[[rule]]\ntensor = "x"\ntype = "Q8_0"',
        "rule 1: has the unknown key 'tensor'",
    ),
    "rule without type": ('base = "Q8_0"\n[[rule]]\ntensors = "x"', "rule 1: has no type"),
    "rule without tensors": ('base = "Q8_0"\n[[rule]]\ntype = "Q8_0"', "rule 1: has no tensors"),
    "unknown type": ('base = "Q8_0"\n[[rule]]\ntensors = "x"\ntype = "Q9"', "there is no type 'Q9'"),
    "Q8_1 is no weight type": ('base = "Q8_0"\noutput = "Q8_1"', "there is no type 'Q8_1'"),
    "bad regex": ('base = "Q8_0"\n[[rule]]\ntensors = "("\ntype = "Q8_0"', "is not a regular expression"),
    "bad layers": ('base = "Q8_0"\n[[rule]]\ntensors = "x"\nlayers = "a"\ntype = "Q8_0"', "'a' is not a layer range"),
    "layers backwards": (
        'base = "Q8_0"\n[[rule]]\ntensors = "x"\nlayers = "9-3"\ntype = "Q8_0"',
        "ends before it begins",
    ),
    "layers as number": (
        'base = "Q8_0"\n[[rule]]\ntensors = "x"\nlayers = 3\ntype = "Q8_0"',
        "layers must be a string",
    ),
    "rule is no list": ('base = "Q8_0"\n[rule]\ntensors = "x"', "rule must be a list of tables"),
    "pure is no flag": ('base = "Q8_0"\npure = "yes"', "pure must be true or false"),
    "too large": (b"#" * ((1 << 20) + 1), "is larger than"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_recipe_is_refused_with_one_sentence(case: str, tmp_path: Path) -> None:
    content, words = BAD_FILES[case]
    path = tmp_path / "bad.toml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(WrongUse, match=words) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        read_recipe(tmp_path / "none.toml")


@pytest.mark.parametrize("text", ["ffn_up", "=Q8_0", "ffn_up=", "ffn_up=Q8", "(=Q8_0"])
def test_a_bad_tensor_type_flag_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="--tensor-type"):
        parse_tensor_type(text)


def test_a_pattern_may_contain_an_equals_sign() -> None:
    assert parse_tensor_type("a=b=Q8_0").pattern.pattern == "a=b"


def test_output_type_and_left_output_exclude_each_other() -> None:
    with pytest.raises(WrongUse, match="exclude each other"):
        make_recipe("Q4_K_M", output="Q8_0", leave_output=True)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 99), st.none() | st.integers(0, 99) | st.just(-1)), min_size=1, max_size=4))
def test_layer_ranges_say_what_was_written(ranges: list[tuple[int, int | None]]) -> None:
    expected: list[tuple[int, int | None]] = []
    parts = []
    for low, extra in ranges:
        if extra is None:
            parts.append(f"{low}-")
            expected.append((low, None))
        elif extra == -1:
            parts.append(str(low))
            expected.append((low, low))
        else:
            parts.append(f"{low}-{low + extra}")
            expected.append((low, low + extra))
    assert parse_layers(",".join(parts), "test") == tuple(expected)


def test_types_may_be_written_in_any_case() -> None:
    assert parse_tensor_type("x=iq4_xs").type is Q.IQ4_XS
