"""Maps arguments of llama-server to fields of ``xllamacpp.CommonParams`` for the embedded server.

Names, values and numbers are those of llama.cpp's common/arg.cpp and of the enumerations in its headers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_pack.errors import WrongUse
from strata_pack.suggest import nearest

ArgumentReader = Callable[[str], Any]


@dataclass(frozen=True)
class EmbeddedArgument:
    """The effect of one argument: ``field`` is set to ``read(value)``, or for a switch (without ``read``) to
    ``value``."""

    field: str
    read: ArgumentReader | None = None
    value: Any = True


def _word(**values: Any) -> ArgumentReader:
    """Return a parser that accepts one of several words."""

    def read(text: str) -> Any:
        if text.lower() not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return values[text.lower()]

    return read


def _layers(text: str) -> int:
    words = {"auto": -1, "all": -2}
    return words[text] if text in words else _whole(text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def _drafters(text: str) -> list[str]:
    """Return the ways of guessing ahead, as the embedded server calls them; draft models of other kinds are not run."""
    known = ("none", "draft-simple", "draft-mtp", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
    names = text.split(",")
    if not set(names) <= set(known):
        raise ValueError(f"some of {', '.join(known)}")
    return [f"COMMON_SPECULATIVE_TYPE_{name.upper().replace('-', '_')}" for name in names]


_cache_type = _word(f32=0, f16=1, bf16=30, q8_0=8, q4_0=2, q4_1=3, iq4_nl=20, q5_0=6, q5_1=7)
_load_mode = {"auto": -1, "none": 0, "mmap": 1, "mlock": 2, "mmap+mlock": 3, "dio": 4}
_on_off = dict.fromkeys(("on", "true", "1"), True) | dict.fromkeys(("off", "false", "0"), False)

_ROWS: tuple[tuple[str, EmbeddedArgument], ...] = (
    ("-ngl --gpu-layers --n-gpu-layers", EmbeddedArgument("n_gpu_layers", _layers)),
    ("-sm --split-mode", EmbeddedArgument("split_mode", _word(none=0, layer=1, row=2, tensor=3))),
    ("-mg --main-gpu", EmbeddedArgument("main_gpu", _whole)),
    ("-t --threads", EmbeddedArgument("cpuparams.n_threads", _whole)),
    ("-tb --threads-batch", EmbeddedArgument("cpuparams_batch.n_threads", _whole)),
    ("--threads-http", EmbeddedArgument("n_threads_http", _whole)),
    ("-b --batch-size", EmbeddedArgument("n_batch", _whole)),
    ("-ub --ubatch-size", EmbeddedArgument("n_ubatch", _whole)),
    ("--keep", EmbeddedArgument("n_keep", _whole)),
    ("-fa --flash-attn", EmbeddedArgument("flash_attn_type", _word(on=1, off=0, auto=-1))),
    ("-ctk --cache-type-k", EmbeddedArgument("cache_type_k", _cache_type)),
    ("-ctv --cache-type-v", EmbeddedArgument("cache_type_v", _cache_type)),
    ("-nkvo --no-kv-offload", EmbeddedArgument("no_kv_offload")),
    ("--no-op-offload", EmbeddedArgument("no_op_offload")),
    ("--no-host", EmbeddedArgument("no_host")),
    ("-lm --load-mode", EmbeddedArgument("load_mode", _word(**_load_mode))),
    ("-lzm --lazy-mode", EmbeddedArgument("lazy_mode", _word(on=2, auto=1, off=0))),
    ("--numa", EmbeddedArgument("numa", _word(distribute=1, isolate=2, numactl=3))),
    ("--swa-full", EmbeddedArgument("swa_full")),
    ("-kvu --kv-unified", EmbeddedArgument("kv_unified")),
    ("--context-shift", EmbeddedArgument("ctx_shift")),
    ("-cram --cache-ram", EmbeddedArgument("cache_ram_mib", _whole)),
    ("--cache-reuse", EmbeddedArgument("n_cache_reuse", _whole)),
    ("-ctxcp --ctx-checkpoints --swa-checkpoints", EmbeddedArgument("n_ctx_checkpoints", _whole)),
    ("-fit --fit", EmbeddedArgument("fit_params", _word(**_on_off))),
    ("--rope-scaling", EmbeddedArgument("rope_scaling_type", _word(none=0, linear=1, yarn=2))),
    ("--rope-freq-base", EmbeddedArgument("rope_freq_base", _number)),
    ("--rope-freq-scale", EmbeddedArgument("rope_freq_scale", _number)),
    ("--yarn-orig-ctx", EmbeddedArgument("yarn_orig_ctx", _whole)),
    ("--yarn-ext-factor", EmbeddedArgument("yarn_ext_factor", _number)),
    ("--yarn-attn-factor", EmbeddedArgument("yarn_attn_factor", _number)),
    ("--yarn-beta-slow", EmbeddedArgument("yarn_beta_slow", _number)),
    ("--yarn-beta-fast", EmbeddedArgument("yarn_beta_fast", _number)),
    ("--embedding --embeddings", EmbeddedArgument("embedding")),
    ("--pooling", EmbeddedArgument("pooling_type", _word(none=0, mean=1, cls=2, last=3, rank=4))),
    ("-md --model-draft --spec-draft-model", EmbeddedArgument("speculative.draft.mparams.path", str)),
    ("--spec-type", EmbeddedArgument("speculative.types", _drafters)),
    ("--spec-draft-n-max", EmbeddedArgument("speculative.draft.n_max", _whole)),
    ("--spec-draft-n-min", EmbeddedArgument("speculative.draft.n_min", _whole)),
    ("--metrics", EmbeddedArgument("endpoint_metrics")),
    ("--warmup", EmbeddedArgument("warmup")),
    ("--no-warmup", EmbeddedArgument("warmup", value=False)),
)

EMBEDDED_ARGUMENTS: Mapping[str, EmbeddedArgument] = {
    name: argument for names, argument in _ROWS for name in names.split()
}
"""Maps an argument of llama-server to its effect in the embedded server."""


def embedded_params(given: Sequence[str]) -> dict[str, Any]:
    """Return the fields that the llama-server arguments ``given`` set in the embedded server.

    Raises ``WrongUse`` for an unsupported argument, a missing value, and a value of the wrong type.
    """
    params: dict[str, Any] = {}
    waiting = list(given)
    while waiting:
        text = waiting.pop(0)
        name, equals, value = text.partition("=")
        argument = EMBEDDED_ARGUMENTS.get(name)
        if argument is None:
            near = nearest(name, EMBEDDED_ARGUMENTS)
            raise WrongUse(
                f"the embedded llama.cpp does not support {name}" + (f"; did you mean {near!r}?" if near else ""),
                remedy="use a llama-server with --runtime; `strata-pack runtime list` shows the available ones",
            )
        if argument.read is None:
            if equals:
                raise WrongUse(f"{name} takes no value", remedy=f"write {name} alone")
            read = argument.value
        else:
            if not equals:
                if not waiting:
                    raise WrongUse(f"{name} needs a value")
                value = waiting.pop(0)
            try:
                read = argument.read(value)
            except ValueError as error:
                raise WrongUse(f"{name} {value}: must be {error}") from None
        params[argument.field] = read
    return params
