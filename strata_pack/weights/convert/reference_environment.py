"""Creates the environment of llama.cpp's own converter: the pinned source, and a separate Python with torch.

It is in the cache folder and is created once, on request. Nothing of it is imported into this process: torch and
transformers have a gigabyte, and the converter is third-party code.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import dump_json, read_json_object, write_atomic
from strata_pack.llama.runtimes import runtimes_dir
from strata_pack.llama.source_code import BUILD, fetch_source, unpack_source
from strata_pack.llama.supervised import run_supervised
from strata_pack.locks import hold_folder
from strata_pack.progress import Progress
from strata_pack.resources import cache_dir

REQUIREMENTS = (
    "torch==2.13.0",
    "transformers==4.57.6",
    "numpy>=2.2,<3",
    "sentencepiece>=0.2,<0.3",
    "protobuf>=4.21,<8",
    "pyyaml>=6,<7",
    "tqdm>=4.66,<5",
)
"""The converter's requirements: transformers in its pinned version, torch in a version for every supported Python."""

SCRIPT = "convert_hf_to_gguf.py"
PARTS = (SCRIPT, "conversion", "gguf-py", "LICENSE")
"""The parts of the source that are unpacked."""

COST = (
    f"llama.cpp's converter (b{BUILD}) needs a separate Python environment with torch and transformers: about 1.2 GB "
    "of disk with a CPU build of torch, about 6 GB with the CUDA packages that pip brings otherwise, and a few minutes"
)
RECORD = "environment.json"
WAIT_SECONDS = 3600.0
INSTALL_SECONDS = 3600.0
_ERROR = re.compile(r"error", re.IGNORECASE)

KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
"""The environment variables that a third-party program gets: no keys, no home folders, no proxies."""


@dataclass(frozen=True)
class ReferenceEnvironment:
    """A usable converter: its ``python`` and its ``script``."""

    python: Path
    script: Path


def environment_folder() -> Path:
    """Return the folder of the environment for this Python and these requirements, which may not exist yet."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256("\n".join((version, *REQUIREMENTS)).encode()).hexdigest()[:8]
    return cache_dir() / f"converter-b{BUILD}-py{version}-{digest}"


def ready_environment() -> ReferenceEnvironment | None:
    """Return the environment if it is complete, else ``None``."""
    folder = environment_folder()
    found = ReferenceEnvironment(folder / "venv" / "bin" / "python", folder / "llama.cpp" / SCRIPT)
    try:
        read_json_object(folder / RECORD)
    except BadInput:
        return None
    return found if found.python.exists() and found.script.is_file() else None


def make_environment(progress: Progress) -> ReferenceEnvironment:
    """Return the environment, creating it if missing; raises ``EnvironmentFailure`` if pip fails."""
    folder = environment_folder()
    folder.mkdir(parents=True, exist_ok=True)
    busy = EnvironmentFailure("is being created by another process", where=folder, remedy="wait for it")
    with hold_folder(folder, busy, WAIT_SECONDS):
        ready = ready_environment()
        if ready is not None:
            return ready
        started = time.monotonic()
        progress.note(f"creating the environment of llama.cpp's converter in {folder}; log: {folder / 'install.log'}")
        for name in ("venv", "llama.cpp"):
            shutil.rmtree(folder / name, ignore_errors=True)
        _unpack(folder)
        _install(folder, progress)
        seconds = round(time.monotonic() - started, 1)
        write_atomic(folder / RECORD, dump_json({"requirements": list(REQUIREMENTS), "seconds": seconds}))
        progress.note(f"the environment is ready after {seconds:.0f} s")
    made = ready_environment()
    if made is None:
        raise EnvironmentFailure("the environment is incomplete", where=folder, remedy="remove it and run again")
    return made


def _unpack(folder: Path) -> None:
    archive = fetch_source(runtimes_dir() / "source")
    with tempfile.TemporaryDirectory(prefix=".source-", dir=folder) as scratch:
        tree = unpack_source(archive, Path(scratch))
        target = folder / "llama.cpp"
        target.mkdir()
        for name in PARTS:
            shutil.move(tree / name, target / name)


def _install(folder: Path, progress: Progress) -> None:
    python = folder / "venv" / "bin" / "python"
    log = folder / "install.log"
    steps = (
        ("an empty environment", [sys.executable, "-m", "venv", str(folder / "venv")]),
        ("its packages", [str(python), "-m", "pip", "install", "--disable-pip-version-check", *REQUIREMENTS]),
    )
    with log.open("w", encoding="utf-8") as sink:
        for label, command in steps:
            telling: list[str] = []

            def heard(line: str, telling: list[str] = telling) -> None:
                sink.write(line + "\n")
                if _ERROR.search(line):
                    telling.append(line.strip())

            task = progress.task(label)
            # pip reads its configuration and proxies from the environment and the home folder.
            status = run_supervised(command, heard, environment=os.environ, timeout_seconds=INSTALL_SECONDS)
            task.done()
            if status != 0:
                words = " | ".join(telling[:3]) or f"status {status}"
                raise EnvironmentFailure(f"{label} could not be installed: {words}", where=log, remedy="read the log")


def bare_variables(home: Path) -> dict[str, str]:
    """Return the environment variables for a program without access to the user's settings."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return {
        **kept,
        "HOME": str(home),
        "HF_HOME": str(home / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUNBUFFERED": "1",
    }
