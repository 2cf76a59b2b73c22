"""llama.cpp's own converter, run by name: what it may see, what becomes of what it writes, and once for real."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType
from typer.testing import CliRunner

from strata_pack.cli.app import app
from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.supervised import run_supervised
from strata_pack.pack.manifest import read_manifest
from strata_pack.pack.paths import MANIFEST
from strata_pack.pack.request import BY_REFERENCE
from strata_pack.pack.verification import verify
from strata_pack.progress import Silent
from strata_pack.weights.convert import reference_environment
from strata_pack.weights.convert.reference import convert_by_reference
from strata_pack.weights.convert.reference_environment import (
    RECORD,
    SCRIPT,
    environment_folder,
    make_environment,
    ready_environment,
)
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from tests.pack.tiny_gguf import write_tiny
from tests.tiny_models import encode, sentence_piece_model, write_safetensors

COPY = "import shutil, os; shutil.copyfile(os.environ['TMPDIR'] + '/model.gguf', out)"
TELL = (
    "import json, os; json.dump({'argv': sys.argv[1:], 'files': sorted(os.listdir(sys.argv[1])), "
    "'env': dict(os.environ), 'cwd': os.getcwd()}, open(os.environ['TMPDIR'] + '/told.json', 'w'))"
)


def stand_in(lines: str) -> None:
    """Make an environment whose converter is a script of ours: how it is run is tested, not what it computes."""
    folder = environment_folder()
    (folder / "venv/bin").mkdir(parents=True, exist_ok=True)
    python = folder / "venv/bin/python"
    if not python.exists():
        python.symlink_to(sys.executable)
    (folder / "llama.cpp").mkdir(exist_ok=True)
    head = "import sys\nout = sys.argv[sys.argv.index('--outfile') + 1]\n"
    (folder / "llama.cpp" / SCRIPT).write_text(head + lines + "\n", encoding="utf-8")
    (folder / RECORD).write_text("{}", encoding="utf-8")


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    write_tiny(tmp_path / "model.gguf")
    folder = tmp_path / "Foreign-1B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["ForeignForCausalLM"]}), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", {"a": ("F32", (1,), b"\0\0\0\0")})
    for name in ("modeling_foreign.py", "pytorch_model.bin", "tokenizer.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def convert(folder: Path, *more: str) -> Any:
    out = folder.parent / "out.gguf"
    return CliRunner().invoke(app, ["convert", str(folder), "--out", str(out), *more])


def test_file_of_the_reference_takes_its_name_when_it_is_whole(checkpoint: Path) -> None:
    stand_in("print('Writing:  50%|####', flush=True)\n" + COPY)
    result = convert(checkpoint, "--converter", "reference", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["converter"] == "reference"
    assert (checkpoint.parent / "out.gguf").read_bytes() == (checkpoint.parent / "model.gguf").read_bytes()


def test_the_reference_sees_no_code_no_pickle_no_keys_and_no_network(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    stand_in(TELL + "\n" + COPY)
    convert_by_reference(checkpoint, checkpoint.parent / "out.gguf", outtype="bf16", part="projector", name="Eyes")
    told = json.loads((checkpoint.parent / "told.json").read_text(encoding="utf-8"))
    assert told["files"] == ["config.json", "model.safetensors", "tokenizer.json"]
    assert Path(told["argv"][0]).name == "Foreign-1B"
    assert told["argv"][3:] == ["--outtype", "bf16", "--mmproj", "--model-name", "Eyes"]
    assert "--remote" not in told["argv"]
    assert told["env"]["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", "https_proxy"} & told["env"].keys()
    assert told["env"]["HOME"] != os.environ.get("HOME")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "print('ERROR:hf-to-gguf:Model ForeignForCausalLM is not supported'); sys.exit(1)",
            "ForeignForCausalLM is not",
        ),
        ("raise KeyError('rope')", "KeyError: 'rope'"),
        ("pass", "wrote 0 files"),
        ("open(out, 'wb').write(b'GGUF')", "truncated|header|ends"),
        ("open(out, 'w').write('hello')", "GGUF"),
        (f"{COPY}\nopen(out + '.gguf', 'w').close()", "wrote 2 files"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    ],
    ids=["refused", "broken", "nothing", "a header", "text", "two files", "killed"],
)
def test_what_is_no_whole_model_never_appears(lines: str, words: str, checkpoint: Path) -> None:
    stand_in(lines)
    with pytest.raises(BadInput, match=words):
        convert_by_reference(checkpoint, checkpoint.parent / "out.gguf")
    left = {path.name for path in checkpoint.parent.iterdir()}
    assert not any("out.gguf" in name for name in left)


def test_a_file_that_no_loader_takes_never_appears(checkpoint: Path) -> None:
    write_tiny(checkpoint.parent / "model.gguf", extra={"llama.embedding_length": MetaValue(GGUFValueType.UINT32, 999)})
    stand_in(COPY)
    result = convert(checkpoint, "--converter", "reference")
    assert result.exit_code == 2, result.output
    assert not (checkpoint.parent / "out.gguf").exists()


def test_a_checkpoint_without_safetensors_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(BadInput, match="has no safetensors"):
        convert_by_reference(tmp_path, tmp_path / "out.gguf")
    assert ready_environment() is None


def test_auto_asks_before_it_installs(checkpoint: Path) -> None:
    result = convert(checkpoint, "--converter", "auto")
    assert result.exit_code == 2
    assert "1.2 GB" in result.stderr
    assert "--yes" in result.stderr or "confirm" in result.stderr
    assert not environment_folder().exists()


def test_auto_takes_the_reference_for_a_class_that_is_not_known(checkpoint: Path) -> None:
    stand_in(COPY)
    assert convert(checkpoint, "--converter", "auto").exit_code == 0


def test_own_converter_names_the_reference_for_a_class_that_it_does_not_know(checkpoint: Path) -> None:
    result = convert(checkpoint)
    assert result.exit_code == 2
    assert "--converter reference" in " ".join(result.stderr.split())


def test_dry_run_says_what_would_be_made_and_makes_nothing(checkpoint: Path) -> None:
    result = convert(checkpoint, "--converter", "reference", "--dry-run")
    assert result.exit_code == 0
    assert "would be made" in result.stdout
    assert not environment_folder().exists()


@pytest.mark.slow
def test_a_failure_of_pip_is_reported_with_its_log(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(folder: Path) -> None:
        (folder / "llama.cpp").mkdir()

    monkeypatch.setattr(reference_environment, "_unpack", unpacked)
    monkeypatch.setattr(reference_environment, "REQUIREMENTS", ("no-such-package-of-anybody==0",))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(EnvironmentFailure, match="its packages could not be installed"):
        make_environment(Silent())
    assert ready_environment() is None
    assert checkpoint.is_dir()


def test_a_program_past_its_time_is_ended() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(100_000)"]
    assert run_supervised(command, lambda _: None, environment=os.environ, timeout_seconds=0.5) != 0


def test_a_pack_is_built_from_what_the_reference_makes_and_says_so(checkpoint: Path) -> None:
    stand_in(COPY)
    (checkpoint / "tokenizer.json").unlink()
    pack = checkpoint.parent / "pack"
    args = ["build", str(checkpoint), "--out", str(pack), "--quant", "Q8_0", "--template", "keep"]
    assert "Foreign" in CliRunner().invoke(app, args).stderr
    result = CliRunner().invoke(app, [*args, "--converter", "reference"])
    assert result.exit_code == 0, result.output
    assert read_manifest(pack / MANIFEST).get("request", {}).get("parts") == BY_REFERENCE
    assert verify(pack).ok


# Once for real


def write_gemma3(folder: Path) -> Path:
    """Write a tiny random Gemma 3 with the released tensor names; its vocabulary is a SentencePiece model."""
    import numpy as np

    folder.mkdir(parents=True)
    width, inner, heads, kv, head, vocabulary = 64, 128, 2, 1, 32, 320
    config = {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": width,
        "intermediate_size": inner, "num_hidden_layers": 2, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": head, "vocab_size": vocabulary, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window": 64,
        "sliding_window_pattern": 2, "query_pre_attn_scalar": head, "hidden_activation": "gelu_pytorch_tanh",
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, width),
        "model.norm.weight": (width,),
    }
    for layer in range(2):
        at = f"model.layers.{layer}."
        for norm in (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        ):
            shapes[f"{at}{norm}.weight"] = (width,)
        shapes |= {
            f"{at}self_attn.q_proj.weight": (heads * head, width),
            f"{at}self_attn.k_proj.weight": (kv * head, width),
            f"{at}self_attn.v_proj.weight": (kv * head, width),
            f"{at}self_attn.o_proj.weight": (width, heads * head),
            f"{at}self_attn.q_norm.weight": (head,),
            f"{at}self_attn.k_norm.weight": (head,),
            f"{at}mlp.gate_proj.weight": (inner, width),
            f"{at}mlp.up_proj.weight": (inner, width),
            f"{at}mlp.down_proj.weight": (width, inner),
        }
    dice = np.random.default_rng(3)
    tensors = {
        name: ("BF16", shape, encode(dice.standard_normal(shape, dtype=np.float32) * np.float32(0.05), "BF16"))
        for name, shape in shapes.items()
    }
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.model").write_bytes(sentence_piece_model())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        ),
        encoding="utf-8",
    )
    return folder


@pytest.mark.slow
@pytest.mark.registry
def test_a_class_that_is_not_known_here_becomes_a_model_that_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata_pack.llama.server import LlamaServer

    if not os.environ.get("CONVERTER_CACHE"):
        pytest.skip("CONVERTER_CACHE names no folder for the environment of llama.cpp's converter (1.2 GB)")
    monkeypatch.setenv("STRATA_CACHE", os.environ["CONVERTER_CACHE"])
    out = tmp_path / "gemma.gguf"
    result = CliRunner().invoke(
        app, ["convert", str(write_gemma3(tmp_path / "Tiny-Gemma")), "--out", str(out), "--converter", "reference"]
    )
    assert result.exit_code == 0, result.output
    with GgufFile.open(out) as file:
        assert file.text("general.architecture") == "gemma3"
    with LlamaServer.start(out, context=256, threads=2) as server:
        assert server.client.completion("ab", n_predict=4, temperature=0.0).raw["tokens_predicted"] == 4
