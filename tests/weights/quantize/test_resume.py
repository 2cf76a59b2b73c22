"""Kills, damage between two runs, and the memory of a run: each in a process of its own where it must be."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from strata_pack.errors import EnvironmentFailure
from strata_pack.files import sha256_file
from strata_pack.llama.quantizer import KernelChoice
from strata_pack.weights.gguf.file import TensorInfo, encode_header
from strata_pack.weights.quantize.run import QuantResult, plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
from tests.weights.quantize.models import DENSE, metadata, write_model

SHAPE = replace(DENSE, layers=6, vocab=2048)
PRESET = "Q5_K_M"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("resume") / "source.gguf", SHAPE)


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(source, tmp_path_factory.mktemp("whole") / "whole.gguf").files[0].sha256


def run(source: Path, out: Path, preset: str = PRESET, kernels: KernelChoice = "auto") -> QuantResult:
    with GgufSource(source) as opened:
        return run_plan(plan_quantization(opened, preset), out, kernels=kernels)


def command(source: Path, out: Path) -> list[str]:
    # Kernels would be done before the signal comes.
    # A test run in the background of a shell ignores SIGINT, and so would everything it starts.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from strata_pack.cli.main import main; main()"
    )
    flags = ["--quant", PRESET, "--threads", "1", "--kernels", "ggml"]
    return [sys.executable, "-c", program, "quantize", str(source), str(out), *flags]


def finished_tensors(out: Path) -> int:
    """Count the journal's whole lines behind its head."""
    journal = out.with_name(f".{out.name}.journal")
    return max(0, journal.read_bytes().count(b"\n") - 1) if journal.exists() else 0


