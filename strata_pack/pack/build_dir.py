"""Manages ``<pack>.partial``, the folder in which a pack is built: its lock, its journal, and the move into place.

    <pack>.partial/
      build.json    the request and its inputs; a build with others starts from scratch
      lock          held while a build is running
      source/       the fetched source
      journal/      finished tensors
      pack/         the incomplete pack

A build may be killed at any moment; the next one with the same inputs resumes from these files.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import disk_errors, dump_json, read_state, sha256_file, sha256_text, write_atomic
from strata_pack.pack.atomic_replace import locked, put
from strata_pack.pack.contents import carry_over, unlisted_files
from strata_pack.pack.manifest import Manifest, read_manifest
from strata_pack.pack.paths import MANIFEST, PARTIAL_SUFFIX, TEMPLATE_KEY, is_pack
from strata_pack.weights.gguf.edit import PAD_KEY
from strata_pack.weights.gguf.file import open_shards, shard_paths

LOCK = "lock"
STATE = "build.json"
PARTS = frozenset({LOCK, STATE, "source", "journal", "pack"})
"""All names that a build creates in its folder."""
_STATE_ON_ITS_WAY = re.compile(rf"\.{re.escape(STATE)}\..*\.tmp")


@dataclass(frozen=True)
class BuildDir:
    """``root`` is the partial folder of the pack ``out``."""

    root: Path
    out: Path

    @property
    def pack(self) -> Path:
        return self.root / "pack"

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    @property
    def _state(self) -> Path:
        return self.root / STATE

    def _read(self) -> dict[str, Any]:
        return read_state(self._state)

    def begin(self, key: dict[str, Any], inputs: dict[str, Any]) -> bool:
        """Record what is being built; return whether the work of an earlier build of the same is here.

        ``key`` is the request, ``inputs`` what it resolves to. Files built from other inputs are removed; fetched files
        are kept (the fetcher checks them).
        """
        state = self._read()
        if (state.get("key"), state.get("inputs")) == (key, inputs):
            return self.pack.is_dir()
        for folder in (self.pack, self.journal):
            shutil.rmtree(folder, ignore_errors=True)
        write_atomic(self._state, dump_json({"key": key, "inputs": inputs}))
        return False

    def installed(self, key: dict[str, Any]) -> Manifest | None:
        """Return the manifest of an earlier build of ``key`` that was interrupted after its pack was in place, or
        ``None``.

        A bare GGUF has no manifest next to it, so its files are compared with the recorded manifest.
        """
        state = self._read()
        text = state.get("installing")
        if state.get("key") != key or not isinstance(text, str):
            return None
        manifest: Manifest = json.loads(text)
        if (self.out / MANIFEST).is_file():
            return manifest if sha256_file(self.out / MANIFEST) == sha256_text(text) else None
        files = [(self.out / Path(file["path"]).name, file) for file in manifest["files"]]
        models = [(path, file) for path, file in files if file["path"] in manifest["model"]["files"]]
        there = all(path.is_file() and sha256_file(path) == file["sha256"] for path, file in models)
        return manifest if there else None

    def install(self, folder: Path, kept: Sequence[str] = ()) -> None:
        """Move ``folder`` (inside the build folder) to ``out``; the caller then calls ``remove``.

        ``kept`` names the files of the existing ``out`` that are carried over to the new one.
        """
        carry_over(kept, self.out, folder)
        manifest = (self.pack / MANIFEST).read_bytes().decode("utf-8")
        write_atomic(self._state, dump_json({**self._read(), "installing": manifest}))
        put(folder, self.out)

    def remove(self) -> None:
        """Remove the build folder, ``build.json`` and the lock last."""
        last = (self._state, self.root / LOCK)
        for entry in self.root.iterdir():
            if entry not in last:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for path in last:
            path.unlink(missing_ok=True)
        # Another build may have created its own lock here by now.
        with contextlib.suppress(OSError):
            self.root.rmdir()


def check_target(out: Path, *, force: bool) -> list[str]:
    """Raise ``WrongUse`` unless ``out`` does not exist, or is a pack or bare GGUF and ``force`` is set.

    Returns the files in an existing pack that its manifest does not list: the tool must not delete them.
    """
    if out.name in ("", ".", "..") or out.name.endswith(PARTIAL_SUFFIX):
        raise WrongUse("cannot be a pack's folder", where=out, remedy="choose another name")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise WrongUse("exists and is not a folder", where=out, remedy="choose another name")
    manifest = _manifest_of(out)
    held = "pack" if manifest is not None else "bare GGUF" if _is_bare_gguf(out) else None
    if held is not None:
        if not force:
            remedy = "choose another folder, or --force to replace it"
            raise WrongUse(f"holds a {held} already", where=out, remedy=remedy)
    elif out.is_dir() and any(out.iterdir()):
        raise WrongUse("is a folder with other files in it", where=out, remedy="choose another one")
    return [] if manifest is None else unlisted_files(out, manifest)


def _manifest_of(out: Path) -> Manifest | None:
    """Return the manifest in ``out``; ``WrongUse`` if the file of that name is damaged or not a pack's manifest."""
    if not is_pack(out):
        return None
    try:
        return read_manifest(out / MANIFEST)
    except BadInput as error:
        problem = f"is a folder with other files in it: its {MANIFEST} {error.problem}"
        raise WrongUse(problem, where=out, remedy="choose another folder") from error


def _is_bare_gguf(folder: Path) -> bool:
    """Return whether ``folder`` is the output of a build with layout "gguf": all files of one model and nothing else.

    In such a model the last metadata keys are the build's template and pad. The headers of other tools, also of files
    quantized from ours, end differently.
    """
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    if not entries or any(entry.is_symlink() or not entry.is_file() or entry.suffix != ".gguf" for entry in entries):
        return False
    try:
        if sorted(shard_paths(entries[0])) != entries:
            return False
        keys = [key for key in open_shards(entries[0])[0].metadata if not key.startswith("split.")]
    except BadInput:
        return False
    return keys[-2:] == [TEMPLATE_KEY, PAD_KEY]


def partial_folder(out: Path) -> Path:
    """Return the folder in which the pack ``out`` is built."""
    return out.with_name(out.name + PARTIAL_SUFFIX) if out.name else out


def _refuse_foreign(root: Path) -> None:
    """Raise ``WrongUse`` if ``root`` exists and no build has created it, because a build removes files in it."""
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        raise WrongUse("is in the way: the build creates a folder there", where=root, remedy="move it away")
    names = os.listdir(root) if root.is_dir() else []
    foreign = sorted(name for name in names if name not in PARTS and not _STATE_ON_ITS_WAY.fullmatch(name))
    if foreign:
        problem = f"is in the way: a build would remove {foreign[0]} in it, which is not of a build"
        raise WrongUse(problem, where=root, remedy="move it away, or choose another name for the pack")


@contextmanager
def open_build_dir(out: Path) -> Iterator[BuildDir]:
    """Create (or find) and lock the partial folder next to ``out``."""
    if out.name in ("", ".."):
        raise WrongUse("cannot be a pack's folder", where=out, remedy="choose another name")
    root = partial_folder(out)
    _refuse_foreign(root)
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    # Only the holder of the lock may remove the folder.
    with locked(root / LOCK, str(out)):
        try:
            yield BuildDir(root, out)
        finally:
            with contextlib.suppress(OSError):
                if not (set(os.listdir(root)) - {LOCK}):
                    shutil.rmtree(root)
