"""Writes files atomically, hashes them, and reads JSON within size limits.

Every file is written under a temporary name in the target's folder, synced (``fsync``) and renamed, so that a crash
at any moment leaves either the old file or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from strata_pack.errors import BadInput, EnvironmentFailure

CHUNK = 1 << 20

CONFIG_LIMIT = 64 << 20
"""Largest size in bytes of a model's JSON file (configuration, tokenizer settings) that is read."""


def fsync_dir(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn the errors "no space left", "too large", "read-only" and "permission denied" into an
    ``EnvironmentFailure``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EnvironmentFailure(
                "no space left on the disk", where=where, remedy="free some space and run again"
            ) from error
        if error.errno == errno.EFBIG:
            problem = "would be larger than its file system or a limit of this process (ulimit -f) allows"
            raise EnvironmentFailure(problem, where=where, remedy="choose another folder") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise EnvironmentFailure("cannot be written", where=where, remedy="check the permissions") from error
        raise


@contextmanager
def atomic_writer(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yield a binary file that becomes ``path`` when the block ends without an exception, and vanishes otherwise.

    ``mode`` sets its final permissions; until the rename only this user can read it.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(fd, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        fsync_dir(path.parent)


def write_atomic(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write ``data`` to ``path`` with the permissions ``mode``, whole or not at all."""
    with atomic_writer(path, mode) as file:
        file.write(data)


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``target`` a hard link of ``source``, or a copy if the file system has no hard links.

    A symbolic link is copied as a link. ``target`` must not exist, its folder must. Raises ``OSError``.
    """
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
        return
    try:
        os.link(source, target)
    except OSError:  # no hard links on this file system
        shutil.copy2(source, target)


def dump_json(value: Any) -> bytes:
    """Return ``value`` as the JSON this tool writes: UTF-8, two spaces, keys in the given order, one final newline.

    If a string cannot be encoded as UTF-8 (a file name of other bytes), all characters beyond ASCII are escaped.
    """
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:
        return (json.dumps(value, indent=2) + "\n").encode("ascii")


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the bytes of ``path``; ``BadInput`` if it is missing, not a file, or larger than ``limit`` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise BadInput("no such file", where=path) from None
    except IsADirectoryError:
        raise BadInput("is a folder, not a file", where=path) from None
    except OSError as error:
        raise EnvironmentFailure(f"cannot be read ({error.strerror})", where=path) from error
    if len(data) > limit:
        raise BadInput(f"is larger than {limit} bytes", where=path)
    return data


def parse_json(data: bytes, where: str | Path) -> Any:
    """Return the value of the JSON text ``data`` (UTF-8, byte order mark allowed); ``BadInput`` if it is not JSON."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON ({error})", where=where) from None


def parse_json_object(data: bytes, where: str | Path) -> dict[str, Any]:
    """Return the JSON object in ``data``; ``BadInput`` for any other value."""
    value = parse_json(data, where)
    if not isinstance(value, dict):
        raise BadInput("is not a JSON object", where=where)
    return value


def read_json(path: Path, limit: int = CONFIG_LIMIT) -> Any:
    """Return the value in the JSON file ``path``; ``BadInput`` if it is missing, not JSON or over ``limit`` bytes."""
    return parse_json(read_bytes(path, limit), path)


def read_json_object(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """Return the JSON object in the file ``path``; ``BadInput`` as in ``read_json``, and for any other value."""
    return parse_json_object(read_bytes(path, limit), path)


def read_state(path: Path, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """Return the JSON object in a file that this tool wrote for itself and can make again; ``{}`` if it is missing,
    unreadable or damaged."""
    try:
        return read_json_object(path, limit)
    except (BadInput, EnvironmentFailure):
        return {}


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of the file as lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_bytes(path: Path) -> int:
    """Return the free bytes that this user may write on the file system of ``path`` (which need not exist yet)."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def sha256_text(text: str) -> str:
    """Return the SHA-256 of the text's UTF-8 bytes as lower-case hex."""
    return sha256_bytes(text.encode("utf-8", "surrogatepass"))


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` as lower-case hex."""
    return hashlib.sha256(data).hexdigest()
