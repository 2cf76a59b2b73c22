"""The kernels as a backend of ggml: which nodes of a graph they take, and which of those they compute."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFWriter

from strata_pack.llama.kernels import Kernels, processor_flags
from strata_pack.llama.logits_native import load_library
from strata_pack.llama.products import functions, keeps_layouts

WANTED = 16
"""``GGML_TENSOR_FLAG_COMPUTE``."""
GET_DEVICE, INIT_BACKEND, SUPPORTS_OP, FREE, COMPUTE = 3, 5, 9, 2, 13
"""The places of functions in ``ggml_backend_reg``, ``ggml_backend_device`` and ``ggml_backend``, in pointers."""


class Tensor(ctypes.Structure):
    """``ggml_tensor``."""


Tensor._fields_ = [  # type: ignore[misc]
    *(("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4)),
    *(("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32)),
    *(("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t)),
    *(("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p), ("pad", ctypes.c_char * 8)),
]


def method(of: int, place: int, result: Any, *arguments: Any) -> Any:
    address = ctypes.cast(of, ctypes.POINTER(ctypes.c_void_p))[place]
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(address)


def tensor(type: Q, *shape: int, data: int = 0) -> Tensor:
    made, stride = Tensor(type=type, data=data), 2 if type is Q.F16 else 4
    for axis, size in enumerate([*shape, 1, 1, 1][:4]):
        made.ne[axis], made.nb[axis] = size, stride
        stride *= size
    return made


class Backend:
    """The backend of one library, with a graph of its own."""

    def __init__(self, path: Path) -> None:
        self.library, self.graph, self.numbers = ctypes.CDLL(str(path)), list[Tensor](), functions(load_library())
        count = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: len(self.graph))
        node = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)(
            lambda _, at: ctypes.addressof(self.graph[at])
        )
        self._kept = count, node
        self.numbers.ggml_graph_n_nodes = ctypes.cast(count, ctypes.c_void_p).value
        self.numbers.ggml_graph_node = ctypes.cast(node, ctypes.c_void_p).value
        registry = self.register(self.numbers)
        self.device = method(registry, GET_DEVICE, ctypes.c_void_p, ctypes.c_size_t)(registry, 0)
        self.own = method(self.device, INIT_BACKEND, ctypes.c_void_p, ctypes.c_char_p)(self.device, None)

    def register(self, numbers: ctypes.Structure) -> int:
        self.library.strata_backend.restype = ctypes.c_void_p
        self.library.strata_backend.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        return int(self.library.strata_backend(ctypes.byref(numbers), "avx512_vnni" in processor_flags()))

    def takes(self, node: Tensor) -> bool:
        return bool(method(self.device, SUPPORTS_OP, ctypes.c_bool, ctypes.c_void_p)(self.device, ctypes.byref(node)))

    def compute(self) -> int:
        return int(method(self.own, COMPUTE, ctypes.c_int, ctypes.c_void_p)(self.own, None))

    def close(self) -> None:
        method(self.own, FREE, None)(self.own)
        self.register(functions(load_library()))


@pytest.fixture
def backend(kernels: Kernels) -> Iterator[Backend]:
    if not kernels.multiplies:
        pytest.skip("no kernels for products on this processor")
    backend = Backend(kernels.path)
    yield backend
    backend.close()


def test_a_node_that_is_not_wanted_is_not_computed(backend: Backend) -> None:
    ones, out = np.ones((32, 32), np.float32), np.zeros((2, 32, 32), np.float32)
    factor = tensor(Q.F32, 32, 32, data=ones.ctypes.data)
    for flags, product in zip((WANTED, 0), out, strict=True):
        node = tensor(Q.F32, 32, 32, data=product.ctypes.data)
        node.op, node.flags = backend.numbers.mul_mat, flags
        node.src[0] = node.src[1] = ctypes.pointer(factor)
        backend.graph.append(node)
    assert backend.compute() == 0
    assert (out[0] == 32).all()
    assert not out[1].any()


@pytest.mark.parametrize(
    ("type", "experts", "taken"), [(Q.F32, 21, True), (Q.F32, 22, False), (Q.Q4_0, 32, True), (Q.Q4_0, 33, False)]
)
def test_experts_with_few_tokens_each_are_left_to_ggml(backend: Backend, type: Q, experts: int, taken: bool) -> None:
    weights, ids = tensor(type, 32, 64, experts), tensor(Q.I32, 4, 64)
    weights.nb[1] = 128 if type is Q.F32 else 18
    node, activations = tensor(Q.F32, 64, 4, 64), tensor(Q.F32, 32, 1, 64)
    node.op = backend.numbers.mul_mat_id
    for place, source in enumerate((weights, activations, ids)):
        node.src[place] = ctypes.pointer(source)
    assert backend.takes(node) == taken


def test_every_token_is_multiplied_by_its_own_experts(backend: Backend) -> None:
    """Experts without tokens, with few, and with more than are multiplied at a time."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((40, 33, 32), np.float32)
    given = random.standard_normal((600, 1, 32), np.float32)
    ids = np.stack([np.full(600, 7), np.arange(600) % 30 + 8], axis=1).astype(np.int32)
    out = np.zeros((600, 2, 33), np.float32)
    node = tensor(Q.F32, 33, 2, 600, data=out.ctypes.data)
    node.op, node.flags = backend.numbers.mul_mat_id, WANTED
    for place, values in enumerate((weights, given, ids)):
        type = Q.I32 if values is ids else Q.F32
        node.src[place] = ctypes.pointer(tensor(type, *reversed(values.shape), data=values.ctypes.data))
    backend.graph.append(node)
    assert backend.compute() == 0
    assert out == pytest.approx(np.einsum("tsrl,tl->tsr", weights[ids], given[:, 0]), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("rows", "kept"), [(64, True), (8, False)])
def test_llama_cpp_keeps_its_layouts_for_a_model_of_a_type_without_kernels(
    tmp_path: Path, rows: int, kept: bool
) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("a.weight", np.zeros((32, 32), np.float32))
    writer.add_tensor("b.weight", np.zeros((rows, 17 * 8), np.uint8), raw_dtype=Q.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert keeps_layouts(tmp_path / "model.gguf") == kept


def test_what_is_no_model_keeps_no_layouts(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(range(60)))
    assert not keeps_layouts(tmp_path / "model.gguf")
