"""The types of ggml and GGUF as the package ``gguf`` numbers them, without what importing that package costs.

``gguf`` imports numpy, YAML and its writer before it says a number (0.1 s); its ``constants`` need none of them. They
are loaded alone here, under their own name, so that whoever imports the package later gets the same classes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from strata_pack.errors import EnvironmentFailure

if TYPE_CHECKING:
    from gguf.constants import GGML_QUANT_SIZES as GGML_QUANT_SIZES
    from gguf.constants import GGMLQuantizationType as GGMLQuantizationType
    from gguf.constants import GGUFValueType as GGUFValueType

_NAME = "gguf.constants"


def _constants() -> ModuleType:
    if _NAME in sys.modules:
        return sys.modules[_NAME]
    package = importlib.util.find_spec("gguf")
    origin = None if package is None or package.origin is None else Path(package.origin).with_name("constants.py")
    spec = None if origin is None else importlib.util.spec_from_file_location(_NAME, origin)
    if spec is None or spec.loader is None:
        raise EnvironmentFailure("the package gguf is not installed", remedy="install it with: pip install gguf")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


if not TYPE_CHECKING:
    _module = _constants()
    GGML_QUANT_SIZES = _module.GGML_QUANT_SIZES
    GGMLQuantizationType = _module.GGMLQuantizationType
    GGUFValueType = _module.GGUFValueType