def stop_after(source: Path, out: Path, tensors: int, delay: float, number: signal.Signals) -> int | None:
    """Start the command, send the signal when that many tensors are done; return its exit code, None if unhurt."""
    process = subprocess.Popen(command(source, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and finished_tensors(out) < tensors:
        time.sleep(0.001)
    time.sleep(delay)
    if process.poll() is not None:
        return None
    process.send_signal(number)
    return process.wait()


def kill_again_and_again(source: Path, expected: str, out: Path, kills: int, seed: int) -> None:
    dice = random.Random(seed)
    total = len(GgufSource(source).tensors)
    hit = 0
    for number in range(kills):
        reached = finished_tensors(out)
        goal = reached + dice.randint(0, max(1, (total - reached) // (kills - number + 1)))
        code = stop_after(source, out, goal, dice.random() * 0.02, signal.SIGKILL)
        if code is None:
            break
        assert code == -signal.SIGKILL
        if out.exists():
            # The kill came when the file had its name and the process had not ended: it must be whole.
            assert sha256_file(out) == expected
            break
        hit += 1
    assert hit > 0
    before = finished_tensors(out)
    result = run(source, out, kernels="ggml")
    assert result.files[0].sha256 == expected == hashlib.sha256(out.read_bytes()).hexdigest()
    if hit == kills:
        assert result.resumed_tensors == before
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name]


@pytest.mark.timeout(600)
def test_a_run_killed_at_random_goes_on_and_writes_the_same_file(source: Path, expected: str, tmp_path: Path) -> None:
    kill_again_and_again(source, expected, tmp_path / "out.gguf", 3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_run_killed_20_times_at_random_writes_the_same_file(
    seed: int, source: Path, expected: str, tmp_path: Path
) -> None:
    kill_again_and_again(source, expected, tmp_path / "out.gguf", 20, seed)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_leaves_no_model_and_goes_on_later(
    number: signal.Signals, code: int, source: Path, expected: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    assert stop_after(source, out, 5, 0.0, number) == code
    assert not out.exists()
    before = finished_tensors(out)
    result = run(source, out, kernels="ggml")
    assert (result.files[0].sha256, result.resumed_tensors) == (expected, before)
    assert before >= 5


@pytest.fixture
def stopped(source: Path, tmp_path: Path) -> Path:
    """A run that was interrupted after a few tensors."""
    out = tmp_path / "out.gguf"

    class Interrupt:
        def __init__(self) -> None:
            self.advanced = 0

        def task(self, label: str, total: int | None = None, unit: str = "bytes") -> Interrupt:  # noqa: ARG002
            return self

        def advance(self, amount: int) -> None:  # noqa: ARG002
            self.advanced += 1
            if self.advanced > 12:
                raise KeyboardInterrupt

        def done(self) -> None:
            pass

        def note(self, text: str) -> None:
            pass

    with GgufSource(source) as opened, pytest.raises(KeyboardInterrupt):
        run_plan(plan_quantization(opened, PRESET), out, progress=Interrupt())
    assert finished_tensors(out) > 5
    return out


def partial(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")


def test_an_interrupted_run_is_resumed_where_it_was(stopped: Path, source: Path, expected: str) -> None:
    before = finished_tensors(stopped)
    result = run(source, stopped)
    assert (result.files[0].sha256, result.resumed_tensors) == (expected, before)


def test_a_disk_that_fills_up_is_one_sentence_and_the_next_run_goes_on(
    source: Path, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, writes, pwrite = tmp_path / "out.gguf", itertools.count(), os.pwrite

    def full(descriptor: int, data: memoryview, at: int) -> int:
        if next(writes) >= 30:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, data, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(EnvironmentFailure, match="no space left on the disk"):
            run(source, out)
    result = run(source, out)
    assert result.files[0].sha256 == expected
    assert result.resumed_tensors > 0


def test_a_disk_that_takes_a_part_is_given_the_rest(
    source: Path, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: pwrite(descriptor, data[: 1 << 15], at))
    assert sha256_file(run(source, tmp_path / "out.gguf").files[0].path) == expected


def test_a_flipped_bit_in_what_was_written_is_found_and_written_anew(
    stopped: Path, source: Path, expected: str
) -> None:
    lines = stopped.with_name(f".{stopped.name}.journal").read_bytes().splitlines()
    third = json.loads(lines[3])["end"]
    data = bytearray(partial(stopped).read_bytes())
    data[third + 5] ^= 16
    partial(stopped).write_bytes(data)
    result = run(source, stopped)
    assert (result.files[0].sha256, result.resumed_tensors) == (expected, 3)


def test_a_partial_file_that_lost_its_end_is_continued_from_there(stopped: Path, source: Path, expected: str) -> None:
    lines = stopped.with_name(f".{stopped.name}.journal").read_bytes().splitlines()
    os.truncate(partial(stopped), json.loads(lines[4])["end"] - 1)
    result = run(source, stopped)
    assert (result.files[0].sha256, result.resumed_tensors) == (expected, 3)


BAD_JOURNALS = {
    "torn last line": lambda data: data[:-20],
    "garbage line": lambda data: data + b"{}\n",
    "no journal": lambda _data: b"",
    "binary": lambda _data: bytes(range(256)),
    "another format": lambda data: data.replace(b'"format": 1', b'"format": 9'),
    "wrong hash": lambda data: data.replace(b'"sha256": "', b'"sha256": "0'),
}


@pytest.mark.parametrize("case", BAD_JOURNALS)
def test_a_damaged_journal_never_spoils_the_result(case: str, stopped: Path, source: Path, expected: str) -> None:
    journal = stopped.with_name(f".{stopped.name}.journal")
    journal.write_bytes(BAD_JOURNALS[case](journal.read_bytes()))
    assert run(source, stopped).files[0].sha256 == expected


def test_another_plan_starts_anew(stopped: Path, source: Path) -> None:
    result = run(source, stopped, "Q8_0")
    assert result.resumed_tensors == 0
    assert {"Q8_0", "F32"} == set(result.tensor_types.values())


def test_a_changed_source_starts_anew(stopped: Path, source: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", SHAPE, seed=9)
    result = run(other, stopped)
    assert result.resumed_tensors == 0
    with GgufSource(source), GgufSource(stopped) as written:
        assert len(written.tensors) == len(result.tensor_types)


def test_a_link_in_place_of_the_partial_file_is_not_followed(source: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    partial(tmp_path / "out.gguf").symlink_to(victim)
    with pytest.raises(OSError):
        run(source, tmp_path / "out.gguf")
    assert victim.read_bytes() == b"precious"


_MEASURE = """
import sys
from pathlib import Path
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource
with GgufSource(sys.argv[1]) as source:
    run_plan(plan_quantization(source, sys.argv[3]), Path(sys.argv[2]), threads=2)
# Not ru_maxrss: a process inherits that of the one that started it.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize("preset", ["Q8_0", "COPY"])
def test_memory_stays_below_250_mb_whatever_the_size_of_a_tensor(preset: str, tmp_path: Path) -> None:
    columns, rows = 4096, 40_000
    info = TensorInfo.make("token_embd.weight", (columns, rows), Q.F16)
    path = tmp_path / "huge.gguf"
    header = encode_header(metadata(SHAPE), [info])
    path.write_bytes(header)
    os.truncate(path, len(header) + info.nbytes)
    assert info.nbytes > 300e6
    arguments = [sys.executable, "-c", _MEASURE, str(path), str(tmp_path / "out.gguf"), preset]
    peak = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout) * 1024
    assert 10e6 < peak < 250e6


def test_the_journal_may_lie_elsewhere(source: Path, expected: str, tmp_path: Path) -> None:
    journal = tmp_path / "journals" / "j"
    journal.parent.mkdir()
    with GgufSource(source) as opened:
        result = run_plan(plan_quantization(opened, PRESET), tmp_path / "out.gguf", journal=journal)
    assert result.files[0].sha256 == expected
    assert list(journal.parent.iterdir()) == []


def test_rows_are_read_from_the_right_place(source: Path) -> None:
    with GgufSource(source) as opened:
        tensor = next(t for t in opened.tensors if t.name == "blk.3.ffn_up.weight")
        whole = np.frombuffer(opened.files[0].tensor_bytes(opened.files[0].tensor(tensor.name)), np.uint8)
        out = np.empty(7 * 512, np.uint8)
        opened.rows(tensor)(100, 7, out)
        assert (out == whole[100 * 512 : 107 * 512]).all()
