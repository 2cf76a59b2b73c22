"""Finds the shipped data: ``templates/`` and ``golden/``.

In a source checkout they are next to the package, in a wheel inside it.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).parent


def data_dir(name: str) -> Path:
    """Return the folder ``name`` ("templates" or "golden")."""
    packaged = _PACKAGE / "_data" / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def cache_dir() -> Path:
    """Return the cache folder (built runtimes, probes); ``STRATA_CACHE`` overrides it."""
    base = os.environ.get("STRATA_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strata-pack"
