"""Refuses outputs that would destroy a command's input or a finished pack.

Two paths mean the same file if device and inode are equal, whatever their spelling and the links in them. Every
command that writes a file or replaces a folder calls this module before it reads the first byte.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from strata_pack.errors import WrongUse

PACK_MANIFEST = "manifest.json"
PACK_FOLDERS = ("model", "tokenizer", "golden")
"""The folders of a pack that hold the files of its manifest."""

PACK_REPORTS = "reports"
"""The folder of a pack whose files no manifest lists."""

READ_SUFFIXES = frozenset({".gguf", ".jinja", ".json", ".md", ".model", ".safetensors", ".toml", ".txt"})
"""Suffixes of the files that commands read from an input folder; an output with another suffix may be written into
it."""

_OTHER_NAME = "choose another name for the output"


def check_outputs(outputs: Iterable[Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Raise ``WrongUse`` if writing one of ``outputs`` would destroy an input, a part of a pack, or another output.

    An output folder is replaced as a whole, so an input inside it would be lost. ``None`` and inputs that are not paths
    (ids, hub names) are ignored.
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
                    f"would be replaced, and {path} in it is read by this command",
                    where=output,
                    remedy="choose another folder",
                )
        twin = next((other for other in wanted[:index] if is_same_file(output, other)), None)
        if twin is not None:
            raise WrongUse("is given for two outputs", where=output, remedy="give each output its own name")
        pack = pack_around(output) or (enclosing_pack(output) if output.suffix == ".gguf" else None)
        if pack is not None:
            raise WrongUse(
                f"belongs to the pack {pack}, which would no longer match its manifest",
                where=output,
                remedy="write outside the pack",
            )
        pack = enclosing_pack(output)
        if pack is not None and Path(os.path.realpath(output)).relative_to(pack).parts[0] != PACK_REPORTS:
            raise WrongUse(
                f"lies in the pack {pack}, whose manifest does not list it",
                where=output,
                remedy=f"write outside the pack, or into its folder {PACK_REPORTS}",
            )


def check_file_output(
    output: Path, *, force: bool, remedy: str = "choose another name, or replace it with --force"
) -> None:
    """Raise ``WrongUse`` if ``output`` exists (unless ``force``) or is a folder."""
    if output.is_dir():
        raise WrongUse("is a folder, not a file", where=output, remedy="add a file name")
    if not force and os.path.lexists(output):
        raise WrongUse("exists already", where=output, remedy=remedy)


def is_same_file(first: Path, second: Path) -> bool:
    """Return whether two paths mean the same file or folder, which need not exist yet; links are followed."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return os.path.realpath(first) == os.path.realpath(second)


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether ``path`` is below ``folder``; links in both are followed."""
    return any(is_same_file(parent, folder) for parent in Path(os.path.realpath(path)).parents)


def pack_around(path: Path) -> Path | None:
    """Return the finished pack in which ``path`` is, or would be, a listed file; ``None`` if there is none."""
    real = Path(os.path.realpath(path))
    for folder in real.parents:
        first = real.relative_to(folder).parts[0]
        if (first == PACK_MANIFEST or first in PACK_FOLDERS) and looks_like_pack(folder):
            return folder
    return None


def enclosing_pack(path: Path) -> Path | None:
    """Return the finished pack that ``path`` lies or would lie in, ``None`` if there is none."""
    return next((folder for folder in Path(os.path.realpath(path)).parents if looks_like_pack(folder)), None)


def looks_like_pack(folder: Path) -> bool:
    """Return whether ``folder`` has the manifest and model folder of a finished pack; the manifest is not read."""
    return (folder / PACK_MANIFEST).is_file() and (folder / PACK_FOLDERS[0]).is_dir()


def _existing(path: Path | str | None) -> Path | None:
    try:
        return None if path is None or not os.path.lexists(path) else Path(path)
    except ValueError:  # a NUL character: not a path
        return None
