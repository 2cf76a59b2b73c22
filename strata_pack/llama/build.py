"""Builds ``llama-server`` from the pinned source with cmake, once for each source, flags and compiler.

Each build has its own folder in the cache, whose ``runtime.json`` is written last; an interrupted build is resumed. The
whole log is kept, also of a failed build.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.files import dump_json, write_atomic
from strata_pack.llama.cuda_wheels import WheelToolkit, fetch_toolkit, toolkit_key
from strata_pack.llama.devices import nvidia_devices
from strata_pack.llama.runtimes import BUILD_RECORD, Backend, Runtime, cached_runtimes, runtimes_dir
from strata_pack.llama.source_code import BUILD, INSIDE, VERSION, SourceArchive, fetch_source, unpack_source
from strata_pack.llama.supervised import run_supervised
from strata_pack.llama.toolchain import Toolchain, cuda_flags, find_toolchain
from strata_pack.locks import hold_folder
from strata_pack.progress import Progress, Silent

COMMON_FLAGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DGGML_NATIVE=ON"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_OPENSSL=OFF"),
    # No web UI in the server: the build would download it.
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
WHEEL_FLAGS = (
    # Without CUDA virtual memory management, linking does not need the driver's library.
    *("-DGGML_CUDA_NO_VMM=ON", "-DGGML_CUDA_NCCL=OFF"),
    # The libraries of a finished server are next to it.
    "-DCMAKE_BUILD_RPATH=$ORIGIN/../lib",
)
"""Additional flags of a CUDA build with the toolkit from NVIDIA's wheels."""

ToolkitKind = Literal["system", "pip"]
"""Origin of a CUDA build's tools: this machine, or wheels from the package index."""

ARCH_FLAGS: Mapping[Backend, str] = {"cuda": "CMAKE_CUDA_ARCHITECTURES", "hip": "AMDGPU_TARGETS"}

CORE_MINUTES: Mapping[Backend, float] = {"cpu": 14, "cuda": 64, "vulkan": 24, "hip": 52, "metal": 16}
"""Core-minutes of a build (CPU and CUDA were measured on 2 cores; the others are estimates)."""

TARGET = "llama-server"
_PERCENT = re.compile(r"^\[\s*(\d+)%\]")
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_ERROR = re.compile(r"error[: ]|CMake Error|fatal:|FAILED:|undefined reference", re.I)
TAIL = 5


@dataclass(frozen=True)
class BuildPlan:
    """A planned build; ``key`` identifies source, flags and compiler in the cache."""

    backend: Backend
    flags: tuple[str, ...]
    compiler: str
    key: str
    minutes: float
    toolkit: ToolkitKind = "system"

    @property
    def name(self) -> str:
        """The runtime's name."""
        return f"{self.backend}-{self.key}"


def plan_runtime_build(
    backend: Backend, arch: str | None = None, jobs: int | None = None, toolkit: ToolkitKind = "system"
) -> BuildPlan:
    """Check the toolchain and return the plan; with the toolkit ``"pip"`` only a C++ compiler is needed.

    Raises ``EnvironmentFailure`` with one sentence for each missing tool, ``WrongUse`` for an architecture with a
    backend that has none, or if one must be named.
    """
    if arch is not None and backend not in ARCH_FLAGS:
        raise WrongUse(f"the backend {backend} has no architectures", where="--arch", remedy="leave it out")
    if arch is not None and not re.fullmatch(r"[\w;.:-]+", arch):
        raise WrongUse(f"{arch!r} is not an architecture", where="--arch", remedy="such as 90, or gfx1100")
    in_wheels = toolkit == "pip"
    if in_wheels and backend != "cuda":
        raise WrongUse(f"there are no wheels of a toolkit for {backend}", where="--toolkit", remedy="leave it out")
    if in_wheels and arch is None and not nvidia_devices():
        raise WrongUse(
            "there is no GPU from which to take the architecture", where="--arch", remedy="name it, such as --arch 90"
        )
    toolchain = find_toolchain("compiler" if in_wheels else backend)
    if toolchain.missing:
        raise EnvironmentFailure("; ".join(toolchain.missing), where=f"runtime build --backend {backend}")
    flags = [*COMMON_FLAGS, *BACKEND_FLAGS[backend]]
    flags += [f"-D{ARCH_FLAGS[backend]}={arch}"] if arch is not None else []
    if backend == "cuda":
        flags += WHEEL_FLAGS if in_wheels else cuda_flags(toolchain)
    compiler = _compilers(toolchain) + (f"; wheels {toolkit_key()}" if in_wheels else "")
    cores = min(jobs or math.inf, os.cpu_count() or 1)
    digest = hashlib.sha256("\0".join([VERSION, compiler, *flags]).encode()).hexdigest()
    return BuildPlan(backend, tuple(flags), compiler, digest[:12], CORE_MINUTES[backend] / cores, toolkit)


