"""Manages ``<pack>.partial``, the folder a pack is built in: its lock, its journal, and the move into place.

    <pack>.partial/
      build.json    what is being built from what; a build of anything else starts anew
      lock          held while a build is at work
      source/       what was fetched
      journal/      finished tensors
      pack/         the pack as far as it is

A build may be killed at any moment; the next one with the same inputs goes on from what is here.
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
from strata_pack.files import disk_errors, dump_json, sha256_file, sha256_text, write_atomic
from strata_pack.pack.atomic_replace import locked, put
from strata_pack.pack.contents import carry_over, unlisted_files
from strata_pack.pack.manifest import Manifest, read_manifest
from strata_pack.pack.paths import MANIFEST, PARTIAL_SUFFIX, TEMPLATE_KEY, is_pack
from strata_pack.weights.gguf.edit import PAD_KEY
from strata_pack.weights.gguf.file import open_shards, shard_paths

LOCK = "lock"
STATE = "build.json"
PARTS = frozenset({LOCK, STATE, "source", "journal", "pack"})
"""All that a build makes in its folder."""
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
        try:
            value = json.loads(self._state.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def begin(self, key: dict[str, Any], inputs: dict[str, Any]) -> bool:
        """Say what is being built; ``True`` if the work of an earlier build of the same is here.

        ``key`` is what the user asked for, ``inputs`` what that turned out to mean. What was built from other inputs
        is removed; what was fetched stays (the fetcher checks it).
        """
        state = self._read()
        if (state.get("key"), state.get("inputs")) == (key, inputs):
            return self.pack.is_dir()
        for folder in (self.pack, self.journal):
            shutil.rmtree(folder, ignore_errors=True)
        write_atomic(self._state, dump_json({"key": key, "inputs": inputs}))
        return False

    def installed(self, key: dict[str, Any]) -> Manifest | None:
        """Return the manifest of an earlier build of ``key`` that was stopped after its pack was in place, if it was.

        A bare GGUF has no manifest next to it: its files are compared with what the manifest says.
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
        """Make ``folder`` (inside the build folder) the finished ``out``; ``remove`` is left to do.

        ``kept`` names the files of the present ``out`` that the new one holds too.
        """
        carry_over(kept, self.out, folder)
        manifest = (self.pack / MANIFEST).read_bytes().decode("utf-8")
        write_atomic(self._state, dump_json({**self._read(), "installing": manifest}))
        put(folder, self.out)

    def remove(self) -> None:
        """Remove everything of the build folder, what it remembers and its lock last."""
        last = (self._state, self.root / LOCK)
        for entry in self.root.iterdir():
            if entry not in last:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for path in last:
            path.unlink(missing_ok=True)
        # Another build may have made its own lock here by now.
        with contextlib.suppress(OSError):
            self.root.rmdir()


def check_target(out: Path, *, force: bool) -> list[str]:
    """Raise ``WrongUse`` unless ``out`` is free, or a pack or bare GGUF that ``force`` may replace.

    Returns the files in a pack there that its manifest does not list: they are not the tool's to delete.
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
        raise WrongUse("is a folder with other things in it", where=out, remedy="choose another one")
    return [] if manifest is None else unlisted_files(out, manifest)


def _manifest_of(out: Path) -> Manifest | None:
    """Return the manifest in ``out``; ``WrongUse`` if a file of that name is something else's or damaged."""
    if not is_pack(out):
        return None
    try:
        return read_manifest(out / MANIFEST)
    except BadInput as error:
        problem = f"is a folder with other things in it: its {MANIFEST} {error.problem}"
        raise WrongUse(problem, where=out, remedy="choose another folder") from error


def _is_bare_gguf(folder: Path) -> bool:
    """Whether ``folder`` is what a build of layout "gguf" leaves: all files of one model and nothing else.

    Its last keys are the build's template and pad. A header that another tool has written, or that was quantized from
    ours, ends otherwise.
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
    """Raise ``WrongUse`` if ``root`` is there and no build has made it: a build removes what it finds in it."""
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        raise WrongUse("is in the way: the build makes a folder there", where=root, remedy="move it away")
    names = os.listdir(root) if root.is_dir() else []
    foreign = sorted(name for name in names if name not in PARTS and not _STATE_ON_ITS_WAY.fullmatch(name))
    if foreign:
        problem = f"is in the way: a build would remove {foreign[0]} in it, which no build put there"
        raise WrongUse(problem, where=root, remedy="move it away, or choose another name for the pack")


@contextmanager
def open_build_dir(out: Path) -> Iterator[BuildDir]:
    """Make (or find) and lock the partial folder next to ``out``."""
    if out.name in ("", ".."):
        raise WrongUse("cannot be a pack's folder", where=out, remedy="choose another name")
    root = partial_folder(out)
    _refuse_foreign(root)
    with disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
    # Only who holds the lock may remove the folder.
    with locked(root / LOCK, str(out)):
        try:
            yield BuildDir(root, out)
        finally:
            with contextlib.suppress(OSError):
                if not (set(os.listdir(root)) - {LOCK}):
                    shutil.rmtree(root)
