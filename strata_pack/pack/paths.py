"""Names the files of a pack, and resolves a manifest's path to a file inside it.

Paths in a manifest come from strangers: none may leave the folder.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

from strata_pack.errors import BadInput

MANIFEST = "manifest.json"
MODEL_DIR = "model"
TOKENIZER_DIR = "tokenizer"
TEMPLATE = "tokenizer/chat_template.jinja"
GOLDEN = "golden/chat_golden.json"
REPORTS_DIR = "reports"
"""What was proved; written again by every check, so not listed in the manifest."""
SIGNATURE = "model.sig"
PROVENANCE = "provenance.json"
SBOM = "sbom.cdx.json"
CARD = "README.md"
PAPERS = frozenset({SIGNATURE, PROVENANCE, SBOM})
"""What is said of the pack as it is, derived from its manifest: so not listed in it. The signature covers them."""
STATE_DIR = ".template-install"
"""The way back from template installations: of this machine, so not listed in the manifest either. Beside a GGUF it is
called ``<file>.template-install``."""

PARTIAL_SUFFIX = ".partial"
TEMPLATE_KEY = "tokenizer.chat_template"
NAMED_KEY = TEMPLATE_KEY + "."
"""Prefix of further templates by name in a GGUF."""
DEFAULT_NAME = "default"
TOOLS_NAME = "tool_use"
"""The named template that transformers and llama.cpp take in place of the default one when tools are given."""
ADDITIONAL_DIR = "additional_chat_templates"
"""Where transformers keeps templates of other names, as ``NAME.jinja``."""


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


def is_pack(path: Path) -> bool:
    """Whether ``path`` is a folder that holds a manifest."""
    return (path / MANIFEST).is_file()
