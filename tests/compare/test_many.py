"""Many models against one reference: the same figures as one by one, kept logits, the front, the picture."""

from __future__ import annotations

import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.compare import logits_file
from strata_pack.compare.full import Comparison, Perplexity, compare_full, standard_error
from strata_pack.compare.logits_file import LogitsFile
from strata_pack.compare.many import CompareOptions, ModelComparison, compare_many, on_front, pooled_bounds
from strata_pack.compare.output import make_report, picture
from strata_pack.compare.texts import AGENT, PROSE, Text, texts
from strata_pack.errors import BadInput, EnvironmentFailure, WrongUse
from strata_pack.report import html, schema, standalone
from tests.compare.test_compare import write_wide

OPTIONS = CompareOptions(context=64, limit=2, threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("many")
    return {type.name: write_wide(folder / f"{type.name}.gguf", type) for type in (Q.F32, Q.Q8_0, Q.Q2_K)}


@pytest.fixture(scope="module")
def found(models: dict[str, Path]) -> dict[str, ModelComparison]:
    judged = compare_many([models["Q8_0"], models["Q2_K"]], models["F32"], (), OPTIONS)
    return {Path(one.model).stem: one for one in judged}


def test_the_figures_are_those_of_the_model_alone(models: dict[str, Path], found: dict[str, ModelComparison]) -> None:
    alone = compare_full(models["Q2_K"], models["F32"], Text.read(PROSE), context=64, limit=2, threads=1)
    (prose,) = (part for part in found["Q2_K"].by_text if part.text == PROSE.name)
    for name in ("kl_mean", "kl_median", "kl_p99", "kl_max", "kl_mean_error"):
        assert getattr(prose, name) == pytest.approx(getattr(alone, name), rel=2e-3)
    assert prose.perplexity.value == pytest.approx(alone.perplexity.value, rel=1e-6)
    assert prose.reference_perplexity.value == pytest.approx(alone.reference_perplexity.value, rel=1e-4)
    assert prose.top1_agreement == alone.top1_agreement


def test_the_total_is_over_the_tokens_of_all_texts(found: dict[str, ModelComparison]) -> None:
    one = found["Q2_K"]
    assert one.total.tokens == sum(part.tokens for part in one.by_text)
    mean = sum(part.kl_mean * part.tokens for part in one.by_text) / one.total.tokens
    assert one.total.kl_mean == pytest.approx(mean)
    assert one.total.kl_max == max(part.kl_max for part in one.by_text)


def test_prose_and_agent_transcripts_are_the_default() -> None:
    assert [text.name for text in texts()] == [PROSE.name, AGENT.name]
    assert [text.parse_special for text in texts()] == [False, True]


def test_the_agent_text_shares_no_transcript_with_the_calibration_text() -> None:
    from strata_pack.weights.imatrix.collect import SHIPPED_TEXT

    calls = AGENT.read_text(encoding="utf-8").split("<|im_start|>assistant")
    calibration = SHIPPED_TEXT.read_text(encoding="utf-8")
    assert not [call for call in calls if "<tool_call>" in call and len(call) > 400 and call in calibration]


@pytest.fixture(scope="module")
def first_kept(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[ModelComparison]]:
    """A folder of kept logits, and what was found when they were computed."""
    folder = tmp_path_factory.mktemp("kept") / "logits"
    return folder, compare_many([models["Q8_0"]], models["F32"], (), replace(OPTIONS, keep_logits=folder))


@pytest.fixture
def kept(first_kept: tuple[Path, list[ModelComparison]], tmp_path: Path) -> CompareOptions:
    """Options with a copy of the kept logits."""
    return replace(OPTIONS, keep_logits=shutil.copytree(first_kept[0], tmp_path / "logits"))


def test_kept_logits_are_used_the_second_time(
    first_kept: tuple[Path, list[ModelComparison]],
    kept: CompareOptions,
    models: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata_pack.compare.many.write_logits", None)
    assert compare_many([models["Q8_0"]], models["F32"], (), kept) == first_kept[1]


def test_kept_logits_take_half_the_bytes(kept: CompareOptions) -> None:
    assert logits_file.row_bytes(150_000) < 0.51 * 4 * 150_000
    assert kept.keep_logits is not None
    assert len(list(kept.keep_logits.glob("*.logits"))) == 2


def test_logits_of_another_reference_are_not_used(kept: CompareOptions, models: dict[str, Path]) -> None:
    (one,) = compare_many([models["Q8_0"]], models["Q8_0"], (), kept)
    assert one.total.kl_mean < 1e-6


def test_logits_whose_head_is_of_another_form_are_refused_by_name(
    kept: CompareOptions, models: dict[str, Path]
) -> None:
    assert kept.keep_logits is not None
    for path in kept.keep_logits.glob("*.logits"):
        path.write_bytes(logits_file.MAGIC + b"\x07" + 7 * b"\0" + b'{"a":1}')
    with pytest.raises(BadInput, match=r"\.logits: is damaged"):
        compare_many([models["Q8_0"]], models["F32"], (), kept)


@pytest.mark.parametrize(("end", "words"), [(b"", "truncated"), (b"\xff" * 600, r"damaged \(a checksum differs\)")])
def test_damaged_logits_are_refused_by_name(
    kept: CompareOptions, models: dict[str, Path], end: bytes, words: str
) -> None:
    assert kept.keep_logits is not None
    for path in kept.keep_logits.glob("*.logits"):
        path.write_bytes(path.read_bytes()[:-600] + end)
    with pytest.raises(BadInput, match=rf"\.logits: is {words}; remove it and run again"):
        compare_many([models["Q8_0"]], models["F32"], (), kept)


def test_a_foreign_file_among_the_logits_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.logits").write_bytes(b"something else")
    with pytest.raises(BadInput, match="not a file of kept logits"):
        LogitsFile.open(tmp_path / "a.logits", "key")


def test_a_full_disk_is_reported_before_the_work(
    tmp_path: Path, models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata_pack.compare.logits_file.free_bytes", lambda _: 1000)
    with pytest.raises(EnvironmentFailure, match=r"need \d+ MB and 0 MB are free"):
        compare_many([models["Q8_0"]], models["F32"], (), replace(OPTIONS, keep_logits=tmp_path))


def test_a_model_given_twice_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(BadInput, match="given twice"):
        compare_many([models["Q8_0"], models["Q8_0"]], models["F32"], (), OPTIONS)


def judged(name: str, size: int, kl: float) -> ModelComparison:
    one = Perplexity(10.0, 0.1)
    total = Comparison(
        name, "ref", "t", "0" * 64, 64, 2, 62, "full logits", "ggml", one, one, kl, 0.01, kl, 2 * kl, 3 * kl, 0.9
    )
    return ModelComparison(name, size, 4.5, total, (total,))


def test_the_front_holds_what_no_other_beats() -> None:
    models = [judged("a", 100, 0.4), judged("b", 200, 0.1), judged("c", 210, 0.2), judged("d", 300, 0.05)]
    assert [one.model for one in on_front(models) if one.best] == ["a", "b", "d"]


def test_two_equal_models_are_both_on_the_front() -> None:
    assert all(one.best for one in on_front([judged("a", 100, 0.1), judged("b", 100, 0.1)]))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_every_model_off_the_front_is_beaten_by_one_on_it(figures: list[tuple[int, int]]) -> None:
    models = on_front([judged(str(n), size, kl / 10) for n, (size, kl) in enumerate(figures)])
    best = [one for one in models if one.best]
    for one in models:
        if not one.best:
            assert any(b.size <= one.size and b.total.kl_mean <= one.total.kl_mean for b in best)


def test_bounds_over_several_texts_are_weighted_by_tokens() -> None:
    one, two = judged("a", 1, 0.2).total, replace(judged("a", 1, 0.4).total, tokens=186)
    both = pooled_bounds([one, two])
    assert both.tokens == 248
    assert both.kl_mean == pytest.approx(0.35)
    assert both.perplexity.value == pytest.approx(10.0)


def test_an_error_bar_counts_blocks_and_not_tokens() -> None:
    random = np.random.default_rng(0)
    level = np.repeat(random.standard_normal(40), 64)
    error = standard_error(level, [64] * 40)
    assert error == pytest.approx(level.std(ddof=1) * np.sqrt(64 / len(level)), rel=0.02)


def test_a_single_block_has_no_error_bar() -> None:
    assert standard_error(np.arange(30.0), [30]) == 0.0


def test_logits_are_not_kept_in_a_pack(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(WrongUse, match="lies in the pack"):
        compare_many([models["Q8_0"]], models["F32"], (), CompareOptions(keep_logits=tmp_path / "logits"))
    assert not (tmp_path / "logits").exists()


def test_the_report_shows_the_picture_and_passes_its_schema(found: dict[str, ModelComparison]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    report = make_report(list(found.values()), max_kl=1e-9)
    jsonschema.validate(report.to_dict(), schema())
    page = html(report).decode()
    assert "<svg" in page
    assert "Q2_K" in page
    assert report.status == "failed"


def test_the_picture_for_a_card_is_an_svg_of_its_own(found: dict[str, ModelComparison]) -> None:
    root = ElementTree.fromstring(standalone(picture(list(found.values()))))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert sum(element.tag.endswith("circle") for element in root.iter()) == 2


def test_the_command_compares_many_and_writes_page_and_picture(tmp_path: Path, models: dict[str, Path]) -> None:
    page, card = tmp_path / "c.html", tmp_path / "c.svg"
    arguments = ["compare", str(models["Q8_0"]), str(models["Q2_K"]), "--against", str(models["F32"])]
    arguments += ["--context", "64", "--windows", "1", "--html", str(page), "--svg", str(card), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert [Path(one["model"]).stem for one in value["models"]] == ["Q8_0", "Q2_K"]
    assert page.read_bytes().startswith(b"<!doctype html>")
    assert card.read_bytes().startswith(b"<svg")


def test_a_missing_model_is_found_before_the_reference_is_evaluated(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata_pack.compare.many.open_logits", None)
    with pytest.raises(BadInput, match=r"[Nn]o such file"):
        compare_many([models["Q8_0"], Path("none.gguf")], models["F32"], (), OPTIONS)


def test_logits_are_kept_in_a_folder_and_not_in_a_file(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WrongUse, match="is not a folder"):
        compare_many([models["Q8_0"]], models["F32"], (), replace(OPTIONS, keep_logits=tmp_path / "file"))


def test_a_picture_is_valid_with_any_name_and_an_infinite_divergence(found: dict[str, ModelComparison]) -> None:
    odd = replace(found["Q8_0"], model="</text>&\x01\udcff.gguf")
    far = replace(found["Q2_K"], total=replace(found["Q2_K"].total, kl_mean=math.inf))
    root = ElementTree.fromstring(standalone(picture([odd, far])))
    assert len(root.findall(".//{http://www.w3.org/2000/svg}circle")) == 1


@pytest.mark.parametrize("option", ["--html", "--svg"])
def test_a_file_that_cannot_be_written_is_refused_before_any_model_is_opened(option: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "none.gguf", "--against", "x.gguf", option, str(tmp_path)])
    assert result.exit_code == 2
    assert "is a folder, not a file" in result.stderr
