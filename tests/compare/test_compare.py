"""The quality gate: figures recomputed by other means, and bounds that hold."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.compare import top as compare_top
from strata_pack.compare.full import Comparison, compare_full
from strata_pack.compare.many import CompareOptions, compare_many
from strata_pack.compare.scores import exact_divergence, score_rows
from strata_pack.compare.texts import PROSE, Text, texts
from strata_pack.compare.top import score_top
from strata_pack.errors import BadInput, CheckFailed, EnvironmentFailure
from strata_pack.llama import logits_native
from strata_pack.llama.logits import LogitStream, close_pipes, quiet_threads
from strata_pack.llama.logits_native import (
    CONTEXT_DEFAULTS,
    ContextParams,
    LogitsModel,
    LogitsUnavailable,
    check_layout,
    load_library,
)
from strata_pack.llama.row_ring import RowRing, shared_file
from tests.pack.tiny_gguf import HEADS, STOCK, TOKENS, metadata, tensors, write_file, write_tiny

FAST = {"context": 64, "limit": 2, "threads": 1}
WIDE = {"width": 256, "scale": 0.1}


def write_wide(path: Path, type: Q = Q.F32, seed: int = 0) -> Path:
    """Write a model whose rows are whole blocks of every type."""
    write_file(path, metadata(STOCK, 256), tensors(seed, 256, 0.1), type)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {type.name: write_wide(folder / f"{type.name}.gguf", type) for type in (Q.F32, Q.Q8_0, Q.Q4_K, Q.Q2_K)}


@pytest.fixture(scope="module")
def found(models: dict[str, Path]) -> dict[str, Comparison]:
    return {name: compare_full(path, models["F32"], **FAST) for name, path in models.items()}  # type: ignore[arg-type]


def logs(logits: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(x) for x in logits))
    return [x - total for x in logits]


def own_windows(path: Path) -> list[list[int]]:
    with LogitsModel(path, context=64, threads=1) as model:
        tokens = model.tokenize(PROSE.read_text())
    return [[1, *tokens[1:64]], [1, *tokens[65:128]]]


def test_a_model_differs_in_nothing_from_itself(found: dict[str, Comparison]) -> None:
    own = found["F32"]
    assert (own.kl_mean, own.kl_median, own.kl_p99, own.kl_max) == (0, 0, 0, 0)
    assert own.perplexity == own.reference_perplexity
    assert own.top1_agreement == 1


def test_fewer_bits_diverge_more(found: dict[str, Comparison]) -> None:
    means = [found[name].kl_mean for name in ("F32", "Q8_0", "Q4_K", "Q2_K")]
    assert means == sorted(means)
    assert means[1] > 0
    assert means[3] > 10 * means[1]
    assert found["Q8_0"].top1_agreement >= found["Q2_K"].top1_agreement


def test_the_figures_are_those_of_a_second_computation(models: dict[str, Path], found: dict[str, Comparison]) -> None:
    """Token by token with fsum, over logits fetched in another way (every position of the window, not half)."""
    rows: list[tuple[float, float, float, bool]] = []
    windows = own_windows(models["F32"])
    with (
        LogitsModel(models["Q2_K"], context=64, threads=1) as model,
        LogitsModel(models["F32"], context=64, threads=1) as exact,
    ):
        for window in windows:
            ours, theirs = model.logits(window, 0), exact.logits(window, 0)
            for position in range(32, 63):
                q, p = ours[position].astype(float).tolist(), theirs[position].astype(float).tolist()
                log_q, log_p = logs(q), logs(p)
                kl = math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))
                target = window[position + 1]
                rows.append((-log_q[target], -log_p[target], kl, q.index(max(q)) == p.index(max(p))))
    surprise, reference, kls, same = (list(column) for column in zip(*rows, strict=True))
    result = found["Q2_K"]
    assert result.tokens == len(rows) == 62
    assert result.perplexity.value == pytest.approx(math.exp(math.fsum(surprise) / 62), rel=1e-5)
    assert result.reference_perplexity.value == pytest.approx(math.exp(math.fsum(reference) / 62), rel=1e-5)
    assert result.kl_mean == pytest.approx(math.fsum(kls) / 62, rel=1e-4)
    assert result.kl_max == pytest.approx(max(kls), rel=1e-4)
    assert result.kl_median == pytest.approx(sum(sorted(kls)[30:32]) / 2, rel=1e-4)
    assert result.top1_agreement == pytest.approx(sum(same) / 62)


def test_the_logits_are_those_of_the_network_computed_in_numpy(tmp_path: Path) -> None:
    """One layer of Llama by its paper (arXiv:2302.13971), in double precision; the KV cache of llama.cpp is F16."""
    path = write_wide(tmp_path / "m.gguf")
    w = {name: data.astype(np.float64) for name, data in tensors(0, 256, 0.1).items()}
    tokens = [1, 75, 104, 111, 111, 114, 35, 100]
    head = 256 // HEADS

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def turn(x: np.ndarray) -> np.ndarray:
        pairs = x.reshape(len(tokens), HEADS, head // 2, 2)
        angle = np.arange(len(tokens))[:, None] * 10000.0 ** (-2 * np.arange(head // 2) / head)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = pairs[..., 0], pairs[..., 1]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(len(tokens), HEADS, head)

    x = w["token_embd.weight"][tokens]
    a = norm(x, w["blk.0.attn_norm.weight"])
    q, k = (turn(a @ w[f"blk.0.attn_{name}.weight"].T) for name in "qk")
    v = (a @ w["blk.0.attn_v.weight"].T).reshape(len(tokens), HEADS, head)
    scores = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(head)
    scores += np.triu(np.full((len(tokens),) * 2, -np.inf), 1)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    x = x + np.einsum("hij,jhd->ihd", scores, v).reshape(len(tokens), 256) @ w["blk.0.attn_output.weight"].T
    f = norm(x, w["blk.0.ffn_norm.weight"])
    gate = f @ w["blk.0.ffn_gate.weight"].T
    x = x + (gate / (1 + np.exp(-gate)) * (f @ w["blk.0.ffn_up.weight"].T)) @ w["blk.0.ffn_down.weight"].T
    expected = norm(x, w["output_norm.weight"]) @ w["output.weight"].T
    with LogitsModel(path, context=64, threads=1) as model:
        got = model.logits(tokens, 0)
    assert got.shape == expected.shape == (len(tokens), len(TOKENS))
    assert np.allclose(got, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.xdist_group("compare-server")
def test_a_server_that_returns_all_tokens_gives_the_same_figures(
    models: dict[str, Path], found: dict[str, Comparison]
) -> None:
    told = compare_top.compare_top(models["Q2_K"], models["F32"], top=len(TOKENS), **FAST)  # type: ignore[arg-type]
    exact = found["Q2_K"]
    assert told.method == "top-n"
    assert told.tokens == exact.tokens
    assert told.kl_mean == pytest.approx(exact.kl_mean, rel=0.02)
    assert told.perplexity.value == pytest.approx(exact.perplexity.value, rel=0.01)
    assert told.reference_perplexity.value == pytest.approx(exact.reference_perplexity.value, rel=0.01)
    assert told.top1_agreement == pytest.approx(exact.top1_agreement, abs=0.02)


@pytest.mark.xdist_group("compare-server")
def test_where_logits_cannot_be_had_the_likeliest_tokens_bound_the_figures_and_the_output_says_so(
    models: dict[str, Path], found: dict[str, Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object, **__: object) -> Comparison:
        raise LogitsUnavailable("another build")

    monkeypatch.setattr("strata_pack.compare.many.score_side_by_side", unavailable)
    monkeypatch.setattr(compare_top.compare_top, "__kwdefaults__", {**_defaults(), "top": 20})
    options = CompareOptions(context=64, limit=2, threads=1)
    told = compare_many([models["Q2_K"]], models["F32"], texts([PROSE]), options)[0].total
    assert told.method == "top-n"
    assert 0 < told.kl_mean < found["Q2_K"].kl_mean
    assert told.perplexity.value <= found["Q2_K"].perplexity.value * 1.01
    assert any("lower bounds" in bound and "20 likeliest" in bound for bound in told.bounds)


def _defaults() -> dict[str, object]:
    return dict(compare_top.compare_top.__kwdefaults__ or {})


LOGITS = arrays(np.float32, (3, 8), elements=st.integers(-60, 60).map(lambda half: half / 2))


@given(LOGITS, LOGITS, st.lists(st.integers(0, 7), min_size=3, max_size=3), st.integers(1, 8))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_likeliest_tokens_never_overstate(
    ours: np.ndarray, theirs: np.ndarray, targets: list[int], top: int
) -> None:
    full = score_rows(ours, theirs, targets)

    def likeliest(row: np.ndarray) -> dict[int, float]:
        exact = row.astype(np.float64)
        log = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
        order = np.argsort(-log, kind="stable")[:top]
        return {int(token): float(log[token]) for token in order}

    for at, target in enumerate(targets):
        told = score_top(likeliest(ours[at]), likeliest(theirs[at]), target)
        assert told.kl[0] <= full.kl[at] * (1 + 1e-6) + 1e-6
        assert told.surprise[0] <= full.surprise[at] + 1e-6
        assert told.same_top[0] == full.same_top[at]


@given(LOGITS, LOGITS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_divergence_is_never_negative_and_zero_for_equals(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert (score_rows(ours, theirs, [0, 1, 2]).kl >= 0).all()
    assert (score_rows(ours, ours + np.float32(0), [0, 1, 2]).kl == 0).all()


@given(LOGITS, LOGITS, st.sampled_from([1.0, 0.01, 1e-4]))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_single_precision_costs_a_millionth(ours: np.ndarray, theirs: np.ndarray, closeness: float) -> None:
    ours = theirs + (ours - theirs) * np.float32(closeness)
    exact = [exact_divergence(*rows) for rows in zip(ours, theirs, strict=True)]
    assert score_rows(ours, theirs, [0, 1, 2]).kl == pytest.approx(exact, rel=1e-6, abs=1e-6)


def test_a_token_that_only_the_reference_allows_is_an_infinite_divergence() -> None:
    ours, theirs = np.zeros((1, 4), np.float32), np.zeros((1, 4), np.float32)
    ours[0, 1] = ours[0, 2] = theirs[0, 2] = -np.inf
    assert score_rows(ours, theirs, [0]).kl[0] == math.inf
    assert score_rows(theirs, ours, [0]).kl[0] < math.inf


def test_the_shipped_model_reads_the_shipped_text_well(smollm2: Path) -> None:
    result = compare_full(smollm2, smollm2, context=96, limit=1, threads=1)
    assert 1 < result.perplexity.value < 40
    assert result.kl_max == 0


# ---------------------------------------------------------------- the gate


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["compare", *arguments, "--context", "64", "--windows", "1", "-t", "1"])
    return done.exit_code, done.stdout, done.stderr


def test_the_gate_fails_above_the_limit_and_passes_below(models: dict[str, Path], found: dict[str, Comparison]) -> None:
    names = str(models["Q2_K"]), "--against", str(models["F32"])
    code, stdout, stderr = run(*names, "--max-kl", "1e-9", "--json")
    assert code == 1
    assert not json.loads(stdout)["ok"]
    assert "is above 1e-09" in stderr
    code, stdout, _ = run(*names, "--max-kl", "1000")
    assert code == 0
    assert "KL divergence, mean" in stdout
    assert found["Q2_K"].kl_mean > 1e-9


# ---------------------------------------------------------------- what cannot work


def test_models_with_other_vocabularies_are_refused(tmp_path: Path, models: dict[str, Path]) -> None:
    values = metadata(STOCK)
    values["tokenizer.ggml.tokens"] = type(values["tokenizer.ggml.tokens"]).array(
        values["tokenizer.ggml.tokens"].item_type, [*TOKENS, "extra"]
    )
    for key, more in (("scores", 0.0), ("token_type", 1)):
        old = values[f"tokenizer.ggml.{key}"]
        values[f"tokenizer.ggml.{key}"] = type(old).array(old.item_type, [*old.value, more])
    weights = tensors()
    for name in ("token_embd.weight", "output.weight"):
        weights[name] = np.vstack([weights[name], weights[name][:1]])
    write_file(tmp_path / "other.gguf", values, weights)
    with pytest.raises(BadInput, match=r"260 tokens in its vocabulary and .* has 259"):
        compare_full(tmp_path / "other.gguf", models["F32"], **FAST)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("content", "words"), [(b"short", r"t\.txt: the text has \d+ tokens; 32 are the least"), (b"\xff", "is not UTF-8")]
)
def test_a_text_that_says_nothing_is_refused(
    tmp_path: Path, models: dict[str, Path], content: bytes, words: str
) -> None:
    (tmp_path / "t.txt").write_bytes(content)
    with pytest.raises(BadInput, match=words):
        compare_full(models["F32"], models["F32"], Text.read(tmp_path / "t.txt"), **FAST)  # type: ignore[arg-type]


def test_a_context_beyond_the_text_takes_no_memory(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("word " * 20)
    found = compare_full(models["F32"], models["F32"], Text.read(tmp_path / "t.txt"), context=10**9, threads=1)
    assert (found.windows, found.context) == (1, found.tokens + found.context // 2 + 1)


def test_what_llama_cpp_does_not_load_is_refused_with_its_reason(tmp_path: Path, models: dict[str, Path]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(BadInput, match=r"llama\.cpp does not load it"):
        compare_full(tmp_path / "m.gguf", models["F32"], **FAST)  # type: ignore[arg-type]


def test_damaged_weights_are_named_and_not_averaged(tmp_path: Path) -> None:
    weights = tensors()
    weights["output_norm.weight"][0] = np.nan
    write_file(tmp_path / "m.gguf", metadata(STOCK), weights)
    good = write_tiny(tmp_path / "good.gguf")
    with pytest.raises(CheckFailed, match="NaN"):
        compare_full(tmp_path / "m.gguf", good, **FAST)  # type: ignore[arg-type]


def test_a_model_that_is_certain_of_the_wrong_tokens_has_an_infinite_perplexity(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    weights = tensors(0, 256, 0.1)
    weights["output.weight"] *= 1e5
    write_file(tmp_path / "loud.gguf", metadata(STOCK, 256), weights)
    assert compare_full(tmp_path / "loud.gguf", models["F32"], **FAST).perplexity.value == math.inf  # type: ignore[arg-type]


def test_a_child_that_dies_is_reported_with_its_last_words() -> None:
    command = [sys.executable, "-c", "import os, sys; print('oops', file=sys.stderr, flush=True); os.abort()"]
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process,
        pytest.raises(EnvironmentFailure, match=r"ended early \(signal 6\): oops"),
    ):
        LogitStream(process, log, Path("m.gguf"), -1)


def test_an_error_amid_the_rows_is_the_childs_own() -> None:
    header = json.dumps({"n_vocab": 1, "n_ctx_train": 8, "windows": [[0] * 80], "first": 40, "kernels": "ggml"})
    error = json.dumps({"error": "no room", "kind": "environment"})
    command = [sys.executable, "-c", f"print({header!r}); print('\\x10' + {error!r})"]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as log,
        shared_file() as ring,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log) as process,
    ):
        RowRing.create(ring, 1)
        blocks = LogitStream(process, log, Path("m.gguf"), ring).blocks()
        assert next(blocks).shape == (16, 1)
        with pytest.raises(EnvironmentFailure, match="no room"):
            next(blocks)
        close_pipes(process)


def test_a_ring_smaller_than_its_header_says_is_not_read() -> None:
    with shared_file() as ring:
        RowRing.create(ring, 100)
        with pytest.raises(ValueError, match="greater than file size"):
            RowRing(ring, 101)


def test_another_version_of_the_library_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logits_native, "LAYOUT_OF", "2030.1.1")
    with pytest.raises(LogitsUnavailable, match=r"need xllamacpp 2030\.1\.1"):
        load_library()


@pytest.mark.parametrize("field", ["n_ctx", "type_k", "offload_kqv", "n_samplers"])
def test_a_structure_laid_out_differently_is_found_out(field: str) -> None:
    params = load_library().llama_context_default_params()
    check_layout(params, CONTEXT_DEFAULTS, Path("lib"))
    setattr(params, field, not CONTEXT_DEFAULTS[field])
    with pytest.raises(LogitsUnavailable, match=f"seen at {field}"):
        check_layout(params, CONTEXT_DEFAULTS, Path("lib"))
    assert isinstance(params, ContextParams)


def test_the_last_line_of_an_aborted_evaluation_is_its_reason() -> None:
    abort = "from strata_pack.llama.logits_native import load_library; load_library().ggml_abort(b'a.c', 7, b'oops')"
    done = subprocess.run([sys.executable, "-c", abort], capture_output=True, env=quiet_threads(), check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (-signal.SIGABRT, b"a.c:7: oops")
