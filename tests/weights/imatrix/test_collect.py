"""Importance matrices collected by the real llama.cpp, held against a forward pass of our own in float64."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from strata_pack.errors import BadInput, WrongUse
from strata_pack.llama.activations_child import load_state
from strata_pack.progress import Silent
from strata_pack.weights.imatrix.collect import SHIPPED_TEXT, STATE_SUFFIX, ImatrixRequest, make_imatrix, new_share
from strata_pack.weights.imatrix.file import read_collected
from tests.weights.imatrix.forward import Experts, inputs, write_model

TEXT = bytes(np.random.default_rng(5).integers(97, 123, 1500).astype(np.uint8)).decode()
MOE = Experts(count=6, used=2)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("experts", [Experts(), MOE], ids=["dense", "moe"])
def test_every_column_is_that_of_an_independent_forward_pass(tmp_path: Path, text: Path, experts: Experts) -> None:
    weights = write_model(tmp_path / "model.gguf", experts)
    out = tmp_path / "imatrix.gguf"
    make_imatrix(ImatrixRequest(tmp_path / "model.gguf", out, (text,), context=256, chunks=2, process_output=True))
    found = read_collected(out)
    tokens = np.frombuffer(TEXT.encode(), np.uint8).astype(np.int64)
    chunks = [inputs(weights, tokens[at : at + 256], experts) for at in (0, 256)]
    assert found.sums.keys() == chunks[0][0].keys()
    for name, sums in found.sums.items():
        assert sums.counts.tolist() == sum(counts[name] for _, counts in chunks).tolist()
        squares = sum(means[name] * counts[name][:, None] for means, counts in chunks)
        np.testing.assert_allclose(sums.squares, squares, rtol=1e-4, err_msg=name)


def test_stopping_at_the_last_weight_changes_no_sum(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf")
    for name, process_output in (("some.gguf", False), ("all.gguf", True)):
        make_imatrix(
            ImatrixRequest(
                tmp_path / "model.gguf", tmp_path / name, (text,), context=256, process_output=process_output
            )
        )
    some, every = read_collected(tmp_path / "some.gguf"), read_collected(tmp_path / "all.gguf")
    assert every.sums.keys() - some.sums.keys() == {"output.weight"}
    assert all((every.sums[name].squares == sums.squares).all() for name, sums in some.sums.items())


def test_the_output_weight_is_left_out_unless_asked_for(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf")
    result = make_imatrix(ImatrixRequest(tmp_path / "model.gguf", tmp_path / "i.gguf", (text,), context=64, chunks=1))
    assert "output.weight" not in result.collected.sums


def test_a_short_last_chunk_is_left_out(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf")
    result = make_imatrix(ImatrixRequest(tmp_path / "model.gguf", tmp_path / "i.gguf", (text,), context=400))
    assert result.collected.chunks == len(TEXT) // 400


def test_a_text_shorter_than_a_chunk_is_refused(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf")
    with pytest.raises(BadInput, match="1500 tokens and one chunk needs 2000"):
        make_imatrix(ImatrixRequest(tmp_path / "model.gguf", tmp_path / "i.gguf", (text,), context=2000))


def test_a_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BadInput, match="not UTF-8"):
        make_imatrix(ImatrixRequest(tmp_path / "model.gguf", tmp_path / "i.gguf", (tmp_path / "bad.txt",)))


def test_a_model_that_does_not_load_is_refused(tmp_path: Path, text: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF and nothing else")
    with pytest.raises(BadInput, match="does not load"):
        make_imatrix(ImatrixRequest(tmp_path / "model.gguf", tmp_path / "i.gguf", (text,)))
    assert not (tmp_path / "i.gguf").exists()


def test_the_model_is_never_overwritten(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "model.gguf")
    with pytest.raises(WrongUse, match="which this command reads"):
        make_imatrix(ImatrixRequest(tmp_path / "model.gguf", tmp_path / "link.gguf", (text,)))


def test_a_damaged_model_is_reported_with_the_weight_that_sees_it(tmp_path: Path, text: Path) -> None:
    model = tmp_path / "model.gguf"
    weights = write_model(model)
    norm = weights["blk.1.attn_norm.weight"].tobytes()
    data = model.read_bytes()
    model.write_bytes(data.replace(norm, np.full(len(norm) // 4, np.nan, np.float32).tobytes()))
    with pytest.raises(BadInput, match=r"blk\.1\.attn_[qkv]\.weight has NaN"):
        make_imatrix(ImatrixRequest(model, tmp_path / "i.gguf", (text,), context=64, chunks=1))


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf", MOE)
    whole, resumed = tmp_path / "whole.gguf", tmp_path / "resumed.gguf"
    make_imatrix(ImatrixRequest(tmp_path / "model.gguf", whole, (text,), context=64, threads=1))
    command = [sys.executable, "-c", "from strata_pack.cli.main import main; main()", "imatrix"]
    command += [str(tmp_path / "model.gguf"), "--text", str(text), "--ctx", "64", "--out", str(resumed), "-t", "1"]
    state = resumed.with_name(resumed.name + STATE_SUFFIX)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not state.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    ended = resumed.exists()
    result = make_imatrix(ImatrixRequest(tmp_path / "model.gguf", resumed, (text,), context=64, threads=1))
    assert ended or result.resumed > 0
    assert resumed.read_bytes() == whole.read_bytes()
    assert not state.exists()


@pytest.mark.parametrize("content", [b"not a state", b"PK\x03\x04 and no more of an archive"])
def test_the_state_of_another_run_is_not_used(content: bytes, tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf")
    out = tmp_path / "i.gguf"
    state = out.with_name(out.name + STATE_SUFFIX)
    state.write_bytes(content)
    assert load_state(state, "key") == ({}, 0)
    result = make_imatrix(ImatrixRequest(tmp_path / "model.gguf", out, (text,), context=64, chunks=2))
    assert (result.chunks, result.resumed) == (2, 0)


def test_chunks_split_over_two_runs_merge_to_one(tmp_path: Path) -> None:
    write_model(tmp_path / "model.gguf", MOE)
    parts = []
    for number, part in enumerate((TEXT[:512], TEXT[512:1024])):
        (tmp_path / f"{number}.txt").write_text(part)
        parts.append(tmp_path / f"{number}.gguf")
        make_imatrix(ImatrixRequest(tmp_path / "model.gguf", parts[-1], (tmp_path / f"{number}.txt",), context=128))
    (tmp_path / "all.txt").write_text(TEXT[:1024])
    whole, merged = tmp_path / "whole.gguf", tmp_path / "merged.gguf"
    make_imatrix(ImatrixRequest(tmp_path / "model.gguf", whole, (tmp_path / "all.txt",), context=128))
    make_imatrix(ImatrixRequest(tmp_path / "model.gguf", merged, chunks=0, merged=tuple(parts)))
    one, two = read_collected(whole), read_collected(merged)
    assert (one.chunks, two.datasets) == (two.chunks, ("0.txt", "1.txt"))
    for name, sums in one.sums.items():
        np.testing.assert_allclose(two.sums[name].squares, sums.squares, rtol=1e-6)
        assert two.sums[name].counts.tolist() == sums.counts.tolist()


def test_a_file_of_another_model_is_not_merged(tmp_path: Path, text: Path) -> None:
    for name, experts in (("dense", Experts()), ("moe", MOE)):
        write_model(tmp_path / f"{name}.gguf", experts)
    make_imatrix(ImatrixRequest(tmp_path / "moe.gguf", tmp_path / "moe-i.gguf", (text,), context=256, chunks=1))
    request = ImatrixRequest(tmp_path / "dense.gguf", tmp_path / "i.gguf", (text,), merged=(tmp_path / "moe-i.gguf",))
    with pytest.raises(BadInput, match=r"moe-i\.gguf: holds importances of .*, which dense\.gguf has not at all"):
        make_imatrix(request)


def test_the_command_collects_and_shows(tmp_path: Path, text: Path) -> None:
    write_model(tmp_path / "model.gguf", MOE)
    command = [sys.executable, "-c", "from strata_pack.cli.main import main; main()", "imatrix"]
    out = tmp_path / "imatrix.dat"
    run = [str(tmp_path / "model.gguf"), "--text", str(text), "--ctx", "64", "--chunks", "2", "--out", str(out)]
    made = json.loads(subprocess.run([*command, *run, "--json"], capture_output=True, check=True).stdout)
    assert (made["ok"], made["chunks"], made["chunk_size"]) == (True, 2, 64)
    shown = json.loads(subprocess.run([*command, "show", str(out), "--json"], capture_output=True, check=True).stdout)
    assert {weight["name"] for weight in shown["weights"]} == {weight["name"] for weight in made["weights"]}


def test_the_shipped_text_has_prose_code_and_tool_calls() -> None:
    text = SHIPPED_TEXT.read_text(encoding="utf-8")
    assert 90_000 < len(text) < 110_000
    assert text.count("<tool_call>\n<function=") > 20
    assert all(part in text for part in ("Call me Ishmael.", "def ", "<|im_start|>assistant"))


def test_the_environment_of_the_machine_is_left_alone() -> None:
    before = dict(os.environ)
    from strata_pack.llama.logits import quiet_threads

    assert quiet_threads().keys() >= before.keys()
    assert dict(os.environ) == before


@pytest.mark.parametrize(("text", "least", "most"), [(TEXT, 1.0, 1.0), (TEXT[:300] * 5, 0.15, 0.25), ("", 1.0, 1.0)])
def test_the_share_of_a_text_that_is_new(text: str, least: float, most: float) -> None:
    assert least <= new_share(text) <= most


def test_a_text_that_repeats_itself_is_reported(tmp_path: Path) -> None:
    class Notes(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    notes: list[str] = []
    write_model(tmp_path / "model.gguf")
    (tmp_path / "text.txt").write_text(TEXT[:100] * 5)
    request = ImatrixRequest(tmp_path / "model.gguf", tmp_path / "i.gguf", (tmp_path / "text.txt",), 64, 1)
    make_imatrix(request, Notes())
    assert re.match(r"i.gguf: 7\d% of the text repeats what precedes it", notes[0])
