"""Builds ``llama-server`` from the pinned source with cmake, once for each source, flags and compiler.

The result lies in a folder of its own under the cache, its ``runtime.json`` written last; an interrupted build is begun
again. The whole log is kept, also of a build that fails.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.files import dump_json, write_atomic
from strata_pack.llama.runtimes import BUILD_RECORD, Backend, Runtime, built_runtimes, runtimes_dir
from strata_pack.llama.source_code import BUILD, VERSION, SourceArchive, fetch_source, unpack_source
from strata_pack.llama.toolchain import Toolchain, cuda_flags, find_toolchain
from strata_pack.progress import Progress, Silent

COMMON_FLAGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF"),
    # No web page in the server: it would be fetched from the network.
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
    f"-DLLAMA_BUILD_NUMBER={BUILD}",
)
BACKEND_FLAGS: Mapping[Backend, tuple[str, ...]] = {
    "cpu": (),
    "cuda": ("-DGGML_CUDA=ON",),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "hip": ("-DGGML_HIP=ON",),
    "metal": ("-DGGML_METAL=ON",),
}
ARCH_FLAGS: Mapping[Backend, str] = {"cuda": "CMAKE_CUDA_ARCHITECTURES", "hip": "AMDGPU_TARGETS"}

CORE_MINUTES: Mapping[Backend, float] = {"cpu": 14, "cuda": 52, "vulkan": 24, "hip": 52, "metal": 16}
"""Minutes of one core that a build takes (CPU and CUDA were measured on 2 cores; the others are guesses from them)."""

TARGET = "llama-server"
_PERCENT = re.compile(r"^\[\s*(\d+)%\]")
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_ERROR = re.compile(r"error[: ]|CMake Error|fatal:|FAILED:|undefined reference", re.I)
TAIL = 5


@dataclass(frozen=True)
class BuildPlan:
    """What would be built: the key is the cache's name for source, flags and compiler."""

    backend: Backend
    flags: tuple[str, ...]
    compiler: str
    key: str
    minutes: float

    @property
    def name(self) -> str:
        """The runtime's name."""
        return f"{self.backend}-{self.key}"


def plan_runtime_build(backend: Backend, arch: str | None = None, jobs: int | None = None) -> BuildPlan:
    """Check the toolchain and return the plan.

    Raises ``EnvironmentFailure`` with one sentence for each missing piece, ``WrongUse`` for an architecture where the
    backend has none.
    """
    if arch is not None and backend not in ARCH_FLAGS:
        raise WrongUse(f"the backend {backend} has no architectures", where="--arch", remedy="leave it out")
    if arch is not None and not re.fullmatch(r"[\w;.:-]+", arch):
        raise WrongUse(f"{arch!r} is no architecture", where="--arch", remedy="such as 90, or gfx1100")
    toolchain = find_toolchain(backend)
    if toolchain.missing:
        raise EnvironmentFailure("; ".join(toolchain.missing), where=f"runtime build --backend {backend}")
    flags = [*COMMON_FLAGS, *BACKEND_FLAGS[backend]]
    flags += [f"-D{ARCH_FLAGS[backend]}={arch}"] if arch is not None else []
    flags += cuda_flags(toolchain) if backend == "cuda" else []
    compiler = _compilers(toolchain)
    cores = jobs or os.cpu_count() or 1
    digest = hashlib.sha256("\0".join([VERSION, compiler, *flags]).encode()).hexdigest()
    return BuildPlan(backend, tuple(flags), compiler, digest[:12], CORE_MINUTES[backend] / cores)


def _compilers(toolchain: Toolchain) -> str:
    """The versions of what compiles, as it says them: another compiler is another build."""
    lines = []
    for name in ("C++ compiler", "nvcc", "hipcc"):
        if name in toolchain.found:
            done = subprocess.run(
                [str(toolchain.found[name]), "--version"], capture_output=True, text=True, check=False
            )
            lines.append(" ".join(done.stdout.split()))
    return "; ".join(lines)


def build_runtime(
    plan: BuildPlan,
    *,
    jobs: int | None = None,
    source_dir: Path | None = None,
    progress: Progress | None = None,
) -> Runtime:
    """Build ``plan``, or return what was built of it before.

    ``source_dir`` is where the archive is looked for and fetched to. Raises ``EnvironmentFailure`` with the first lines
    that tell of an error, and where the whole log is.
    """
    shown = progress or Silent()
    ready = next((runtime for runtime in built_runtimes() if runtime.name == plan.name), None)
    if ready is not None:
        shown.note(f"{plan.name} was built before")
        return ready
    archive = fetch_source(source_dir or runtimes_dir() / "source")
    folder = runtimes_dir() / plan.name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    shown.note(f"building {plan.name}: about {plan.minutes:.0f} minutes; log: {log}")
    started = time.monotonic()
    with _work_folder() as work, log.open("w", encoding="utf-8") as sink:
        tree = unpack_source(archive, work)
        made = work / "build"
        _run(["cmake", "-S", str(tree), "-B", str(made), *plan.flags], sink, log, shown, "configuring")
        command = ["cmake", "--build", str(made), "--target", TARGET, "-j", str(jobs or os.cpu_count() or 1)]
        _run(command, sink, log, shown, "compiling")
        binary = folder / "bin" / TARGET
        binary.parent.mkdir(exist_ok=True)
        fresh = binary.with_suffix(".new")
        shutil.copy2(made / "bin" / TARGET, fresh)
        os.replace(fresh, binary)
    write_atomic(folder / BUILD_RECORD, dump_json(_record(plan, archive, time.monotonic() - started)))
    return next(runtime for runtime in built_runtimes() if runtime.name == plan.name)


def _record(plan: BuildPlan, archive: SourceArchive, seconds: float) -> dict[str, Any]:
    return {
        "backend": plan.backend,
        "binary": f"bin/{TARGET}",
        "llama_cpp": f"b{BUILD}",
        "source_sha256": archive.sha256,
        "flags": list(plan.flags),
        "compiler": plan.compiler,
        "seconds": round(seconds, 1),
    }


@contextmanager
def _work_folder() -> Iterator[Path]:
    """A folder for source and objects (about 1 GB), gone afterwards."""
    runtimes_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=runtimes_dir()) as folder:
        yield Path(folder)


def _run(command: Sequence[str], sink: Any, log: Path, progress: Progress, label: str) -> None:
    """Run one step; its output goes to the log, its percentages to ``progress``."""
    task = progress.task(label, 100, "percent")
    done = 0
    telling: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sink.write(line)
                percent = _percent(line)
                if percent is not None and percent > done:
                    task.advance(percent - done)
                    done = percent
                if _ERROR.search(line) and len(telling) < TAIL:
                    telling.append(line.strip())
        except BaseException:
            process.terminate()
            raise
    status = process.returncode
    sink.flush()
    if status != 0:
        words = " | ".join(telling) or f"status {status}"
        raise EnvironmentFailure(f"{label} failed: {words}", where=log, remedy="read the log")
    task.advance(100 - done)
    task.done()


def _percent(line: str) -> int | None:
    """How far a line of make or ninja says the build is."""
    made = _PERCENT.match(line)
    if made:
        return int(made.group(1))
    counted = _NINJA.match(line)
    return None if counted is None else int(counted.group(1)) * 100 // max(int(counted.group(2)), 1)
