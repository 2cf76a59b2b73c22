"""Sums the squared input activations of each weight while llama.cpp evaluates a text.

llama.cpp calls back after each node of its graph; the callback reads the inputs of matrix multiplications: for a dense
weight every row of the input, for a mixture of experts the rows of each expert. The sums are in double precision. What
follows the last input, mainly the logits, is not computed. The rules are those of llama.cpp's ``tools/imatrix``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, StrataError
from strata_pack.llama.logits_native import EvalCallback, LogitsUnavailable, load_library

Doubles = npt.NDArray[np.float64]

MIN_ROWS = 16
"""A dense multiplication with fewer rows is ignored, as in llama-imatrix: it does not belong to a prompt."""
OUTPUTS = frozenset({"output.weight", "token_embd.weight"})
"""The output weights, collected only on request. Tied models use the embedding."""
_F32 = 0
_OBJECT_SIZE = 32
"""Bytes of ``struct ggml_object``, which ``ggml_tensor_overhead`` adds to the tensor's own."""


class Tensor(ctypes.Structure):
    """``struct ggml_tensor`` of ``ggml.h``; its size is checked against the library before it is used."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int32),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
        ("padding", ctypes.c_char * 8),
    )


@dataclass
class Sums:
    """The sums of one weight's inputs: sums of squares and plain sums, shape (matrices, row length), and row counts,
    shape (matrices,) or (1,)."""

    squares: Doubles
    plain: Doubles
    counts: npt.NDArray[np.int64]


def plain_name(name: str) -> str:
    """Return a weight's name without the scheduler's prefix and suffix: ``CUDA0#blk.0.attn_k.weight#0``."""
    return name.split("#")[1] if "#" in name else name


