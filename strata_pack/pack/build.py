"""From a source to a whole pack: fetch, choose and prove the template, quantize, write, put in place.

What is cheap and can fail comes first: the template and its golden cases are checked before a weight is read (and for
a Hub source before the weights travel). Everything happens in ``<pack>.partial`` (see ``build_dir``); the pack appears
by one rename, and a build that was stopped at any moment goes on where it was when it is started again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from strata_pack import __version__
from strata_pack.chat.engines.engines import available_engines
from strata_pack.chat.golden.check import GoldenReport, check_golden
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import (
    disk_errors,
    dump_json,
    parse_json_object,
    read_bytes,
    read_json_object,
    sha256_bytes,
    write_atomic,
)
from strata_pack.llama.ggml import QUANTIZABLE
from strata_pack.llama.quantizer import Quantizer
from strata_pack.outputs import check_outputs
from strata_pack.pack.build_dir import BuildDir, check_target, open_build_dir, partial_folder
from strata_pack.pack.finished import finished_pack
from strata_pack.pack.forecast import Forecast, forecast
from strata_pack.pack.loadable import config_problems, header_problems, template_problems
from strata_pack.pack.manifest import (
    FORMAT,
    VERSION,
    FileEntry,
    Manifest,
    ModelEntry,
    QuantizerEntry,
    write_manifest,
)
from strata_pack.pack.model_source import (
    CONFIG,
    TOKENIZER_FILES,
    Model,
    SourceHashes,
    bring,
    file_stem,
    folder_template,
    source_template,
)
from strata_pack.pack.paths import GOLDEN, MANIFEST, MODEL_DIR, REPORTS_DIR, TEMPLATE, TEMPLATE_KEY, TOKENIZER_DIR
from strata_pack.pack.projector import PlannedProjector, open_projector, refuse_other_kinds, write_projector
from strata_pack.pack.request import (
    BuildRequest,
    parts_text,
    read_paths,
    recipe_entry,
    recipe_options,
    request_entry,
)
from strata_pack.pack.template.choice import AUTO, KEEP, ChosenTemplate, choose_template
from strata_pack.pack.template.install import GoldenFailed, golden_entry
from strata_pack.pack.template.plan import golden_bytes
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.edit import PAD_KEY, RESERVE, pad_value
from strata_pack.weights.gguf.file import MetaValue, TensorInfo
from strata_pack.weights.input_files import InputFiles
from strata_pack.weights.local_weights import open_weights
from strata_pack.weights.partial_file import partial_path
from strata_pack.weights.preflight import Stage, check_disk
from strata_pack.weights.quantize.imatrix import Imatrix, read_imatrix
from strata_pack.weights.quantize.run import (
    QuantPlan,
    output_paths,
    output_sizes,
    plan_quantization,
    quantized_types,
    run_plan,
)
from strata_pack.weights.source import HubSource, Source, parse_source
from strata_pack.weights.tensor_source import TensorSource
from strata_pack.weights.tokenizer.files import tokenizer_files

SIDE_FILE_LIMIT = 256 << 20
"""Bytes of the largest tokenizer file that is copied into a pack."""

MANIFEST_ROOM = 1 << 20
"""Bytes for the manifest, the reports and what file systems round up to: a manifest lists every tensor."""


@dataclass(frozen=True)
class BuildResult:
    """The finished pack. ``seconds`` by stage; ``golden`` is the report of the golden check, if there were cases.

    ``kept`` names the files of the pack it replaced that no manifest lists: they lie in the new one.
    """

    path: Path
    manifest: Manifest
    golden: GoldenReport | None
    seconds: Mapping[str, float]
    resumed: bool
    kept: tuple[str, ...] = ()


class _Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + monotonic() - started


def build_pack(request: BuildRequest, progress: Progress | None = None) -> BuildResult:
    """Build the pack that ``request`` describes and return it.

    Raises ``WrongUse`` (unknown template, a folder in the way), ``BadInput`` (what the source holds), ``CheckFailed``
    (golden cases that differ) or ``EnvironmentFailure`` (network, disk). Nothing of a failed build is at ``out``.
    """
    watcher = progress or Silent()
    clock = _Clock()
    out = request.out.absolute()
    source = parse_source(request.source)
    check_outputs((out, partial_folder(out)), read_paths(request, source))
    inputs = InputFiles.of([] if request.imatrix is None else [request.imatrix])
    imatrix = None if request.imatrix is None else read_imatrix(request.imatrix)
    key = _key(request, source, imatrix)
    with open_build_dir(out) as place:
        finished = place.installed(key)
        if finished is not None:
            place.remove()
            watcher.note(f"{out}: the build that was stopped had finished")
            return BuildResult(out, finished, None, {}, resumed=True)
        if not request.force:
            finished = finished_pack(request, source, imatrix, out, place.source, watcher)
            if finished is not None:
                watcher.note(f"{out}: is this very pack already; nothing to do")
                return BuildResult(out, finished, None, {}, resumed=True)
        kept = check_target(out, force=request.force)
        with clock.stage("fetch"):
            model = bring(source, place.source, watcher, lambda folder: _early(request, folder))
        inputs += InputFiles.of(file.path for file in model.files)
        with (
            open_weights(model.root, model.weights, mtp=request.mtp) as tensors,
            open_projector(request, model, tensors, watcher) as projector,
        ):
            refuse_other_kinds(tensors.metadata, request.source)
            with clock.stage("template"):
                chosen = _chosen(request, source_template(model, tensors.metadata))
                for note in chosen.notes:
                    watcher.note(note)
                report = check_template(chosen, watcher)
            plan = _plan(request, tensors, imatrix)
            _refuse_unloadable(model, plan)
            for problem in template_problems(plan.source.metadata, chosen.text):
                watcher.note(f"{model.name}: {problem}")
            name = file_stem(request.name) if request.name else f"{model.name}-{request.recipe.label}"
            resumed = place.begin(key, {"template": chosen.entry["sha256"], "model": tensors.fingerprint})
            side_files = _side_files(model, plan.source.metadata, chosen)
            check_disk(_stages(place, plan, name, chosen, side_files, projector))
            with SourceHashes(model) as hashes:
                with clock.stage("quantize"):
                    quantized = _quantize(request, place, plan, chosen, name, watcher)
                    seeing = None
                    if projector is not None:
                        seeing = write_projector(projector, request, model, place.pack, watcher)
                with clock.stage("hash the source"):
                    source_entry = hashes.entry()
            inputs.check_unchanged()
        with clock.stage("write"):
            written = _write_side_files(place.pack, side_files, report)
            manifest = Manifest(
                format=FORMAT,
                version=VERSION,
                tool=__version__,
                source=source_entry,
                model=_model_entry(plan, name, quantized),
                request=request_entry(request, chosen.entry["sha256"]),
                recipe=recipe_entry(request, imatrix),
                quantizer=_quantizer_entry(request, plan),
                template=chosen.entry,
                golden=None if report is None or chosen.suite is None else golden_entry(chosen.suite, report),
                files=sorted([*quantized.entries, *written], key=lambda entry: entry["path"]),
            )
            if seeing is not None:
                manifest["projector"] = seeing[1]
                manifest["files"] = sorted([*manifest["files"], seeing[0]], key=lambda entry: entry["path"])
            write_manifest(place.pack / MANIFEST, manifest)
        with clock.stage("install"):
            place.install(place.pack if request.layout == "pack" else place.pack / MODEL_DIR, kept)
    for unlisted in kept:
        watcher.note(f"{out / unlisted}: kept; the manifest does not list it")
    return BuildResult(out, manifest, report, clock.seconds, resumed, tuple(kept))


def _refuse_unloadable(model: Model, plan: QuantPlan) -> None:
    """Raise ``BadInput`` for a model that no loader would take, before any work is done for it."""
    metadata = dict(plan.source.metadata)
    if not plan.recipe.base.copy:
        metadata["general.file_type"] = MetaValue.uint32(plan.recipe.base.file_type)
    problems = header_problems(metadata, [TensorInfo(t.name, t.source.shape, t.type, 0, 0) for t in plan.tensors])
    config = model.side_file("config.json")
    if config is not None:
        problems += config_problems(metadata, read_json_object(config), config.name)
    if problems:
        shown = "; ".join(problems[:3]) + (f" (and {len(problems) - 3} more)" if len(problems) > 3 else "")
        raise BadInput(f"would not load: {shown}", where=plan.source.label, remedy="fetch or convert the model again")


def _template_keys(chosen: ChosenTemplate) -> dict[str, MetaValue | None]:
    return {TEMPLATE_KEY: MetaValue.string(chosen.text), PAD_KEY: pad_value(RESERVE)}


def _stages(
    place: BuildDir,
    plan: QuantPlan,
    name: str,
    chosen: ChosenTemplate,
    side_files: Mapping[str, bytes],
    projector: PlannedProjector | None,
) -> list[Stage]:
    """Return what is still to be written: every byte of it is known, and what a stopped build has left counts."""
    model = sum(output_sizes(plan, _template_keys(chosen)))
    paths = output_paths(plan, place.pack / MODEL_DIR / f"{name}.gguf")
    there = sum(path.stat().st_size for final in paths for path in (final, partial_path(final)) if path.is_file())
    return [
        Stage("quantized model", place.root, max(0, model - there)),
        Stage("projector", place.root, 0 if projector is None else projector.nbytes),
        Stage("tokenizer, golden cases, manifest", place.root, sum(map(len, side_files.values())) + MANIFEST_ROOM),
    ]


def _plan(request: BuildRequest, tensors: TensorSource, imatrix: Imatrix | None) -> QuantPlan:
    return plan_quantization(
        WithoutKeys(tensors, _replaced_keys(tensors.metadata)),
        request.recipe,
        imatrix,
        allow_requantize=request.allow_requantize,
        keep_split=request.keep_split,
    )


@contextmanager
def plan_build(request: BuildRequest) -> Iterator[QuantPlan]:
    """Yield the plan of a build's model without writing anything; raises as ``plan_pack``."""
    with plan_pack(request) as (plan, _):
        yield plan


