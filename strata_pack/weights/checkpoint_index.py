"""Finds the safetensors files of a checkpoint: the files named in its index, or a single file.

The index (``model.safetensors.index.json``, or another stem) maps every tensor to a file, which may be in a subfolder:
shards, and separate files for heads that were added later. Without an index, one file is the whole model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.weights.hub.tree import safe_path

INDEX = "model.safetensors.index.json"
INDEX_SUFFIX = ".safetensors.index.json"
INDEX_LIMIT = 256 << 20
"""Maximum bytes of an index; that of a large mixture of experts has about 10 MB."""
_SHOWN = 80
"""Characters of a name that a message shows: an index may hold any text."""
SINGLE = "model.safetensors"
_ADAPTER = "adapter_model.safetensors"
_SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
_PART = re.compile(r"model-(?!\d{5}-of-)[^.]+\.safetensors")


class NoModel(BadInput):
    """There are safetensors files, but none of them is a model."""


def find_index(names: Iterable[str], where: str) -> str | None:
    """Return the name of the index among ``names`` (of one folder); ``BadInput`` for several without the usual name."""
    found = sorted(name for name in names if name.endswith(INDEX_SUFFIX))
    if INDEX in found:
        return INDEX
    if len(found) > 1:
        problem = f"has {len(found)} indexes ({', '.join(found[:4])}) and no {INDEX}"
        raise BadInput(problem, where=where, remedy="keep the one of the model you want")
    return found[0] if found else None


def read_index(data: bytes, where: str | Path) -> dict[str, str]:
    """Return a dict from tensor to file, in the index's order; ``BadInput`` if it is malformed or has a path
    outside."""
    try:
        weight_map = json.loads(data)["weight_map"]
        for name, file in weight_map.items():
            if not isinstance(name, str) or not isinstance(file, str):
                raise TypeError(f"{str(name)[:_SHOWN]!r} has no file")
            if not file.endswith(".safetensors"):
                raise ValueError(f"{file[:_SHOWN]!r} is not a safetensors file")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadInput(f"is malformed ({error})", where=where, remedy="fetch it again") from error
    if not weight_map:
        raise BadInput("lists no tensor", where=where)
    for file in set(weight_map.values()):
        safe_path(file, str(where))
    return dict(weight_map)


def unindexed_files(names: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the files among ``names`` that form a model without an index; empty if there are no safetensors.

    That is ``model.safetensors`` with files such as ``model-mtp.safetensors``, or the only file of any other name.
    ``NoModel`` for shards without an index, an adapter, and several files without the usual name.
    """
    found = sorted(name for name in names if name.endswith(".safetensors"))
    models = [name for name in found if name != _ADAPTER]
    if found and not models:
        raise NoModel(
            f"has a LoRA adapter ({_ADAPTER}) and no model", where=where, remedy="name the model it was made for"
        )
    if SINGLE in models:
        # A dot marks another precision of the same weights, a hyphen a separate part.
        return tuple(name for name in models if name == SINGLE or _PART.fullmatch(name))
    if len(models) <= 1 and not any(_SHARD.search(name) for name in models):
        return tuple(models)
    problem = f"has {len(models)} safetensors files ({', '.join(models[:4])}) but no {INDEX}"
    raise NoModel(problem, where=where, remedy="it is incomplete: fetch the index too")


def checkpoint_files(
    names: Iterable[str], read: Callable[[str], bytes], where: str
) -> tuple[str | None, tuple[str, ...]]:
    """Return (index, weight files) of the checkpoint among ``names``, which are relative to its folder.

    ``read`` returns the bytes of the index. Both are empty if there are no safetensors. ``BadInput`` if a file of the
    index is missing.
    """
    present = set(names)
    here = [name for name in present if "/" not in name]
    index = find_index(here, where)
    if index is None:
        return None, unindexed_files(here, where)
    wanted = tuple(sorted(set(read_index(read(index), f"{where}/{index}").values())))
    missing = [name for name in wanted if name not in present]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(
            f"the shard {missing[0]}{more}, which {index} names, is missing",
            where=where,
            remedy="the checkpoint is incomplete",
        )
    return index, wanted