def _compilers(toolchain: Toolchain) -> str:
    """Return the version lines of the compilers: another compiler is another build."""
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
    """Build ``plan``, or return an earlier build of it; files that an interrupted build compiled are not compiled
    again.

    ``source_dir`` is the folder of the source archive, which is fetched if missing. Raises ``EnvironmentFailure`` with
    the first error lines and the path of the whole log.
    """
    shown = progress or Silent()
    folder = runtimes_dir() / plan.name
    folder.mkdir(parents=True, exist_ok=True)
    busy = EnvironmentFailure("is being built by another process", where=folder, remedy="wait for it")
    with hold_folder(folder, busy):
        ready = next((runtime for runtime in cached_runtimes() if runtime.name == plan.name), None)
        if ready is not None:
            shown.note(f"{plan.name} was built before")
            return ready
        archive = fetch_source(source_dir or runtimes_dir() / "source")
        toolkit = fetch_toolkit(shown) if plan.toolkit == "pip" else None
        log = folder / "build.log"
        shown.note(f"building {plan.name}: about {plan.minutes:.0f} minutes; log: {log}")
        started = time.monotonic()
        with _work_folder(plan.name) as work, log.open("a", buffering=1, encoding="utf-8") as sink:
            tree = _source_tree(archive, work)
            made = work / "build"
            _compile(plan, tree, made, toolkit, jobs, _Log(sink, log, shown))
            _install_file(made / "bin" / TARGET, folder / "bin" / TARGET)
            for library in toolkit.libraries() if toolkit is not None else ():
                _install_file(library, folder / "lib" / library.name)
        write_atomic(folder / BUILD_RECORD, dump_json(_record(plan, archive, time.monotonic() - started)))
    return next(runtime for runtime in cached_runtimes() if runtime.name == plan.name)


def _install_file(file: Path, place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    fresh = place.with_name(f"{place.name}.new")
    fresh.unlink(missing_ok=True)
    try:
        os.link(file, fresh)
    except OSError:
        shutil.copy2(file, fresh)
    os.replace(fresh, place)


def _source_tree(archive: SourceArchive, work: Path) -> Path:
    """Unpack the source only once, because new files would all be compiled again."""
    done = work / "unpacked"
    if done.is_file():
        return work / INSIDE
    tree = unpack_source(archive, work)
    done.touch()
    return tree


@dataclass(frozen=True)
class _Log:
    """The destinations of a build's output: the open log, its path, and the progress."""

    sink: IO[str]
    path: Path
    progress: Progress


def _compile(
    plan: BuildPlan, tree: Path, made: Path, toolkit: WheelToolkit | None, jobs: int | None, log: _Log
) -> None:
    cmake, tools = "cmake", []
    if toolkit is not None:
        cmake, tools = str(toolkit.cmake), ["-G", "Ninja", *toolkit.flags()]
    _run([cmake, "-S", str(tree), "-B", str(made), *tools, *plan.flags], log, "configuring")
    command = [cmake, "--build", str(made), "--target", TARGET, "-j", str(jobs or os.cpu_count() or 1)]
    _run(command, log, "compiling")


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
def _work_folder(name: str) -> Iterator[Path]:
    """Yield a folder for source and objects (about 1 GB), which is removed after success or failure and kept when
    interrupted."""
    work = runtimes_dir() / f".build-{name}"
    work.mkdir(parents=True, exist_ok=True)
    try:
        yield work
    except Exception:
        shutil.rmtree(work, ignore_errors=True)
        raise
    shutil.rmtree(work, ignore_errors=True)


def _run(command: Sequence[str], log: _Log, label: str) -> None:
    """Run one step; its output goes to the log, its percentages to the log's ``progress``."""
    task = log.progress.task(label, 100, "percent")
    done = 0
    telling: list[str] = []

    def heard(line: str) -> None:
        nonlocal done
        log.sink.write(line + "\n")
        percent = _percent(line)
        if percent is not None and percent > done:
            task.advance(percent - done)
            done = percent
        if _ERROR.search(line) and len(telling) < TAIL:
            telling.append(line.strip())

    status = run_supervised(command, heard, environment=os.environ)
    log.sink.flush()
    if status != 0:
        words = " | ".join(telling) or f"status {status}"
        raise EnvironmentFailure(f"{label} failed: {words}", where=log.path, remedy="read the log")
    task.advance(100 - done)
    task.done()


def _percent(line: str) -> int | None:
    """Return the percentage in a line of make or ninja."""
    made = _PERCENT.match(line)
    if made:
        return int(made.group(1))
    counted = _NINJA.match(line)
    return None if counted is None else int(counted.group(1)) * 100 // max(int(counted.group(2)), 1)
