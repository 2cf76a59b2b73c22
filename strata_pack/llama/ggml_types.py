"""Provides the enumerations of ggml's and GGUF's types from the package ``gguf``, without importing the whole package.

Importing ``gguf`` also imports numpy, YAML and its writer (0.1 s); its module ``constants`` needs none of them. This
module loads only that one, under its own name, so that a later import of the package gets the same classes. Types that
the installed package lacks are added.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from strata_pack.errors import EnvironmentFailure

if TYPE_CHECKING:
    from gguf.constants import GGML_QUANT_SIZES as GGML_QUANT_SIZES
    from gguf.constants import GGMLQuantizationType as GGMLQuantizationType
    from gguf.constants import GGUFValueType as GGUFValueType

_NAME = "gguf.constants"
_LATER = {"Q2_0": (42, 64, 2 + 16)}
"""Types that releases of the package up to 0.19 lack: number, weights per block, bytes per block.

Source: ``ggml.h`` and ``ggml-common.h`` of llama.cpp.
"""


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


def _add_type(types: Any, name: str, number: int) -> None:
    """Make ``name`` a member of the enumeration ``types``, as if it were the last one of the class."""
    member = int.__new__(types, number)
    member._name_, member._value_, member._sort_order_ = name, number, len(types._member_names_)
    # The enumeration refuses to set the attribute once the name is in its member map.
    setattr(types, name, member)
    types._member_names_.append(name)
    types._member_map_[name] = types._value2member_map_[number] = member


if not TYPE_CHECKING:
    _module = _constants()
    for _name, (_number, _block, _nbytes) in _LATER.items():
        if _name not in _module.GGMLQuantizationType.__members__:
            _add_type(_module.GGMLQuantizationType, _name, _number)
            _module.GGML_QUANT_SIZES[_module.GGMLQuantizationType[_name]] = (_block, _nbytes)
    GGML_QUANT_SIZES = _module.GGML_QUANT_SIZES
    GGMLQuantizationType = _module.GGMLQuantizationType
    GGUFValueType = _module.GGUFValueType

Q2_0 = GGMLQuantizationType["Q2_0"]
