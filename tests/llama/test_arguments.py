"""What of llama-server's arguments the embedded server takes, on the real parameters of the library."""

from __future__ import annotations

from typing import Any

import pytest
import xllamacpp

from strata_pack.errors import WrongUse
from strata_pack.llama.arguments import EMBEDDED_ARGUMENTS, embedded_params
from strata_pack.llama.child import library_value, set_param

VALUES = ("3", "on", "f16", "layer", "auto", "mmap", "distribute", "mean", "linear", "0.5", "draft-mtp")


def valid(name: str) -> list[str]:
    """Return the argument ``name`` with a value that it takes."""
    read = EMBEDDED_ARGUMENTS[name].read
    if read is None:
        return [name]
    for value in VALUES:
        try:
            read(value)
        except ValueError:
            continue
        return [name, value]
    raise AssertionError(f"{name} takes none of {VALUES}")


@pytest.mark.parametrize("name", sorted(EMBEDDED_ARGUMENTS))
def test_the_library_has_the_field_of_every_argument(name: str) -> None:
    params = xllamacpp.CommonParams()
    for field, value in embedded_params(valid(name)).items():
        value = library_value(field, value)
        set_param(params, field, value)
        *path, last = field.split(".")
        target: Any = params
        for step in path:
            target = getattr(target, step)
        assert getattr(target, last) == value


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ([], {}),
        (["-ngl", "9"], {"n_gpu_layers": 9}),
        (["--n-gpu-layers=all"], {"n_gpu_layers": -2}),
        (["--cache-type-k", "q8_0", "-ctv", "Q4_0"], {"cache_type_k": 8, "cache_type_v": 2}),
        (["--lazy-mode", "on", "--load-mode", "mmap+mlock"], {"lazy_mode": 2, "load_mode": 3}),
        (["--no-kv-offload", "-b", "64"], {"no_kv_offload": True, "n_batch": 64}),
        (["-t", "2", "-t", "4"], {"cpuparams.n_threads": 4}),
        (["--no-warmup"], {"warmup": False}),
    ],
)
def test_arguments_become_fields(given: list[str], params: dict[str, Any]) -> None:
    assert embedded_params(given) == params


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--slots"], "does not support --slots"),
        (["--cache-type"], "did you mean '--cache-type-"),
        (["-ngl"], "-ngl needs a value"),
        (["-ngl", "many"], "-ngl many: must be a whole number"),
        (["-fa", "maybe"], "must be one of on, off, auto"),
        (["--rope-freq-base", "x"], "must be a number"),
        (["--swa-full=1"], "takes no value"),
        (["9"], "does not support 9"),
    ],
)
def test_what_the_embedded_server_cannot_be_given_is_one_sentence(given: list[str], words: str) -> None:
    with pytest.raises(WrongUse, match=words):
        embedded_params(given)
