"""Split one huge model over many workers: each fetches one tensor's bytes and writes it into every pack's file.

    .release/split/
      plan.json       the tensors in groups, the byte ranges of each, the packs that are written
      source/NAME/    the checkpoint's files, their headers in place, the rest filled in range by range
      out/PACK.gguf   the packs' models, header first, each tensor at its final place

Files have their full size from the start, so workers share only the folder, and a killed worker loses only the
tensor it was writing. A checkpoint fetched in ranges is checked by its hashes when complete; only then packs are made.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import disk_errors, dump_json, read_json_object, sha256_text, write_atomic
from strata_pack.pack.build_plan import Templates, plan_models, template_keys
from strata_pack.pack.model_source import Model, hub_folder
from strata_pack.progress import Progress, Silent
from strata_pack.release.build_nodes import build_request
from strata_pack.release.results import Results
from strata_pack.release.source import first_weights
from strata_pack.release.task import Task
from strata_pack.weights.convert.convert import SafetensorsSource
from strata_pack.weights.convert.safetensors import StoredTensor, parse_header
from strata_pack.weights.hub.connection import connect
from strata_pack.weights.hub.fetch import fetch_repo
from strata_pack.weights.hub.outcome import FetchPlan
from strata_pack.weights.hub.ranges import RangeFetcher
from strata_pack.weights.hub.select import Weights
from strata_pack.weights.preflight import Stage, check_disk
from strata_pack.weights.quantize.imatrix import read_imatrix
from strata_pack.weights.quantize.plan import QuantPlan
from strata_pack.weights.quantize.run import output_headers, output_sizes
from strata_pack.weights.source import HubSource, parse_source

SMALL = 64 << 10
"""Tensors up to this many bytes are fetched with the headers: a request of their own would cost more."""

Range = tuple[str, int, int]
"""(file of the repository, first byte, byte after the last)."""


def split_folder(out: Path) -> Path:
    """Return the folder of a split run."""
    return out / ".release" / "split"


@dataclass(frozen=True)
class Group:
    """Tensors of the model made from the same stored bytes, and those bytes; without tensors only bytes to fetch."""

    tensors: tuple[str, ...]
    ranges: tuple[Range, ...]


def prepare(source: str, commit: str | None, model: Model | None, packs: Sequence[Task], progress: Progress) -> str:
    """Create the files of a split run and return its plan's id; an existing equal plan is kept.

    ``model`` is the source if it is local; otherwise side files and the
    weights' headers are fetched now. ``packs`` are the tasks of the packs to write. Raises as a build does.
    """
    out = Path(packs[0].out)
    root = split_folder(out)
    wanted = [(task.node, task.settings, _digests(task)) for task in packs]
    key = sha256_text(json.dumps([source, commit, None if model is None else "here", wanted], sort_keys=True))
    place = root / "plan.json"
    with suppress(BadInput):
        known = read_plan(out)
        if known.get("key") == key:
            return str(known["id"])
    shutil.rmtree(root, ignore_errors=True)
    with disk_errors(root):
        (root / "out").mkdir(parents=True)
    have: list[Range] = []
    if model is None:
        model, have = _heads(source, commit, root, progress)
    with SafetensorsSource.open(first_weights(model), part=part_of(packs[0])) as tensors:
        for task in packs:
            _lay_out(task, model, tensors, root)
        groups = _groups(tensors, model, have)
    identity = secrets.token_hex(8)
    plan = {
        "key": key,
        "id": identity,
        "source": source,
        "commit": commit,
        "fetch": bool(have),
        "model": _model_dict(model),
        "packs": [_task_dict(task) for task in packs],
        "groups": [[list(group.tensors), list(group.ranges)] for group in groups],
    }
    write_atomic(place, dump_json(plan))
    return identity


def read_plan(out: Path) -> dict[str, Any]:
    """Return the plan of a split run."""
    return read_json_object(split_folder(out) / "plan.json", 1 << 30)


def part_of(task: Task) -> str:
    """Return the part of the checkpoint for a pack: with or without multi-token prediction layers."""
    return "model" if task.settings["mtp"] else "trunk"


def _digests(task: Task) -> dict[str, str]:
    return {name: found if isinstance(found, str) else found["digest"] for name, found in task.inputs.items()}


def _task_dict(task: Task) -> dict[str, Any]:
    return {**vars(task), "settings": dict(task.settings), "paths": dict(task.paths), "inputs": dict(task.inputs)}


def _model_dict(model: Model) -> dict[str, Any]:
    weights = model.weights
    return {
        "kind": model.kind,
        "name": model.name,
        "root": str(model.root),
        "weights": list(weights.files),
        "index": weights.index,
    }


def model_from(value: Mapping[str, Any]) -> Model:
    """Return the model that ``_model_dict`` wrote to a plan."""
    root = Path(value["root"])
    weights = Weights("safetensors", tuple(value["weights"]), value["index"])
    return Model(value["kind"], value["name"], weights, root, root, ())


def _lay_out(task: Task, model: Model, tensors: SafetensorsSource, root: Path) -> None:
    """Create one pack's model file with its full size and its header."""
    plan, keys = planned(task, model, tensors)
    if plan.shards != 1:
        raise WrongUse("a model in several files cannot be split over workers", where=task.node)
    (header,), (size,) = output_headers(plan, keys), output_sizes(plan, keys)
    path = root / "out" / f"{task.pack}.gguf"
    check_disk([Stage("quantized model", path, size)])
    with disk_errors(path), path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
        file.write(header)
        file.flush()
        os.fsync(file.fileno())


