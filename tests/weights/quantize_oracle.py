"""The reference: llama.cpp's own ``llama_model_quantize``, from the wheel ``cyllama``, in a process of its own.

In the same process its symbols would clash with those of ``xllamacpp``.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """
import json, sys
from cyllama.llama.llama_cpp import LlamaModelQuantizeParams, model_quantize
for source, target, values in json.load(sys.stdin):
    params = LlamaModelQuantizeParams()
    for name, value in values.items():
        if name == "imatrix":
            import array
            value = {key: array.array("f", numbers) for key, numbers in value.items()}
        setattr(params, name, value)
    model_quantize(source, target, params)
"""


def needs_oracle() -> pytest.MarkDecorator:
    """Skip the test by name where the wheel is missing."""
    missing = importlib.util.find_spec("cyllama") is None
    return pytest.mark.skipif(missing, reason="the reference quantizer is not there: pip install cyllama==0.2.18")


def reference(jobs: Sequence[tuple[Path, Path, dict[str, Any]]]) -> None:
    """Quantize every (source, target, parameters) with the reference; parameters as ``LlamaModelQuantizeParams``."""
    work = [(str(source), str(target), {"nthread": 1} | values) for source, target, values in jobs]
    run = subprocess.run([sys.executable, "-c", _SCRIPT], input=json.dumps(work), text=True, capture_output=True, errors="replace")
    assert run.returncode == 0, run.stderr[-2000:]
