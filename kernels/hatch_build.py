"""Hatch's build hook: compiles the kernels when the package is built or installed from its sources.

An editable install finds them in ``build/kernels``; a wheel carries them. With ``STRATA_KERNELS=all`` the wheel carries
those of every supported machine and a failure is an error; otherwise a machine without a compiler gets none, and ggml
quantizes.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def _compiler(root: str) -> ModuleType:
    """Load ``compile.py``: the hook is executed as a lone file, without a package around it."""
    name = "strata_kernels_compile"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(root) / "kernels/compile.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles before the wheel's files are gathered."""

    def dependencies(self) -> list[str]:
        """Ask for ``ziglang`` where the system's compiler will not do."""
        compiler = _compiler(self.root)
        if os.environ.get("STRATA_KERNELS") == "all":
            return [compiler.ZIGLANG]
        targets = compiler.own_targets()
        return [compiler.ZIGLANG] if targets and compiler.system_compiler(targets) is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and have a wheel carry what was made."""
        compiler = _compiler(self.root)
        everything = os.environ.get("STRATA_KERNELS") == "all"
        try:
            made = compiler.compile_kernels(Path(self.root) / "build/kernels", everything=everything)
        except compiler.CannotCompile as error:
            if everything:
                raise
            self.app.display_warning(f"ggml will quantize, several times slower ({platform.machine()}: {error})")
            return
        if version != "editable":
            for path in made:
                build_data["force_include"][str(path)] = f"strata_pack/_data/kernels/{path.name}"
