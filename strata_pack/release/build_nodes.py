"""Nodes that write files: fetch, convert, importance matrix, recipe, pack."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

from strata_pack.chat.render.template import normalize_source
from strata_pack.errors import BadInput
from strata_pack.files import disk_errors, sha256_file, sha256_text
from strata_pack.pack.build import build_packs
from strata_pack.pack.build_dir import partial_folder
from strata_pack.pack.layout import gguf_template
from strata_pack.pack.manifest import read_manifest
from strata_pack.pack.model_source import Model, folder_template
from strata_pack.pack.paths import MANIFEST, member
from strata_pack.pack.projector import open_projector
from strata_pack.pack.request import BuildRequest
from strata_pack.pack.template.choice import AUTO, KEEP, choose_template
from strata_pack.progress import Progress, Silent
from strata_pack.release.ranges import is_proved, prove_ranges, take_ranges
from strata_pack.release.results import FileRecord, Results, write_whole
from strata_pack.release.source import bring_source, brought_model, fetch_data, first_weights
from strata_pack.release.task import NodeOutput, Task
from strata_pack.weights.convert.convert import SafetensorsSource
from strata_pack.weights.gguf.edit import RESERVE
from strata_pack.weights.imatrix.collect import ImatrixRequest, make_imatrix
from strata_pack.weights.local_weights import open_weights
from strata_pack.weights.quantize.recipes import Recipe, make_recipe, read_recipe
from strata_pack.weights.quantize.run import plan_quantization, run_plan
from strata_pack.weights.source import HubSource, parse_source


def fetch(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Fetch the source and hash it. An unusable template is refused before the weights are downloaded."""
    state = results.out / ".release"

    def early(folder: Path) -> None:
        text, option = folder_template(folder), task.paths["template"]
        if text is not None and option in (AUTO, KEEP):
            choose_template(option, text, None, allow_triggers=True)

    ranges = task.paths.get("split")
    moved = None if ranges is None else take_ranges(Path(ranges), task.source, state)
    model = bring_source(task.source, task.settings.get("commit"), state, progress, early)
    if ranges is not None and moved is not None:
        prove_ranges(Path(ranges), model, moved)
    files = [_hashed(results, file.path, file.sha256, progress) for file in model.files]
    return NodeOutput(files, fetch_data(model, _template_hash(model)))


def _hashed(results: Results, path: Path, sha256: str | None, progress: Progress) -> FileRecord:
    if sha256 is None:
        size = path.stat().st_size
        watched = progress.task(f"hash {path.name}", size)
        sha256 = sha256_file(path)
        watched.advance(size)
        watched.done()
    return results.record(path, sha256)


def _template_hash(model: Model) -> str | None:
    """Return the hash of the source's own template; `release status` compares it with the Hub's."""
    text = None if model.folder is None else folder_template(model.folder)
    if text is None and model.weights.format == "gguf":
        text = gguf_template(first_weights(model))
    return None if text is None else sha256_text(normalize_source(text))


