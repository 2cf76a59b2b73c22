"""What lies where in a pack, and how to open one.

A pack is whole if and only if its ``manifest.json`` is there; a folder that is still being built is called
``<pack>.partial``. Paths in a manifest come from strangers: none may leave the folder.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from strata_pack.errors import BadInput
from strata_pack.pack.manifest import Manifest, read_manifest
from strata_pack.weights.gguf_file import GgufFile, shard_paths

MANIFEST = "manifest.json"
MODEL_DIR = "model"
TOKENIZER_DIR = "tokenizer"
TEMPLATE = "tokenizer/chat_template.jinja"
GOLDEN = "golden/chat_golden.json"
REPORTS_DIR = "reports"
"""What was proved; written again by every check, so not listed in the manifest."""
STATE_DIR = ".template-install"
"""The way back from template installations: of this machine, so not listed in the manifest either. Beside a GGUF it is
called ``<file>.template-install``."""

PARTIAL_SUFFIX = ".partial"
TEMPLATE_KEY = "tokenizer.chat_template"


def member(root: Path, relative: str) -> Path:
    """Return the path of ``relative`` inside ``root``; ``BadInput`` if it climbs out or passes through a link."""
    parts = PurePosixPath(relative).parts
    try:
        os.fsencode(relative)
    except UnicodeEncodeError:
        raise BadInput(f"names a file that cannot exist: {relative!r}", where=root) from None
    if not parts or relative.startswith("/") or "\\" in relative or "\0" in relative or ".." in parts:
        raise BadInput(f"names a file outside the pack: {relative!r}", where=root)
    path = root
    for part in parts:
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            break
        if stat.S_ISLNK(mode):
            raise BadInput(f"{relative!r} is a link; a pack holds plain files", where=root)
    return root.joinpath(*parts)


@dataclass(frozen=True)
class Pack:
    """A finished pack: its folder (absolute) and its manifest."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Pack:
        """Open the pack in ``path``.

        Raises ``BadInput`` if there is no folder, no manifest, or a manifest that is not one. An interrupted template
        installation is finished or undone first.
        """
        from strata_pack.pack.template_install_state import recover

        if not path.is_dir():
            raise BadInput("no such pack (a folder with a manifest.json)", where=path)
        recover(path)
        manifest_path = path / MANIFEST
        if not manifest_path.is_file():
            remedy = "run the same build again to finish it" if path.name.endswith(PARTIAL_SUFFIX) else None
            raise BadInput("is not a whole pack: manifest.json is missing", where=path, remedy=remedy)
        return cls(path.absolute(), read_manifest(manifest_path))

    @property
    def model_files(self) -> list[Path]:
        """The GGUF files in shard order."""
        return [member(self.path, name) for name in self.manifest["model"]["files"]]

    @property
    def template_path(self) -> Path:
        return member(self.path, TEMPLATE)

    @property
    def golden_path(self) -> Path | None:
        """The pack's golden cases, or ``None`` if it was built without."""
        return member(self.path, GOLDEN) if self.manifest["golden"] is not None else None


def is_pack(path: Path) -> bool:
    """Whether ``path`` is a folder that holds a manifest."""
    return (path / MANIFEST).is_file()


def gguf_template(path: Path) -> str | None:
    """Return the text under ``tokenizer.chat_template`` of a GGUF (of the first shard), or ``None``.

    An interrupted template installation is finished first.
    """
    from strata_pack.pack.template_install_state import recover

    recover(path)
    with GgufFile.open(shard_paths(path)[0]) as gguf:
        value = gguf.metadata.get(TEMPLATE_KEY)
        return str(value.value) if value is not None else None
