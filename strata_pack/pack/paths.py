"""Names the files of a pack, and resolves a manifest's path to a file inside it.

Paths in a manifest are untrusted: none may leave the pack's folder.
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
"""The reports of checks. Every check rewrites its report, so the manifest does not list them."""
SIGNATURE = "model.sig"
PROVENANCE = "provenance.json"
SBOM = "sbom.cdx.json"
CARD = "README.md"
ATTESTATIONS = frozenset({SIGNATURE, PROVENANCE, SBOM})
"""Files derived from the manifest, which therefore does not list them. The signature covers them."""
STATE_DIR = ".template-install"
"""The journals of template installations. They belong to this machine, so the manifest does not list them. Next to a
GGUF the folder is called ``<file>.template-install``."""

PARTIAL_SUFFIX = ".partial"
TEMPLATE_KEY = "tokenizer.chat_template"
NAMED_KEY = TEMPLATE_KEY + "."
"""Prefix of the keys of named templates in a GGUF."""
DEFAULT_NAME = "default"
TOOLS_NAME = "tool_use"
"""The named template that transformers and llama.cpp use in place of the default one when the request has tools."""
ADDITIONAL_DIR = "additional_chat_templates"
"""The folder in which transformers stores named templates, as ``NAME.jinja``."""


def member(root: Path, relative: str) -> Path:
    """Return the path of ``relative`` inside ``root``; ``BadInput`` if it leaves ``root`` or passes through a link."""
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
            raise BadInput(f"{relative!r} is a link; a pack has plain files only", where=root)
    return root.joinpath(*parts)


def is_pack(path: Path) -> bool:
    """Return whether ``path`` is a folder with a manifest."""
    return (path / MANIFEST).is_file()