def convert(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Convert the checkpoint to a GGUF that llama.cpp runs, for importance matrices and measurements."""
    model = brought_model(task.source, results.out, task.result("fetch"))
    folder = results.out / ".release" / "convert"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    part = "model" if task.settings["mtp"] else "trunk"
    with SafetensorsSource.open(first_weights(model), part=part) as source:
        target = folder / f"{model.name}-{source.outtype.upper()}.gguf"
        # The quantizer copies types too, and its journal keeps every finished tensor of a run that is killed.
        made = run_plan(plan_quantization(source, "COPY"), target, progress=progress, threads=task.threads)
    return NodeOutput([results.record(file.path, file.sha256) for file in made.files])


def reference(task: Task, results: Results) -> Path:
    """Return the source as a GGUF: the converted file, or the source itself if it is a GGUF."""
    if "convert" in task.inputs:
        return results.paths(task.result("convert"))[0]
    return first_weights(brought_model(task.source, results.out, task.result("fetch")))


def imatrix(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Collect the importance matrix; a killed collection resumes after its last saved chunk."""
    target = results.out / ".release" / "imatrix.gguf"
    request = ImatrixRequest(
        model=reference(task, results),
        out=target,
        texts=tuple(map(Path, task.paths["text"])),
        context=task.settings["context"],
        chunks=task.settings["chunks"],
        threads=task.threads,
    )
    found = make_imatrix(request, progress)
    return NodeOutput([results.record(target)], {"chunks": found.chunks, "weights": len(found.collected.sums)})


def _imatrix_of(task: Task, results: Results) -> Path | None:
    if "imatrix" in task.inputs:
        return results.paths(task.result("imatrix"))[0]
    given = task.paths.get("imatrix")
    return None if given is None else Path(given)


def recipe(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Search the best mix for a size and keep it as a recipe file."""
    from strata_pack.compare.fit.planner import FileShape
    from strata_pack.compare.fit.search import fit_file

    model = brought_model(task.source, results.out, task.result("fetch"))
    found = fit_file(
        str(first_weights(model)),
        task.settings["fit"],
        _imatrix_of(task, results),
        mtp=task.settings["mtp"],
        shape=FileShape(
            reserve=RESERVE,
            projector=_projector_bytes(task, model),
            allow_requantize=task.settings["allow_requantize"],
        ),
        threads=task.threads,
        progress=progress,
    )
    target = results.out / ".release" / "recipes" / f"{task.pack}.toml"
    write_whole(target, found.text.encode())
    return NodeOutput([results.record(target)], {"predicted_kl": found.predicted_kl, "size": found.size})


def _projector_bytes(task: Task, model: Model) -> int:
    wanted = BuildRequest(source="", out=Path(), recipe=make_recipe(), projector=task.settings["projector"])
    with (
        open_weights(model.root, model.weights, mtp=task.settings["mtp"]) as tensors,
        open_projector(wanted, model, tensors, Silent()) as projector,
    ):
        return 0 if projector is None else projector.nbytes


def _recipe_of(task: Task, results: Results) -> Recipe:
    made = f"recipe:{task.pack}"
    if made in task.inputs:
        return read_recipe(results.paths(task.result(made))[0])
    named = task.paths.get("recipe")
    return make_recipe(task.settings.get("quant"), None if named is None else Path(named))


def pack(task: Task, results: Results, progress: Progress) -> NodeOutput:
    """Build the pack from the fetched source, replacing what an earlier run of this release left there."""
    out = results.out / task.pack
    if out.is_dir() and any(out.iterdir()) and results.begun(task.node) is None:
        raise BadInput(
            "holds something that this release has not made", where=out, remedy="move it away, or rename the pack"
        )
    if _is_to_build(task, results):
        results.begin(task.node, task.key, _manifest_hash(out))
        _build(task, results, progress)
    return _made(out, results)


def _manifest_hash(out: Path) -> str | None:
    place = out / MANIFEST
    return sha256_file(place) if place.is_file() else None


def _is_to_build(task: Task, results: Results) -> bool:
    """Return whether the pack has to be built: not if a build ended but its worker was killed before it reported."""
    out, begun = results.out / task.pack, results.begun(task.node)
    if partial_folder(out).is_dir():
        # A repeated build finds what was installed before and cleans up.
        return True
    if begun is None:
        return not out.is_dir() or not any(out.iterdir())
    there = _manifest_hash(out)
    return begun["key"] != task.key or there == begun["replaces"] or not _is_whole(out, there)


def _is_whole(out: Path, manifest: str | None) -> bool:
    """Return whether the pack in ``out`` matches its manifest."""
    if manifest is None:
        return False
    entries = read_manifest(out / MANIFEST)["files"]
    paths = [(member(out, entry["path"]), entry["sha256"]) for entry in entries]
    return all(path.is_file() and sha256_file(path) == sha256 for path, sha256 in paths)


def build_request(task: Task, results: Results, source: str) -> BuildRequest:
    """Return the build request of a pack; ``source`` is text."""
    golden = task.paths["golden"]
    return BuildRequest(
        source=source,
        out=results.out / task.pack,
        recipe=_recipe_of(task, results),
        template=task.paths["template"],
        golden=None if golden is None else Path(golden),
        allow_triggers=task.settings["allow_triggers"],
        allow_requantize=task.settings["allow_requantize"],
        name=task.pack,
        imatrix=_imatrix_of(task, results),
        projector=task.settings["projector"],
        mtp=task.settings["mtp"],
        force=True,
        threads=task.threads,
    )


def _build(task: Task, results: Results, progress: Progress) -> None:
    ready = task.paths.get("ready")
    if ready is not None and "split" in task.paths and not is_proved(Path(task.paths["split"])):
        progress.note("the source was not fetched in ranges, so the pack is quantized again")
        ready = None
    request = build_request(task, results, _source_text(task))
    build_packs(
        [request],
        progress,
        brought=brought_model(task.source, results.out, task.result("fetch")),
        ready=None if ready is None else {request.out: Path(ready)},
    )


def build_together(tasks: Sequence[Task], progress: Progress) -> None:
    """Build the packs of several tasks in one pass over their source, and store the results.

    Packs that exist are left out. Raises as a build does; no pack is in place then.
    """
    results = Results(Path(tasks[0].out))
    with ExitStack() as stack:
        for task in sorted(tasks, key=lambda task: task.node):
            stack.enter_context(results.node_lock(task.node))
        todo = [task for task in tasks if results.find(task.node, task.key) is None and _is_to_build(task, results)]
        if len(todo) < 2:
            return
        started = monotonic()
        for task in todo:
            results.begin(task.node, task.key, _manifest_hash(results.out / task.pack))
        build_packs(
            [build_request(task, results, _source_text(task)) for task in todo],
            progress,
            brought=brought_model(tasks[0].source, results.out, tasks[0].result("fetch")),
        )
        seconds = (monotonic() - started) / len(todo)
        for task in todo:
            made = _made(results.out / task.pack, results)
            results.store(task.node, task.key, made.files, made.data, seconds)


def _made(out: Path, results: Results) -> NodeOutput:
    manifest = read_manifest(out / MANIFEST)
    files = [results.record(member(out, entry["path"]), entry["sha256"]) for entry in manifest["files"]]
    files.append(results.record(out / MANIFEST))
    data = {
        "name": manifest["model"]["name"],
        "size": sum(entry["size"] for entry in manifest["files"]),
        "bits_per_weight": manifest["model"]["bits_per_weight"],
        "preset": manifest["recipe"]["preset"],
        "template": manifest["template"]["id"] or manifest["template"]["sha256"][:12],
    }
    return NodeOutput(files, data)


def _source_text(task: Task) -> str:
    """Return the source argument of the pack's build, with its commit."""
    source = parse_source(task.source)
    commit = task.result("fetch")["data"]["commit"]
    return str(replace(source, revision=commit)) if isinstance(source, HubSource) else task.source