class ActivationCollector:
    """Sums the activations of one model. ``callback`` is for the model's context; ``sums`` maps a weight's name to
    its sums."""

    def __init__(self, *, process_output: bool = False) -> None:
        """Declare the functions used; ``LogitsUnavailable`` if tensors are laid out differently in this build."""
        self.sums: dict[str, Sums] = {}
        self.error: StrataError | None = None
        self._process_output = process_output
        self._library = library = load_library()
        for name, result, arguments in (
            ("ggml_op_name", ctypes.c_char_p, [ctypes.c_int32]),
            ("ggml_tensor_overhead", ctypes.c_size_t, []),
            ("ggml_backend_buffer_is_host", ctypes.c_bool, [ctypes.c_void_p]),
            ("ggml_backend_tensor_get", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        if library.ggml_tensor_overhead() != _OBJECT_SIZE + ctypes.sizeof(Tensor):
            raise LogitsUnavailable("ggml's tensors are laid out differently in this build of xllamacpp")
        self._ops: dict[int, str] = {}
        self._seen: dict[int, tuple[Doubles, Doubles]] = {}
        self._collected = 0
        self._last: int | None = None
        self.callback = EvalCallback(self._on_node)

    def next_graph(self) -> None:
        """Drop the cached inputs of the last evaluation. Call it before each evaluation, which reuses their memory.

        All evaluations must have the same number of tokens: each stops where the first one had its last input.
        """
        self._seen.clear()
        if self._last is None and self._collected:
            self._last = self._collected
        self._collected = 0

    def _on_node(self, address: int, ask: bool, _data: object) -> bool:
        if self.error is not None:
            return False
        try:
            node = Tensor.from_address(address)
            op = self._op(node.op)
            if op not in ("MUL_MAT", "MUL_MAT_ID"):
                return not ask
            weight, given = (Tensor.from_address(node.src[i]) for i in (0, 1))
            if ask:
                if op == "MUL_MAT_ID" or not self._wanted(weight, given):
                    return op == "MUL_MAT_ID"
                if node.src[1] not in self._seen:
                    return True
                # Nothing to read: llama.cpp need not stop here.
                self._add_dense(weight, given, node.src[1])
                self._collected += 1
                return False
            self._collected += 1
            if op == "MUL_MAT_ID":
                self._add_experts(weight, given, Tensor.from_address(node.src[2]))
            else:
                self._add_dense(weight, given, node.src[1])
        except StrataError as error:
            self.error = error
            return False
        return self._collected != self._last

    def _op(self, code: int) -> str:
        if code not in self._ops:
            self._ops[code] = self._library.ggml_op_name(code).decode()
        return self._ops[code]

    def _wanted(self, weight: Tensor, given: Tensor) -> bool:
        if given.ne[1] < MIN_ROWS or given.type != _F32:
            return False
        name = plain_name(weight.name.decode())
        return name.startswith("blk.") or (self._process_output and name in OUTPUTS)

    def _add_dense(self, weight: Tensor, given: Tensor, address: int) -> None:
        name = plain_name(weight.name.decode())
        per_matrix, matrices = weight.ne[2], weight.ne[2] * weight.ne[3]
        sums = self._entry(name, matrices, given.ne[0], counts=1)
        if matrices == 1:
            # Several weights have the same input (query, key and value): its sums are computed once.
            if address not in self._seen:
                rows = self._floats(given).reshape(-1, given.ne[0])
                self._seen[address] = _squares(rows), rows.sum(axis=0).astype(np.float64)
            squares, plain = self._seen[address]
            sums.squares[0] += squares
            sums.plain[0] += plain
        else:
            values = self._floats(given)
            for i3, i2 in np.ndindex(given.ne[3], given.ne[2]):
                matrix = (i3 % weight.ne[3]) * per_matrix + i2 % per_matrix
                sums.squares[matrix] += _squares(values[i3, i2])
                sums.plain[matrix] += values[i3, i2].sum(axis=0)
        self._check(name, sums.squares)
        sums.counts += given.ne[1] * given.ne[2] * given.ne[3] // matrices

    def _add_experts(self, weight: Tensor, given: Tensor, ids: Tensor) -> None:
        name = plain_name(weight.name.decode())
        experts, columns = weight.ne[2], given.ne[0]
        sums = self._entry(name, experts, columns, counts=experts)
        chosen = self._values(ids, np.dtype(np.int32))[0, 0]  # (tokens, experts per token)
        values = self._floats(given)[
            0
        ]  # (tokens, inputs per token, columns): one input for all experts, or one for each
        if chosen.min() < 0 or chosen.max() >= experts:
            raise BadInput(f"an expert of {name} is chosen that it does not have")
        order = np.argsort(chosen, axis=None, kind="stable")
        sorted_experts = chosen.reshape(-1)[order]
        token, slot = np.divmod(order, chosen.shape[1])
        rows = values[token, slot % values.shape[1]]
        present, starts = np.unique(sorted_experts, return_index=True)
        sums.squares[present] += np.add.reduceat(rows * rows, starts, axis=0)
        sums.plain[present] += np.add.reduceat(rows, starts, axis=0)
        self._check(name, sums.squares[present])
        sums.counts += np.bincount(sorted_experts, minlength=experts)

    def _entry(self, name: str, matrices: int, columns: int, counts: int) -> Sums:
        if name not in self.sums:
            shape = (matrices, columns)
            self.sums[name] = Sums(np.zeros(shape), np.zeros(shape), np.zeros(counts, np.int64))
        return self.sums[name]

    def _check(self, name: str, squares: Doubles) -> None:
        if not np.isfinite(squares).all():
            raise BadInput(f"the input of {name} has NaN or infinite values", remedy="the model's weights are damaged")

    def _floats(self, tensor: Tensor) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = self._values(tensor, np.dtype(np.float32))
        return values

    def _values(self, tensor: Tensor, kind: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the values of a tensor, slowest dimension first; a copy if it is not in host memory."""
        shape, strides = tuple(reversed(tensor.ne)), tuple(reversed(tensor.nb))
        extent = kind.itemsize + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        buffer: Any
        if tensor.buffer and not self._library.ggml_backend_buffer_is_host(tensor.buffer):
            buffer = ctypes.create_string_buffer(extent)
            self._library.ggml_backend_tensor_get(ctypes.addressof(tensor), buffer, 0, extent)
        else:
            buffer = (ctypes.c_char * extent).from_address(tensor.data)
        values: npt.NDArray[Any] = np.ndarray(shape, kind, buffer, strides=strides)
        return values


def _squares(rows: npt.NDArray[np.float32]) -> Doubles:
    squares: Doubles = np.einsum("ij,ij->j", rows, rows).astype(np.float64)
    return squares
