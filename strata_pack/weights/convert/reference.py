"""Converts a checkpoint of any class with llama.cpp's own converter, which runs as an untrusted program.

It gets a view of the checkpoint without code (for some classes the script lets transformers run the model's code) and
without pickles, an empty home folder and no network, and it ends with this process. Its output is checked like any
untrusted GGUF before it gets its final name.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.files import disk_errors, fsync_dir, sha256_file
from strata_pack.llama.supervised import run_supervised
from strata_pack.outputs import check_outputs
from strata_pack.progress import Progress, Silent
from strata_pack.weights.convert.convert import SourcePart
from strata_pack.weights.convert.reference_environment import bare_variables, make_environment
from strata_pack.weights.convert.write import ConvertResult
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.preflight import Stage, check_disk

PART_FLAGS: Mapping[SourcePart, tuple[str, ...]] = {
    "model": (),
    "trunk": ("--no-mtp",),
    "mtp": ("--mtp",),
    "projector": ("--mmproj",),
}
SHOWN = frozenset(
    (".json", ".jinja", ".model", ".safetensors", ".txt", ".md", ".tiktoken", ".jsonl", ".vocab", ".merges")
)
"""Suffixes of the files that the converter sees."""

LONGEST_SECONDS = 24 * 3600.0
TAIL = 5
_PERCENT = re.compile(r"Writing:\s+(\d+)%")
_ERROR = re.compile(r"error|exception|not supported|traceback", re.IGNORECASE)


def convert_by_reference(
    folder: Path,
    dest: Path,
    *,
    outtype: str = "auto",
    part: SourcePart = "model",
    name: str | None = None,
    check: Callable[[GgufFile], None] = lambda _: None,
    progress: Progress | None = None,
) -> ConvertResult:
    """Convert ``folder`` with llama.cpp's converter, in its own environment, which is created if missing.

    ``check`` is called with the written file and may raise. Raises ``BadInput`` with the converter's message for a
    checkpoint that it refuses, and for an incomplete file.
    """
    shown = progress or Silent()
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise BadInput("has no safetensors", where=folder, remedy="give the folder of a safetensors checkpoint")
    check_outputs((dest,), (folder, *weights))
    dest.parent.mkdir(parents=True, exist_ok=True)
    check_disk([Stage("converted model", dest.parent, sum(path.stat().st_size for path in weights))])
    environment = make_environment(shown)
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as scratch:
        home, out = Path(scratch) / "home", Path(scratch) / "out"
        home.mkdir()
        out.mkdir()
        view = _view(folder, Path(scratch) / "view")
        command = [
            *(str(environment.python), "-s", str(environment.script), str(view)),
            *("--outfile", str(out / "model.gguf"), "--outtype", outtype, *PART_FLAGS[part]),
            *(("--model-name", name) if name else ()),
        ]
        _run(command, home, folder, shown)
        made = sorted(out.glob("*.gguf"))
        if len(made) != 1:
            raise BadInput(f"llama.cpp's converter wrote {len(made)} files instead of one", where=folder)
        types = _types(made[0], folder, check)
        with disk_errors(dest), made[0].open("rb") as file:
            os.fsync(file.fileno())
            size, digest = made[0].stat().st_size, sha256_file(made[0])
            os.replace(made[0], dest)
            fsync_dir(dest.parent)
    return ConvertResult(dest, size, digest, types)


def _view(folder: Path, root: Path) -> Path:
    """Return a folder with the checkpoint's name and links to the files that the converter may see."""
    view = root / folder.resolve().name
    view.mkdir(parents=True)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix.lower() in SHOWN:
            (view / path.name).symlink_to(path.resolve())
    return view


def _run(command: list[str], home: Path, folder: Path, progress: Progress) -> None:
    task = progress.task("llama.cpp's converter", 100, "percent")
    done = 0
    telling: list[str] = []
    said: list[str] = []

    def heard(line: str) -> None:
        nonlocal done
        if (found := _PERCENT.search(line)) is not None:
            task.advance(max(0, int(found[1]) - done))
            done = max(done, int(found[1]))
            return
        said.append(line.strip())
        del said[:-TAIL]
        if _ERROR.search(line):
            telling.append(line.strip())

    status = run_supervised(command, heard, environment=bare_variables(home), timeout_seconds=LONGEST_SECONDS)
    if status != 0:
        words = telling[-1] if telling else " | ".join(said) or f"status {status}"
        raise BadInput(f"llama.cpp's converter refuses it: {words}", where=folder)
    task.advance(100 - done)
    task.done()


def _types(path: Path, folder: Path, check: Callable[[GgufFile], None]) -> dict[str, str]:
    """Return the tensor types of the written file; raises ``BadInput`` unless it is a complete GGUF."""
    with GgufFile.open(path) as file:
        if not file.text("general.architecture") or not file.tensors:
            raise BadInput("llama.cpp's converter wrote a file without a model", where=folder)
        check(file)
        return {tensor.name: tensor.type.name for tensor in file.tensors}