@contextmanager
def plan_pack(request: BuildRequest) -> Iterator[tuple[QuantPlan, Forecast]]:
    """Yield the plan of a build and what the pack will need, without writing anything.

    Raises what ``build_pack`` would, and ``WrongUse`` for a Hub source: its weights would have to travel first.
    """
    source = parse_source(request.source)
    if isinstance(source, HubSource):
        remedy = f"run `strata-pack fetch {request.source} --out DIR` and plan from DIR"
        raise WrongUse("a plan needs the weights on this disk", where=request.source, remedy=remedy)
    out = request.out.absolute()
    check_outputs((out, partial_folder(out)), read_paths(request, source))
    check_target(out, force=request.force)
    imatrix = None if request.imatrix is None else read_imatrix(request.imatrix)
    model = bring(source, request.out, Silent(), lambda _folder: None)
    with (
        open_weights(model.root, model.weights, mtp=request.mtp) as tensors,
        open_projector(request, model, tensors, Silent()) as projector,
    ):
        refuse_other_kinds(tensors.metadata, request.source)
        _chosen(request, source_template(model, tensors.metadata))
        plan = _plan(request, tensors, imatrix)
        stored = sum((model.root / name).stat().st_size for name in model.weights.files)
        yield plan, forecast(plan, 0 if projector is None else projector.nbytes, stored)


