"""Compile the kernels: the C files of this folder to one shared library a processor.

    python kernels/compile.py [--all] [--out FOLDER]

Without ``--all`` only what this machine can run is built, with the system's C compiler or else with the package
``ziglang``. With it, what a released wheel carries, always with ``ziglang``. Python's standard library is all it needs.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent
BUILT = SOURCES.parent / "build/kernels"
ZIGLANG = "ziglang>=0.15,<0.18"
TIMEOUT = 600.0
FLAGS = (
    *("-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"),
    # Each operation rounds on its own: the order and number of roundings decide about the bytes.
    *("-ffp-contract=off", "-fno-math-errno"),
)


@dataclass(frozen=True)
class Target:
    """One library: its file's name, the machine it is for, and how the compilers call that."""

    file: str
    system: str
    machine: str
    zig: tuple[str, ...]
    cc: tuple[str, ...]


TARGETS = (
    *(
        Target(
            f"linux-x86-64-{level}.so",
            "linux",
            "x86_64",
            ("-target", "x86_64-linux-gnu.2.17", f"-mcpu=x86_64_{level}", "-mprefer-vector-width=512"),
            (f"-march=x86-64-{level}",),
        )
        for level in ("v2", "v3", "v4")
    ),
    Target("linux-aarch64.so", "linux", "aarch64", ("-target", "aarch64-linux-gnu.2.17"), ()),
    Target("macos-aarch64.dylib", "darwin", "arm64", ("-target", "aarch64-macos"), ()),
)


class CannotCompile(Exception):
    """There is no compiler, or it fails."""


def own_targets() -> list[Target]:
    """Return the targets of this system and machine."""
    return [t for t in TARGETS if (t.system, t.machine) == (sys.platform, platform.machine())]


@functools.lru_cache(maxsize=1)
def source_hash() -> str:
    """Return 16 hex digits that change with the sources."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def system_compiler(targets: Sequence[Target]) -> str | None:
    """Return the system's C compiler if it can build all ``targets``, else ``None``."""
    name = os.environ.get("CC") or next((found for found in ("cc", "gcc", "clang") if shutil.which(found)), None)
    if name is None or not targets:
        return None
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.c"
        # The headers hold all that not every compiler understands.
        probe.write_text('#include "halves.h"\nEXPORT int probe(Ints a) { return any(a); }\n', encoding="ascii")
        for target in targets:
            command = [name, *target.cc, *FLAGS, f"-I{SOURCES}", "-o", f"{folder}/probe.so", str(probe)]
            try:
                done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
            except (OSError, subprocess.TimeoutExpired):
                return None
            if done.returncode:
                return None
    return name


def compile_kernels(out: Path, *, everything: bool = False) -> list[Path]:
    """Build the libraries into ``out`` and return them; one that is there and up to date is kept.

    Raises ``CannotCompile``. A library appears whole or not at all.
    """
    targets = list(TARGETS) if everything else own_targets()
    if not targets:
        raise CannotCompile(f"there are no kernels for {sys.platform} on {platform.machine()}")
    compiler = None if everything else system_compiler(targets)
    if compiler is None and importlib.util.find_spec("ziglang") is None:
        raise CannotCompile("there is neither a C compiler nor the package ziglang")
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda target: _compile(target, compiler, out), targets))


def _compile(target: Target, compiler: str | None, out: Path) -> Path:
    path = out / target.file
    stamp = path.with_name(f"{path.name}.stamp")
    command = [compiler, *target.cc] if compiler else [sys.executable, "-m", "ziglang", "cc", "-s", *target.zig]
    command += [*FLAGS, f'-DSTRATA_SOURCE="{source_hash()}"']
    state = " ".join(map(str, command[1:])) + "\n"
    if path.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == state:
        return path
    with tempfile.TemporaryDirectory(dir=out) as folder:
        fresh = Path(folder) / target.file
        environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": folder}
        if "ZIG_GLOBAL_CACHE_DIR" not in environment:
            environment["ZIG_GLOBAL_CACHE_DIR"] = folder
        command += ["-o", str(fresh), *map(str, sorted(SOURCES.glob("*.c")))]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotCompile(f"{target.file}: {error}") from error
        if done.returncode:
            raise CannotCompile(f"{target.file}: {done.stderr.strip()[-2000:]}")
        stamp.unlink(missing_ok=True)
        fresh.chmod(0o644)
        fresh.replace(path)
    stamp.write_text(state, encoding="utf-8")
    return path


def main() -> None:
    """Compile and say what was made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every library that a released wheel carries")
    parser.add_argument("--out", type=Path, default=BUILT)
    options = parser.parse_args()
    try:
        for path in compile_kernels(options.out, everything=options.all):
            print(path)
    except CannotCompile as error:
        sys.exit(f"the kernels cannot be compiled: {error}")


if __name__ == "__main__":
    main()
