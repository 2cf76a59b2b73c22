"""The reference: llama.cpp's own ``llama_model_quantize``, from the wheel ``cyllama``, in a process of its own.

In the same process its symbols would clash with those of ``xllamacpp``. The wheel's Python interface cannot set
importances, so the script writes the pointer into the C struct that the parameter object holds, after checking that
the struct lies where it should.
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

SCRIPT = """
import ctypes, json, sys
from cyllama.llama.llama_cpp import LlamaModelQuantizeParams, model_quantize

class Importances(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t)]

class Params(ctypes.Structure):
    _fields_ = [("nthread", ctypes.c_int32), ("ftype", ctypes.c_int32), ("types", ctypes.c_int32 * 2),
                ("flags", ctypes.c_bool * 6), ("imatrix", ctypes.POINTER(Importances)),
                ("overrides", ctypes.c_void_p), ("types_by_name", ctypes.c_void_p), ("prune", ctypes.c_void_p)]

def struct_of(params):
    # PyObject head (16 bytes), Cython's method table (8 bytes), then the C struct.
    struct = Params.from_address(id(params) + 24)
    assert (struct.nthread, struct.ftype) == (params.nthread, params.ftype) and not struct.types_by_name
    return struct

class Override(ctypes.Structure):
    _fields_ = [("tag", ctypes.c_int32), ("key", ctypes.c_char * 128), ("gap", ctypes.c_int32),
                ("value", ctypes.c_char * 128)]

def set_overrides(params, overrides):
    table = (Override * (len(overrides) + 1))()
    tags = {"int": (0, ctypes.c_int64), "float": (1, ctypes.c_double), "bool": (2, ctypes.c_bool)}
    for entry, (key, kind, value) in zip(table, overrides):
        entry.key = key.encode()
        if kind == "str":
            entry.tag, entry.value = 3, value.encode()
        else:
            entry.tag = tags[kind][0]
            # The union is aligned to 8 bytes.
            tags[kind][1].from_address(ctypes.addressof(entry) + 136).value = value
    kept.append(table)
    struct_of(params).overrides = ctypes.addressof(table)

def set_prune(params, layers):
    table = (ctypes.c_int32 * (len(layers) + 1))(*layers, -1)
    kept.append(table)
    struct_of(params).prune = ctypes.addressof(table)

def set_imatrix(params, path):
    import numpy
    loaded = numpy.load(path)
    table = (Importances * (len(loaded.files) + 1))()
    for entry, name in zip(table, loaded.files):
        values = numpy.ascontiguousarray(loaded[name], "f4").reshape(-1)
        kept.append(values)
        entry.name, entry.size = name.encode(), values.size
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    kept.append(table)
    struct_of(params).imatrix = table

kept = []
for source, target, values in json.load(sys.stdin):
    params = LlamaModelQuantizeParams()
    imatrix, overrides, prune = (values.pop(name, None) for name in ("imatrix", "overrides", "prune"))
    for name, value in values.items():
        setattr(params, name, value)
    if imatrix:
        set_imatrix(params, imatrix)
    if overrides:
        set_overrides(params, overrides)
    if prune:
        set_prune(params, prune)
    model_quantize(source, target, params)
"""


def needs_oracle() -> pytest.MarkDecorator:
    """Skip the test by name where the wheel is missing."""
    missing = importlib.util.find_spec("cyllama") is None
    return pytest.mark.skipif(missing, reason="the reference quantizer is not there: pip install cyllama==0.2.18")


def reference(jobs: Sequence[tuple[Path, Path, dict[str, Any]]]) -> None:
    """Quantize every (source, target, parameters) with the reference.

    Parameters are attributes of ``LlamaModelQuantizeParams``; ``imatrix`` is the path of an ``.npz`` with the
    importances of each weight, ``overrides`` a list of (key, "int", "float", "bool" or "str", value), ``prune`` layers.
    """
    work = [(str(source), str(target), {"nthread": 1} | values) for source, target, values in jobs]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(work), text=True, capture_output=True, errors="replace"
    )
    assert run.returncode == 0, run.stderr[-2000:]