def _key(request: BuildRequest, source: Source, imatrix: Imatrix | None) -> dict[str, Any]:
    """What decides about the pack and is known before anything is read."""
    return {
        "tool": __version__,
        "source": str(source if isinstance(source, HubSource) else source.path.absolute()),
        "template": request.template,
        "golden": None if request.golden is None else str(request.golden.absolute()),
        "allow_triggers": request.allow_triggers,
        "name": request.name,
        "recipe": request.recipe.label,
        "options": recipe_options(request),
        "imatrix": None if imatrix is None else imatrix.sha256,
        "layout": request.layout,
        "parts": parts_text(request),
    }


def _early(request: BuildRequest, folder: Path) -> None:
    """Refuse a template that cannot be used while the weights are still far away."""
    text = folder_template(folder)
    if text is not None or request.template not in (AUTO, KEEP):
        check_template(_chosen(request, text), Silent())


def _chosen(request: BuildRequest, text: str | None) -> ChosenTemplate:
    return choose_template(request.template, text, request.golden, allow_triggers=request.allow_triggers)


def check_template(chosen: ChosenTemplate, progress: Progress) -> GoldenReport | None:
    """Check the template against its golden cases on every engine that runs in this process.

    Raises ``GoldenFailed`` if one differs; ``None`` where the template has no cases.
    """
    if chosen.suite is None:
        return None
    report = check_golden(chosen.text, chosen.suite, available_engines(), progress)
    if not report.ok:
        raise GoldenFailed(report)
    return report


TEMPLATE_KEYS = re.compile(r"tokenizer\.chat_templates?(\..*)?")
"""The template and its named variants: llama.cpp prefers ``tokenizer.chat_template.tool_use`` when there are tools."""


def _replaced_keys(metadata: Mapping[str, MetaValue]) -> frozenset[str]:
    return frozenset(key for key in metadata if TEMPLATE_KEYS.fullmatch(key) or key == PAD_KEY)


class WithoutKeys:
    """A ``TensorSource`` without some of its metadata, so that the pack's own template and pad stand together, last:
    a later template changes a few bytes at the header's end."""

    def __init__(self, source: TensorSource, keys: frozenset[str]) -> None:
        self.label, self.fingerprint = source.label, source.fingerprint
        self.tensors, self.shards, self.rows = source.tensors, source.shards, source.rows
        self.inputs = source.inputs
        self.metadata = {key: value for key, value in source.metadata.items() if key not in keys}


