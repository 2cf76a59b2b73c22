"""The versions that a release's bytes and measurements depend on: tool, llama.cpp library, kernels, engines."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from strata_pack import __version__
from strata_pack.llama.runtimes import Runtime, pick_runtime


@dataclass(frozen=True)
class Versions:
    """``library``: version and SHA-256 of the embedded llama.cpp; ``runtime``: what serves for smoke and calls;
    ``kernels``: name and version, or "none"; ``engines``: the versions of the template engines by name."""

    tool: str
    library: str
    kernels: str
    runtime: str
    engines: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def installed_versions() -> Versions:
    """Return the versions of this process's installation."""
    from strata_pack.llama.ggml import Ggml
    from strata_pack.llama.kernels import VERSION, Kernels, find_kernels

    ggml, kernels = Ggml.load(), find_kernels()
    return Versions(
        tool=__version__,
        library=f"xllamacpp {ggml.version} {ggml.library_sha256}",
        kernels=f"{kernels.name} {VERSION}" if isinstance(kernels, Kernels) else "none",
        runtime=runtime_identity(pick_runtime(), ggml.version),
        engines=engine_versions(),
    )


def runtime_identity(runtime: Runtime, library: str) -> str:
    """Return an identity that changes when another llama.cpp would be started."""
    if runtime.path is None:
        return f"{runtime.name} {runtime.backend} {library}"
    known = runtime.path.stat()
    details = json.dumps(dict(runtime.details), sort_keys=True, default=str)
    return f"{runtime.name} {runtime.backend} {known.st_size} {known.st_mtime_ns} {details}"


def engine_versions() -> dict[str, str]:
    """Return the installed template engines and their versions, without importing them."""
    from importlib.metadata import PackageNotFoundError, version

    from strata_pack.chat.engines.engines import IN_PROCESS

    found = {}
    for name, (package, _) in IN_PROCESS.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found
