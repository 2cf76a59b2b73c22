"""Calls the functions of llama.h that turn tokens into logits, through ctypes on the ``xllamacpp`` shared object.

Structures are passed by value, so their layout must be that of the build in the wheel. Two checks precede loading: the
wheel's version must be the one whose ``include/llama.h`` (llama.cpp b11549) defines the layout, and the library's
default parameters must appear in the right fields.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.llama.ggml import library_path

LAYOUT_OF = "2026.10.11549"
"""The xllamacpp version whose llama.h the structures follow."""

_F32 = 0
"""``GGML_TYPE_F32``."""
_NEVER = 0
"""``LLAMA_FLASH_ATTN_TYPE_DISABLED``."""
_SPARE = 256
"""Spare bytes after each structure: a build with a longer structure writes into them, not over Python's memory, and
gets its own defaults back from them."""

_pointer, _i32, _u32, _float, _bool = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_bool


class ModelParams(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("devices", "tensor_buft_overrides")),
        *((name, _i32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, _pointer) for name in ("tensor_split", "progress_callback", "progress_data", "kv_overrides")),
        *((name, _bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts")),
        *((name, _bool) for name in ("no_host", "no_alloc", "load_mtp")),
        ("spare", ctypes.c_uint8 * _SPARE),
    )


class ContextParams(ctypes.Structure):
    _fields_ = (
        *((name, _u32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, _u32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, _i32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling_type")),
        *((name, _i32) for name in ("pooling_type", "attention_type", "flash_attn_type")),
        *((name, _float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor")),
        *((name, _float) for name in ("yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", _u32),
        ("defrag_thold", _float),
        *((name, _pointer) for name in ("cb_eval", "cb_eval_data")),
        *((name, _i32) for name in ("type_k", "type_v")),
        ("moe_cache_size", ctypes.c_size_t),
        *((name, _pointer) for name in ("abort_callback", "abort_callback_data")),
        *((name, _bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload", "swa_full", "kv_unified")),
        ("samplers", _pointer),
        ("n_samplers", ctypes.c_size_t),
        ("ctx_other", _pointer),
        ("spare", ctypes.c_uint8 * _SPARE),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        ("n_tokens", _i32),
        *((name, _pointer) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")),
    )


MODEL_DEFAULTS: dict[str, Any] = {"n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "main_gpu": 0}
MODEL_DEFAULTS |= {"vocab_only": False, "check_tensors": False, "use_extra_bufts": True, "no_alloc": False}
CONTEXT_DEFAULTS: dict[str, Any] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
}
CONTEXT_DEFAULTS |= {"n_threads": 4, "n_threads_batch": 4, "rope_scaling_type": -1, "pooling_type": -1}
CONTEXT_DEFAULTS |= {"attention_type": -1, "flash_attn_type": -1, "yarn_ext_factor": -1.0, "defrag_thold": -1.0}
CONTEXT_DEFAULTS |= {"type_k": 1, "type_v": 1, "moe_cache_size": 0, "embeddings": False, "offload_kqv": True}
CONTEXT_DEFAULTS |= {"no_perf": True, "op_offload": True, "swa_full": True, "kv_unified": False, "n_samplers": 0}

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [_pointer, _pointer]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (_pointer, [ctypes.c_char_p, ModelParams]),
    "llama_model_get_vocab": (_pointer, [_pointer]),
    "llama_model_n_ctx_train": (_i32, [_pointer]),
    "llama_model_free": (None, [_pointer]),
    "llama_init_from_model": (_pointer, [_pointer, ContextParams]),
    "llama_free": (None, [_pointer]),
    "llama_get_memory": (_pointer, [_pointer]),
    "llama_memory_clear": (None, [_pointer, _bool]),
    "llama_vocab_n_tokens": (_i32, [_pointer]),
    "llama_vocab_bos": (_i32, [_pointer]),
    "llama_vocab_get_add_bos": (_bool, [_pointer]),
    "llama_tokenize": (_i32, [_pointer, ctypes.c_char_p, _i32, _pointer, _i32, _bool, _bool]),
    "llama_decode": (_i32, [_pointer, Batch]),
    "llama_get_logits_ith": (_pointer, [_pointer, _i32]),
}


class LogitsUnavailable(EnvironmentFailure):
    """Full logits are not available from the installed llama.cpp; a server can still return the likeliest tokens."""


def load_library(path: Path | None = None) -> ctypes.CDLL:
    """Return the library with its functions declared and the layout of its structures checked.

    Raises ``LogitsUnavailable`` for another version, or if its defaults are not in the expected fields.
    """
    path = path or library_path()
    found = version("xllamacpp")
    if found != LAYOUT_OF:
        raise LogitsUnavailable(
            f"full logits need xllamacpp {LAYOUT_OF}, whose structures are known, but {found} is installed",
            remedy=f"pip install xllamacpp=={LAYOUT_OF}",
        )
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LogitsUnavailable(f"gives no logits ({error})", where=path) from error
    check_layout(library.llama_model_default_params(), MODEL_DEFAULTS, path)
    check_layout(library.llama_context_default_params(), CONTEXT_DEFAULTS, path)
    return library


def check_layout(params: ctypes.Structure, defaults: dict[str, Any], path: Path) -> None:
    """Raise ``LogitsUnavailable`` unless every field has the default value of the known build."""
    wrong = [name for name, value in defaults.items() if getattr(params, name) != value]
    wrong += [name for name, kind, *_ in params._fields_ if kind is _pointer and getattr(params, name) is not None]
    if wrong:
        problem = f"{type(params).__name__} is laid out differently in this build (seen at {', '.join(wrong)})"
        raise LogitsUnavailable(problem, where=path, remedy=f"use the wheel xllamacpp {LAYOUT_OF}")


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_LOG_ERROR = 4
_errors: deque[str] = deque(maxlen=5)


def _keep_error(level: int, text: bytes, _data: object) -> None:
    """Keep llama.cpp's last error lines for our messages; the rest of its log is dropped."""
    if level == _LOG_ERROR:
        _errors.append(text.decode("utf-8", "replace").strip())


