"""The wheel ``strata-parser``: the sources of ``strata_pack.parsing`` under the name ``strata_parser``.

Both distributions come of the same files; only the name of the package in the imports differs.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "strata_parser"
SOURCE = Path(__file__).parents[2] / "strata_pack"


class ParserHook(BuildHookInterface):
    """Puts the renamed sources into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        for path in sorted((SOURCE / "parsing").glob("*.py")):
            text = re.sub(r"\bstrata_pack\.parsing\b", NAME, path.read_text(encoding="utf-8"))
            if "strata_pack" in text:
                raise ValueError(f"{path} needs more of strata_pack than the parser")
            (folder / path.name).write_text(text, encoding="utf-8")
        (folder / "py.typed").touch()
        build_data["force_include"] |= {str(path): f"{NAME}/{path.name}" for path in folder.iterdir()}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        self._folder.cleanup()
