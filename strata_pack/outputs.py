"""Refuses outputs that would destroy what a command reads, or a finished pack.

Two paths are one file when the file system says so (device and inode), whatever their spelling and however many links
lie between. Every command that writes a file or replaces a folder asks here before it reads the first byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from strata_pack.errors import WrongUse

PACK_MANIFEST = "manifest.json"
PACK_FOLDERS = ("model", "tokenizer", "golden")
"""What makes a folder a pack, as far as a name can tell: these folders hold what its manifest lists."""

READ_SUFFIXES = frozenset({".gguf", ".jinja", ".json", ".md", ".model", ".safetensors", ".toml", ".txt"})
"""Endings of the files that commands read out of a folder: a report of another kind may lie in it."""

_OTHER_NAME = "choose another name for the output"


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Raise ``WrongUse`` if writing one of ``outputs`` would destroy an input, a part of a pack, or another output.

    An output that is a folder is one that will be replaced whole: an input inside it is lost with it. Inputs that are
    no paths on this disk (ids, hub names) and ``None`` are passed over.
    """
    wanted = [path for path in outputs if path is not None]
    read = [path for path in map(_existing, inputs) if path is not None]
    for index, output in enumerate(wanted):
        for path in read:
            if is_same_file(output, path):
                raise WrongUse(f"would overwrite {path}, which this command reads", where=output, remedy=_OTHER_NAME)
            if path.is_dir() and output.is_file() and output.suffix in READ_SUFFIXES and is_inside(output, path):
                raise WrongUse(f"is a file of {path}, which this command reads", where=output, remedy=_OTHER_NAME)
            if output.is_dir() and is_inside(path, output):
                raise WrongUse(
                    f"would be replaced with {path} in it, which this command reads",
                    where=output,
                    remedy="choose another folder",
                )
        twin = next((other for other in wanted[:index] if is_same_file(output, other)), None)
        if twin is not None:
            raise WrongUse("is the place of two outputs", where=output, remedy="give each a name of its own")
        pack = pack_around(output)
        if pack is not None:
            raise WrongUse(
                f"belongs to the pack {pack}, which would no longer be what its manifest says",
                where=output,
                remedy="write outside the pack",
            )


def check_file_output(
    output: Path, *, force: bool, remedy: str = "choose another name, or replace it with --force"
) -> None:
    """Raise ``WrongUse`` if ``output`` is there already (unless ``force``), or is a folder."""
    if output.is_dir():
        raise WrongUse("is a folder, not a file to write", where=output, remedy="add a file name")
    if not force and os.path.lexists(output):
        raise WrongUse("is there already", where=output, remedy=remedy)


def is_same_file(first: Path, second: Path) -> bool:
    """Say whether two paths mean one file or folder, also one that is not there yet; links are followed."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)


def is_inside(path: Path, folder: Path) -> bool:
    """Say whether ``path`` lies below ``folder``, through whatever links either is named."""
    return any(is_same_file(parent, folder) for parent in Path(os.path.realpath(path)).parents)


def pack_around(path: Path) -> Path | None:
    """Return the finished pack of whose listed parts ``path`` is or would be one, ``None`` if there is none."""
    real = Path(os.path.realpath(path))
    for folder in real.parents:
        first = real.relative_to(folder).parts[0]
        if (first == PACK_MANIFEST or first in PACK_FOLDERS) and looks_like_pack(folder):
            return folder
    return None


def looks_like_pack(folder: Path) -> bool:
    """Say whether ``folder`` has the two things that every finished pack has; the manifest is not read."""
    return (folder / PACK_MANIFEST).is_file() and (folder / PACK_FOLDERS[0]).is_dir()


def _existing(path: Path | str | None) -> Path | None:
    try:
        return None if path is None or not os.path.lexists(path) else Path(path)
    except ValueError:  # a NUL in a text that is no path
        return None