def planned(task: Task, model: Model, tensors: SafetensorsSource) -> tuple[QuantPlan, dict[str, Any]]:
    """Return the quantization plan of a pack, and the metadata keys of its template."""
    request = build_request(task, Results(Path(task.out)), str(model.root))
    imatrix = None if request.imatrix is None else read_imatrix(request.imatrix)
    (plan,) = plan_models([request], tensors, [imatrix])
    return plan, dict(template_keys(Templates.of(model, tensors.metadata, Silent()).choose(request)))


def _heads(source: str, commit: str | None, root: Path, progress: Progress) -> tuple[Model, list[Range]]:
    """Fetch side files, headers and small tensors; return the model with sparse files, and the byte ranges present."""
    named = parse_source(source)
    assert isinstance(named, HubSource)
    target = hub_folder(named, root.parent / "source")
    folder = root / "source" / target.name
    chosen: list[FetchPlan] = []

    class Enough(Exception):
        pass

    def stop(_folder: Path) -> None:
        raise Enough

    with suppress(Enough):
        fetch_repo(
            *(named.repo_id, commit, target),
            path=named.path,
            progress=progress,
            announce=chosen.append,
            before_weights=stop,
        )
    (plan,) = chosen
    weights = plan.selection.weights
    have: list[Range] = []
    with RangeFetcher(connect(), plan.tree) as fetcher:
        for file in plan.selection.files:
            path = folder / file.path
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if file.path not in weights.files:
                    shutil.copyfile(target / file.path, path)
                    continue
                with path.open("w+b") as opened:
                    os.posix_fallocate(opened.fileno(), 0, file.size)
                    have += _head(fetcher, file.path, file.size, path, opened.fileno())
                    os.fsync(opened.fileno())
    return Model("hub", folder.name, weights, folder, folder, (), named.repo_id, commit), have


def _head(fetcher: RangeFetcher, name: str, size: int, path: Path, descriptor: int) -> Iterator[Range]:
    """Fetch a file's header and small tensors; yield the ranges that are present."""
    fetcher.fetch(name, 0, min(8, size), descriptor)
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    end = min(8 + length, size)
    fetcher.fetch(name, 8, end, descriptor)
    yield name, 0, end
    with path.open("rb") as file:
        stored = parse_header(file.read, size, path)
    small = [(one.start, one.start + one.nbytes) for one in stored if 0 < one.nbytes <= SMALL]
    for start, stop in joined(small):
        fetcher.fetch(name, start, stop, descriptor)
        yield name, start, stop


def joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order, with touching or overlapping ones merged."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def without(ranges: Sequence[tuple[int, int]], taken: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of ``ranges`` outside ``taken``."""
    left: list[tuple[int, int]] = []
    for start, stop in joined(ranges):
        for first, last in joined(taken):
            if last <= start or first >= stop:
                continue
            if first > start:
                left.append((start, first))
            start = max(start, last)
        if start < stop:
            left.append((start, stop))
    return left


def _groups(tensors: SafetensorsSource, model: Model, have: Sequence[Range]) -> list[Group]:
    """Return the groups of tensors for workers (no stored byte is in two groups), and the other bytes to fetch.

    ``have`` are the ranges fetched already; empty for a complete local checkpoint.
    """
    sharing: dict[str, int] = {}
    members: dict[int, list[str]] = {}
    stored: dict[str, StoredTensor] = {}
    for number, tensor in enumerate(tensors.tensors):
        made_of = tensors.stored(tensor.name)
        stored |= {one.name: one for one in made_of}
        mine = number
        members[mine] = [tensor.name]
        for other in {sharing[one.name] for one in made_of if one.name in sharing}:
            members[mine] = members.pop(other) + members[mine]
            sharing = {name: mine if group == other else group for name, group in sharing.items()}
        sharing |= {one.name: mine for one in made_of}
    used: dict[int, list[StoredTensor]] = {}
    for name, group in sharing.items():
        used.setdefault(group, []).append(stored[name])
    if not have:
        return [Group(tuple(names), ()) for names in members.values()]
    taken = {name: [(a, b) for file, a, b in have if file == name] for name in model.weights.files}
    groups = []
    for group, names in members.items():
        ranges: list[Range] = []
        for file in model.weights.files:
            wanted = [
                (one.start, one.start + one.nbytes)
                for one in used.get(group, [])
                if one.file == model.root / file and one.nbytes
            ]
            new = without(wanted, taken[file])
            taken[file] = joined([*taken[file], *new])
            ranges += [(file, start, stop) for start, stop in new]
        groups.append(Group(tuple(names), tuple(ranges)))
    return [*groups, *_rest(model, taken)]


def _rest(model: Model, taken: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[Group]:
    """Yield the ranges that no tensor needs; they are fetched too, because only the whole file has a hash."""
    for file in model.weights.files:
        size = (model.root / file).stat().st_size
        for start, stop in without([(0, size)], taken[file]):
            yield Group((), ((file, start, stop),))