_log_callback = _LogCallback(_keep_error)


def _why() -> str:
    return f" ({_errors[0]})" if _errors else ""


EvalCallback = ctypes.CFUNCTYPE(_bool, _pointer, _bool, _pointer)
"""``ggml_backend_sched_eval_callback``: called with a node before (``ask`` true) and after it is computed."""


class LogitsModel:
    """A loaded model with one context. Use as a context manager. Not thread-safe."""

    def __init__(
        self, path: Path, *, context: int, threads: int, eval_callback: Any = None, repack: bool = True
    ) -> None:
        """Load ``path`` for windows of ``context`` tokens; ``BadInput`` if llama.cpp cannot.

        ``eval_callback``, an ``EvalCallback`` that the caller keeps alive, is called for every node of the graph.
        ``repack``: llama.cpp may store weights in layouts of its own, which other backends (``products``) cannot read.
        """
        self._library = library = load_library()
        library.llama_log_set(_log_callback, None)
        library.llama_backend_init()
        _errors.clear()
        settings = library.llama_model_default_params()
        settings.use_extra_bufts = repack
        self._model = library.llama_model_load_from_file(str(path).encode(), settings)
        if not self._model:
            raise BadInput(f"llama.cpp does not load it{_why()}", where=path)
        params = library.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = context
        params.n_outputs_max_per_seq = 0
        params.n_threads = params.n_threads_batch = threads
        if eval_callback is not None:
            params.cb_eval = ctypes.cast(eval_callback, _pointer)
            # F16 keys and values, which flash attention uses, cause errors of 0.5 % in the inputs of rare experts.
            params.type_k, params.type_v, params.flash_attn_type = _F32, _F32, _NEVER
        self._context = library.llama_init_from_model(self._model, params)
        if not self._context:
            library.llama_model_free(self._model)
            problem = f"llama.cpp cannot create a context of {context} tokens{_why()}"
            raise EnvironmentFailure(problem, where=path, remedy="use shorter windows")
        vocab = library.llama_model_get_vocab(self._model)
        self.n_vocab: int = library.llama_vocab_n_tokens(vocab)
        self.n_ctx_train: int = library.llama_model_n_ctx_train(self._model)
        self.bos: int | None = library.llama_vocab_bos(vocab) if library.llama_vocab_get_add_bos(vocab) else None
        self._vocab = vocab

    def __enter__(self) -> LogitsModel:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the tokens of ``text`` without added special tokens; ``parse_special`` recognises those in the
        text."""
        data = text.encode()
        room = len(data) + 16
        while True:
            tokens = (_i32 * room)()
            count = self._library.llama_tokenize(self._vocab, data, len(data), tokens, room, False, parse_special)
            if count >= 0:
                break
            room = -count
        return list(tokens[:count])

    def rows(self, tokens: list[int], first: int, end: int) -> Iterator[npt.NDArray[np.float32]]:
        """Evaluate ``tokens`` as a fresh sequence and yield the logits (``n_vocab``) at positions ``first`` to ``end``.

        A row is a view of llama.cpp's memory, valid until the next evaluation.
        """
        self.evaluate(tokens, first, end)
        yield from map(self.row, range(first, end))

    def row(self, position: int) -> npt.NDArray[np.float32]:
        """Return the logits at a position of the last evaluation that was asked for them; valid until the next one."""
        address = self._library.llama_get_logits_ith(self._context, position)
        return np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (self.n_vocab,))

    def evaluate(self, tokens: list[int], first: int, end: int) -> None:
        """Evaluate ``tokens`` as a fresh sequence, with logits at positions ``first`` to ``end``.

        Raises ``EnvironmentFailure`` if llama.cpp cannot.
        """
        count = len(tokens)
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        sequence = (_i32 * 1)(0)
        arrays = (
            (_i32 * count)(*tokens),
            (_i32 * count)(*range(count)),
            (_i32 * count)(*[1] * count),
            (_pointer * count)(*[ctypes.addressof(sequence)] * count),
            (ctypes.c_int8 * count)(*(int(first <= position < end) for position in range(count))),
        )
        token, pos, n_seq_id, seq_id, wanted = (ctypes.addressof(array) for array in arrays)
        code = self._library.llama_decode(self._context, Batch(count, token, None, pos, n_seq_id, seq_id, wanted))
        if code:
            raise EnvironmentFailure(f"llama.cpp could not evaluate {count} tokens (status {code}){_why()}")

    def logits(self, tokens: list[int], first: int) -> npt.NDArray[np.float32]:
        """Return a copy of the logits at the positions from ``first`` on, shape (``len(tokens) - first``,
        ``n_vocab``)."""
        return np.stack([row.copy() for row in self.rows(tokens, first, len(tokens))])
