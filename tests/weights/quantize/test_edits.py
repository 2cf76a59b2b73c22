"""Layers left out, metadata replaced, importances picked, files split by size: the reference's bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFValueType as V
from typer.testing import CliRunner, Result

from strata_pack.cli.app import app
from strata_pack.errors import WrongUse
from strata_pack.weights.gguf.file import GgufFile, open_shards
from strata_pack.weights.gguf.values import MetaValue
from strata_pack.weights.quantize.edits import make_edits, parse_layers_to_prune, parse_override
from strata_pack.weights.quantize.imatrix import read_imatrix
from tests.weights.quantize.models import DENSE, MOE, write_imatrix, write_model
from tests.weights.quantize.oracle import needs_oracle, reference

FIVE = replace(DENSE, layers=5, hidden=64, ffn=96, heads=4, kv_heads=2, vocab=64)
EXPERTS = replace(MOE, layers=4, hidden=64, ffn=64, heads=4, kv_heads=2, vocab=64)

OVERRIDES = [
    ("general.name", "str", "another"),
    ("tokenizer.ggml.bos_token_id", "int", 7),
    ("qwen3.rope.freq_base", "float", 1e6),
    ("mine.flag", "bool", True),
    ("qwen3.attention.head_count_kv", "int", 1),
]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quantize", *map(str, arguments)])


def flags(overrides: list[tuple[str, str, object]]) -> list[str]:
    texts = [f"{key}={kind}:{str(value).lower() if kind == 'bool' else value}" for key, kind, value in overrides]
    return [word for text in texts for word in ("--override-kv", text)]


CASES = {
    "first layer": (FIVE, {"prune": [0]}, ["--prune-layers", "0"]),
    "middle layers": (FIVE, {"prune": [1, 3]}, ["--prune-layers", "3,1,3"]),
    "last layer": (FIVE, {"prune": [4]}, ["--prune-layers", "4"]),
    "layers of a mixture": (EXPERTS, {"prune": [1, 2]}, ["--prune-layers", "1,2"]),
    "metadata": (FIVE, {"overrides": OVERRIDES}, flags(OVERRIDES)),
    "metadata and layers": (
        FIVE,
        {"overrides": [*OVERRIDES, ("qwen3.block_count", "int", 5)], "prune": [2]},
        [*flags([*OVERRIDES, ("qwen3.block_count", "int", 5)]), "--prune-layers", "2"],
    ),
}


@needs_oracle()
@pytest.mark.parametrize("name", CASES)
def test_the_header_and_all_that_keeps_its_place_are_the_references(name: str, tmp_path: Path) -> None:
    # The oracle's build reads a layer that moved down from its new number; later builds do not.
    shape, parameters, arguments = CASES[name]
    source = write_model(tmp_path / "m.gguf", shape)
    reference([(source, tmp_path / "theirs.gguf", {"ftype": 15, **parameters})])
    result = call(source, tmp_path / "ours.gguf", "--quant", "Q4_K_M", *arguments)
    assert result.exit_code == 0, result.output
    first = min(parameters.get("prune", [shape.layers]))
    with GgufFile.open(tmp_path / "ours.gguf") as ours, GgufFile.open(tmp_path / "theirs.gguf") as theirs:
        data = [(tmp_path / f"{who}.gguf").read_bytes() for who in ("ours", "theirs")]
        assert data[0][: ours.data_offset] == data[1][: theirs.data_offset]
        for tensor in theirs.tensors:
            layer = re.match(r"blk\.(\d+)", tensor.name)
            if layer is None or int(layer[1]) < first:
                assert bytes(ours.tensor_bytes(tensor)) == bytes(theirs.tensor_bytes(tensor)), tensor.name


@pytest.mark.parametrize("layers", [[0], [1, 3], [4], [2, 3, 4]])
def test_a_layer_that_moved_has_its_own_weights_and_importances(layers: list[int], tmp_path: Path) -> None:
    source, imatrix = write_model(tmp_path / "m.gguf", FIVE), write_imatrix(tmp_path / "i.gguf", FIVE)
    pruned = ",".join(map(str, layers))
    result = call(
        source, tmp_path / "q.gguf", "--imatrix", imatrix, "--prune-layers", pruned, "--pure", "--quant", "Q4_0"
    )
    assert result.exit_code == 0, result.output
    assert call(source, tmp_path / "all.gguf", "--imatrix", imatrix, "--pure", "--quant", "Q4_0").exit_code == 0
    kept = [layer for layer in range(FIVE.layers) if layer not in layers]
    with GgufFile.open(tmp_path / "q.gguf") as ours, GgufFile.open(tmp_path / "all.gguf") as whole:
        assert len(kept) == ours.integer("qwen3.block_count")
        for tensor in ours.tensors:
            old = re.sub(r"^blk\.(\d+)", lambda match: f"blk.{kept[int(match[1])]}", tensor.name)
            assert bytes(ours.tensor_bytes(tensor)) == bytes(whole.tensor_bytes(whole.tensor(old))), tensor.name


@needs_oracle()
@pytest.mark.parametrize(
    ("arguments", "keep"),
    [
        (["--include-weights", "ffn_down"], lambda name: "ffn_down" in name),
        (["--include-weights", "blk.1.", "--include-weights", "attn"], lambda name: "blk.1." in name or "attn" in name),
        (["--exclude-weights", "ffn"], lambda name: "ffn" not in name),
        (["--exclude-weights", "blk"], lambda _name: False),
    ],
)
def test_picked_importances_give_the_references_bytes(
    arguments: list[str], keep: Callable[[str], bool], tmp_path: Path
) -> None:
    source, imatrix = write_model(tmp_path / "m.gguf", FIVE), write_imatrix(tmp_path / "i.gguf", FIVE)
    entries = read_imatrix(imatrix).entries
    kept = {name: entry.load() for name, entry in entries.items() if keep(name)}
    np.savez(tmp_path / "kept.npz", **kept)
    parameters = {"ftype": 15} | ({"imatrix": str(tmp_path / "kept.npz")} if kept else {})
    reference([(source, tmp_path / "theirs.gguf", parameters)])
    result = call(source, tmp_path / "ours.gguf", "--imatrix", imatrix, *arguments)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_a_model_is_split_where_the_size_is_reached(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", replace(FIVE, hidden=256, ffn=1024, vocab=512))
    assert call(source, tmp_path / "whole.gguf", "--quant", "F16").exit_code == 0
    result = call(source, tmp_path / "q.gguf", "--quant", "F16", "--split-max-size", "2M", "--json")
    files = json.loads(result.stdout)["files"]
    assert len(files) > 2
    shards = open_shards(tmp_path / f"q-00001-of-{len(files):05d}.gguf")
    sizes = [sum(-(-tensor.nbytes // 32) * 32 for tensor in shard.tensors) for shard in shards]
    firsts = [-(-shard.tensors[0].nbytes // 32) * 32 for shard in shards]
    assert all(size <= 2_000_000 < size + following for size, following in zip(sizes, firsts[1:], strict=False))
    with GgufFile.open(tmp_path / "whole.gguf") as whole:
        names = [tensor.name for tensor in whole.tensors]
        assert [tensor.name for shard in shards for tensor in shard.tensors] == names
        for shard in shards:
            for tensor in shard.tensors:
                assert bytes(shard.tensor_bytes(tensor)) == bytes(whole.tensor_bytes(whole.tensor(tensor.name)))
    # The order in which llama-gguf-split leaves its keys.
    assert list(shards[0].metadata)[-3:] == ["split.no", "split.tensors.count", "split.count"]
    assert list(shards[1].metadata) == ["split.no", "split.tensors.count", "split.count"]


def test_shards_are_merged_to_the_bytes_of_the_whole_model(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", FIVE)
    (tmp_path / "split").mkdir()
    split = tmp_path / "split/q.gguf"
    assert call(source, tmp_path / "whole.gguf", "--quant", "Q8_0").exit_code == 0
    assert call(source, split, "--quant", "Q8_0", "--split-max-size", "1M").exit_code == 0
    first = sorted(split.parent.iterdir())[0]
    assert call(first, tmp_path / "merged.gguf", "--quant", "COPY").exit_code == 0
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_model_below_the_size_stays_one_file(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", FIVE)
    assert call(source, tmp_path / "q.gguf", "--split-max-size", "1G").exit_code == 0
    assert (tmp_path / "q.gguf").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prune-layers", "9"], "there is no layer 9: the model has layers 0 to 4"),
        (["--prune-layers", "0,1,2,3,4"], "no layer would be left"),
        (["--prune-layers", "1-2"], "is not a list of layer numbers"),
        (["--prune-layers", ""], "is not a list of layer numbers"),
        (["--override-kv", "key"], "needs the form KEY=TYPE:VALUE"),
        (["--override-kv", "key=u8:1"], "'u8' is not a type of a value"),
        (["--override-kv", "general.alignment=int:64"], "describes the layout of the file"),
        (["--override-kv", "split.count=int:3"], "describes the layout of the file"),
        (["--override-kv", "key=int:１２"], "is not a valid int value"),
        (["--override-kv", "key=int:-1"], "'-1' is not a valid int value"),
        (["--override-kv", "key=bool:yes"], "'yes' is not a valid bool"),
        (["--override-kv", "key=str:" + "x" * 128], "is not a valid str"),
        (["--include-weights", "a", "--exclude-weights", "b"], "exclude each other"),
        (["--split-max-size", "4"], "is no size"),
        (["--split-max-size", "0G"], "is no size"),
        (["--split-max-size", "1G", "--keep-split"], "exclude each other"),
    ],
)
def test_a_flag_that_says_nothing_sensible_is_wrong_use(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = call(write_model(tmp_path / "m.gguf", FIVE), tmp_path / "q.gguf", *arguments)
    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_weight_without_importances_is_named_with_the_flag_that_helps(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", replace(FIVE, hidden=256, ffn=256))
    imatrix = write_imatrix(tmp_path / "i.gguf", replace(FIVE, hidden=256, ffn=256))
    arguments = ["--quant", "IQ2_XXS", "--imatrix", imatrix, "--exclude-weights", "blk.0.attn_q"]
    result = call(source, "--dry-run", *arguments)
    found = re.search(r"--tensor-type '([^']+)'", result.stderr)
    assert found is not None, result.stderr
    assert call(source, "--dry-run", *arguments, "--tensor-type", found[1]).exit_code == 0


def test_an_interrupted_run_is_not_continued_with_other_edits(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", FIVE)
    first = json.loads(call(source, tmp_path / "a.gguf", "--json").stdout)
    second = json.loads(call(source, tmp_path / "a.gguf", "--prune-layers", "1", "--force", "--json").stdout)
    assert first["files"][0]["sha256"] != second["files"][0]["sha256"]


def test_layers_are_a_set() -> None:
    assert parse_layers_to_prune("3, 1,3") == {1, 3}


def test_an_override_keeps_equals_signs_and_colons_of_its_value() -> None:
    assert parse_override("a.b=str:c=d:e")[1].value == "c=d:e"


def test_no_edit_changes_nothing() -> None:
    assert make_edits() == make_edits([], None, [], [])


def test_including_and_excluding_at_once_is_refused() -> None:
    with pytest.raises(WrongUse):
        make_edits(include=["a"], exclude=["b"])


def test_lists_by_layer_lose_the_pruned_layers(tmp_path: Path) -> None:
    extra = {
        "qwen3.attention.head_count_kv": MetaValue.array(V.UINT32, [2, 2, 2, 2, 2]),
        "qwen3.feed_forward_length": MetaValue.array(V.UINT32, [96] * 5),
        "qwen3.other": MetaValue.array(V.UINT32, [1, 2, 3, 4, 5]),
    }
    path = write_model(tmp_path / "source.gguf", FIVE, extra=extra)
    assert call(path, tmp_path / "out.gguf", "--quant", "Q8_0", "--prune-layers", "1,3").exit_code == 0
    with GgufFile.open(tmp_path / "out.gguf") as file:
        found = [file.metadata[key].value for key in extra]
    assert found == [[2, 2, 2], [96, 96, 96], [1, 2, 3, 4, 5]]