@dataclass(frozen=True)
class _Quantized:
    """The model's files in the build folder, and the type of every tensor."""

    files: tuple[Path, ...]
    entries: tuple[FileEntry, ...]
    tensors: dict[str, str]


def _quantize(
    request: BuildRequest, place: BuildDir, plan: QuantPlan, chosen: ChosenTemplate, name: str, progress: Progress
) -> _Quantized:
    """Write the model into the build folder, or find there what an earlier build finished."""
    finished = place.journal / "quantized.json"
    target = place.pack / MODEL_DIR / f"{name}.gguf"
    if finished.is_file():
        value = json.loads(finished.read_bytes())
        entries: tuple[FileEntry, ...] = tuple(value["files"])
        files = tuple(place.pack / entry["path"] for entry in entries)
        if all(
            path.is_file() and path.stat().st_size == entry["size"] for path, entry in zip(files, entries, strict=True)
        ):
            return _Quantized(files, entries, value["tensors"])
    with disk_errors(place.root):
        target.parent.mkdir(parents=True, exist_ok=True)
        place.journal.mkdir(exist_ok=True)
    result = run_plan(
        plan,
        target,
        metadata_overrides=_template_keys(chosen),
        progress=progress,
        threads=request.threads,
        journal=place.journal / "tensors",
        allow_nonfinite=request.allow_nonfinite,
        kernels=request.kernels,
    )
    for tensor, count in result.nonfinite.items():
        progress.note(f"{tensor}: {count} NaN or infinite weights")
    entries = tuple(
        FileEntry(path=f"{MODEL_DIR}/{file.path.name}", size=file.size, sha256=file.sha256) for file in result.files
    )
    tensors = dict(result.tensor_types)
    write_atomic(finished, dump_json({"files": entries, "tensors": tensors}))
    return _Quantized(tuple(file.path for file in result.files), entries, tensors)


def _side_files(model: Model, metadata: Mapping[str, MetaValue], chosen: ChosenTemplate) -> dict[str, bytes]:
    """Return the content of every file of the pack but the model, the manifest and the reports, by its place."""
    tokenizer = tokenizer_copies(model, chosen.text) | tokenizer_files(metadata)
    data = {f"{TOKENIZER_DIR}/{name}": content for name, content in tokenizer.items()}
    data[TEMPLATE] = chosen.text.encode("utf-8")
    if chosen.suite is not None:
        data[GOLDEN] = golden_bytes(chosen.suite)
    return data


def _write_side_files(root: Path, data: Mapping[str, bytes], report: GoldenReport | None) -> list[FileEntry]:
    """Write everything but the model and the manifest; return the entries of what belongs to the pack's identity.

    They are written anew each time: a stopped build may have left half of one under a temporary name.
    """
    for entry in root.iterdir():
        if entry.name != MODEL_DIR:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for name, content in data.items():
        write_atomic(root / name, content)
    if report is not None:
        write_atomic(root / REPORTS_DIR / "golden.json", dump_json(report.to_dict()))
    return [FileEntry(path=name, size=len(text), sha256=sha256_bytes(text)) for name, text in data.items()]


def tokenizer_copies(model: Model, template: str) -> dict[str, bytes]:
    """Return the source's tokenizer files by name, as they are.

    Only a chat template inside ``tokenizer_config.json`` is replaced: its readers would take it for the pack's.
    """
    copies = {}
    for name in TOKENIZER_FILES:
        path = model.side_file(name)
        if path is not None:
            copies[name] = read_bytes(path, SIDE_FILE_LIMIT)
    if CONFIG in copies:
        config = parse_json_object(copies[CONFIG], CONFIG)
        if "chat_template" in config:
            copies[CONFIG] = dump_json({**config, "chat_template": template})
    return copies


def _model_entry(plan: QuantPlan, name: str, quantized: _Quantized) -> ModelEntry:
    architecture = plan.source.metadata.get("general.architecture")
    return ModelEntry(
        name=name,
        architecture=str(architecture.value) if architecture is not None else "unknown",
        parameters=plan.parameters,
        bits_per_weight=round(plan.bits_per_weight, 4),
        files=[entry["path"] for entry in quantized.entries],
        tensors=quantized.tensors,
    )


def _quantizer_entry(request: BuildRequest, plan: QuantPlan) -> QuantizerEntry:
    quantizer = Quantizer.load(request.kernels)
    ggml = quantizer.ggml
    types = {tensor.type for tensor in plan.tensors if tensor.changed}
    return QuantizerEntry(
        library="xllamacpp",
        version=ggml.version,
        sha256=ggml.library_sha256,
        probe_hash=ggml.probe_hash(types & QUANTIZABLE),
        kernels=quantizer.entry(quantized_types(plan)),
    )
