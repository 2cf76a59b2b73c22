"""Builds packs from a source: fetch, choose and check the template, quantize, write, move into place.

Cheap steps that can fail come first: the template and its golden cases are checked before a weight is read (for a Hub
source, before the weights are downloaded). All work is done in ``<pack>.partial`` (see ``build_dir``); one rename
publishes the pack, and an interrupted build resumes when it is started again. Several packs of one source are built
from one reading of it; each has the same bytes as if it were built alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from strata_pack import __version__
from strata_pack.chat.golden.check import GoldenReport
from strata_pack.files import write_atomic
from strata_pack.pack.attestations.files import attestation_files
from strata_pack.pack.build_dir import BuildDir, check_target, open_build_dir
from strata_pack.pack.build_plan import (
    ProvedTemplate,
    Templates,
    build_key,
    check_early,
    check_places,
    check_together,
    plan_models,
    read_imatrices,
    refuse_unloadable,
)
from strata_pack.pack.finished import finished_pack
from strata_pack.pack.loadable import template_problems
from strata_pack.pack.manifest import FORMAT, VERSION, Manifest, SourceEntry, write_manifest
from strata_pack.pack.model_card import add_origin
from strata_pack.pack.model_files import (
    ModelFiles,
    PlannedModel,
    file_name,
    model_entry,
    quantizer_entry,
    write_models,
)
from strata_pack.pack.model_source import Model, SourceHashes, bring
from strata_pack.pack.paths import MANIFEST, MODEL_DIR
from strata_pack.pack.projector import (
    PlannedProjector,
    ProjectorPlace,
    WrittenProjector,
    open_projector,
    refuse_other_kinds,
    write_projectors,
)
from strata_pack.pack.reference_source import open_source, with_projector
from strata_pack.pack.request import BuildRequest, recipe_entry, request_entry
from strata_pack.pack.side_files import make_side_files, write_side_files
from strata_pack.pack.template.install import golden_entry
from strata_pack.progress import Progress, Silent
from strata_pack.weights.input_files import InputFiles
from strata_pack.weights.preflight import Stage, check_disk
from strata_pack.weights.quantize.imatrix import Imatrix
from strata_pack.weights.source import Source, parse_source

CONVERTED = ".converted"
"""Where llama.cpp's converter writes to, in the folder that a source is fetched into."""

MANIFEST_ROOM = 1 << 20
"""Bytes reserved for the manifest (which lists every tensor), the reports and the rounding of file systems."""


@dataclass(frozen=True)
class BuildResult:
    """The finished pack. ``golden`` is the report of the golden check, if there were cases.

    ``seconds`` by stage are for the whole build, all packs of it together. ``kept`` names the files that were in the
    replaced pack but not in its manifest: they were carried over to the new pack.
    """

    path: Path
    manifest: Manifest
    golden: GoldenReport | None
    seconds: Mapping[str, float]
    resumed: bool
    kept: tuple[str, ...] = ()


class _Clock:
    """Measures seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + monotonic() - started


@dataclass(frozen=True)
class _Asked:
    """What is known about a pack before its source is read."""

    request: BuildRequest
    place: BuildDir
    imatrix: Imatrix | None
    key: dict[str, Any]


@dataclass(frozen=True)
class _Decided:
    """A pack for which everything is decided; only the work remains."""

    asked: _Asked
    kept: list[str]
    template: ProvedTemplate
    model: PlannedModel
    projector: PlannedProjector | None
    side_files: dict[str, bytes]
    resumed: bool

    def stages(self) -> list[Stage]:
        """Return the stages that still write bytes, each with its exact size."""
        root = self.model.place.root
        beside = sum(map(len, self.side_files.values())) + MANIFEST_ROOM
        return [
            Stage("quantized model", root, self.model.missing_bytes),
            Stage("projector", root, 0 if self.projector is None else self.projector.nbytes),
            Stage("tokenizer, golden cases, manifest", root, beside),
        ]


def build_pack(request: BuildRequest, progress: Progress | None = None) -> BuildResult:
    """Build the pack that ``request`` describes and return it: ``build_packs`` with one request."""
    return build_packs([request], progress)[0]


def build_packs(
    requests: Sequence[BuildRequest],
    progress: Progress | None = None,
    *,
    brought: Model | None = None,
    ready: Mapping[Path, Path] | None = None,
) -> list[BuildResult]:
    """Build the packs that ``requests`` describe from one reading of their source, and return them in that order.

    The source is fetched, hashed, read and dequantized once. ``brought`` is an already fetched and hashed source on
    this disk. ``ready`` maps a pack's folder to a model file that was already written by the plan of this build; it is
    moved into the pack. Raises ``ValueError`` for requests that cannot share a reading (see ``BuildRequest.reading``),
    ``WrongUse`` (unknown template, a folder in the way), ``BadInput`` (what the source holds), ``CheckFailed`` (golden
    cases that differ) or ``EnvironmentFailure`` (network, disk). A failed build leaves nothing at ``out``; the packs
    appear only when all are complete.
    """
    watcher = progress or Silent()
    check_together(requests)
    source = parse_source(requests[0].source)
    outs = check_places(requests, source)
    inputs = InputFiles.of({request.imatrix for request in requests if request.imatrix is not None})
    imatrices = read_imatrices(requests)
    with ExitStack() as stack:
        asked = [
            _Asked(request, stack.enter_context(open_build_dir(out)), imatrix, build_key(request, source, imatrix))
            for request, out, imatrix in zip(requests, outs, imatrices, strict=True)
        ]
        # The fetched source is in the build folder of one pack, which is therefore installed and removed last.
        holder = next((one.place for one in asked if one.place.source.is_dir()), asked[-1].place)
        installed = _find_installed(asked, watcher)
        results = installed | _find_finished(
            [one for one in asked if one.place not in installed], source, holder, watcher
        )
        missing = [one for one in asked if one.place not in results]
        if missing:
            built = _build(missing, source, holder, inputs, watcher, brought, ready or {})
            installed |= built
            results |= built
        for place in sorted(installed, key=lambda place: place is holder):
            place.remove()
    return [results[one.place] for one in asked]


def _find_installed(asked: Sequence[_Asked], progress: Progress) -> dict[BuildDir, BuildResult]:
    """Return the packs of earlier builds that were interrupted after the packs were in place."""
    found = {}
    for one in asked:
        manifest = one.place.installed(one.key)
        if manifest is not None:
            progress.note(f"{one.place.out}: the interrupted build had already finished this pack")
            found[one.place] = BuildResult(one.place.out, manifest, None, {}, resumed=True)
    return found


def _find_finished(
    asked: Sequence[_Asked], source: Source, holder: BuildDir, progress: Progress
) -> dict[BuildDir, BuildResult]:
    """Return the existing packs that are already the result of the request."""
    found = {}
    digests: dict[Path, str] = {}
    for one in asked:
        out = one.place.out
        if one.request.force:
            continue
        manifest = finished_pack(one.request, source, one.imatrix, out, holder.source, progress, digests)
        if manifest is not None:
            progress.note(f"{out}: is already this pack; nothing to do")
            found[one.place] = BuildResult(out, manifest, None, {}, resumed=True)
    return found


def _build(
    asked: Sequence[_Asked],
    source: Source,
    holder: BuildDir,
    inputs: InputFiles,
    progress: Progress,
    brought: Model | None,
    ready: Mapping[Path, Path],
) -> dict[BuildDir, BuildResult]:
    """Build the missing packs and move them into place; a fetched source is in the build folder of ``holder``."""
    clock = _Clock()
    first = asked[0].request
    kept = [check_target(one.place.out, force=one.request.force) for one in asked]
    with clock.stage("fetch"):
        requests = [one.request for one in asked]
        model = brought or bring(
            source,
            holder.source,
            progress,
            lambda folder: check_early(requests, folder),
            own_converter=first.converter == "own",
        )
    inputs += InputFiles.of(file.path for file in model.files)
    with ExitStack() as stack:
        work = holder.source / CONVERTED
        with clock.stage("convert") if first.converter == "reference" else nullcontext():
            tensors = stack.enter_context(open_source(first, model, work, progress))
            seeing_requests = [with_projector(one, model, work, progress) for one in requests]
        projectors = [stack.enter_context(open_projector(one, model, tensors, progress)) for one in seeing_requests]
        refuse_other_kinds(tensors.metadata, first.source)
        templates = Templates.of(model, tensors.metadata, progress)
        with clock.stage("template"):
            proved = [templates.prove(request) for request in requests]
        plans = plan_models(requests, tensors, [one.imatrix for one in asked])
        for plan in plans:
            refuse_unloadable(model, plan)
        for text in dict.fromkeys(template.chosen.text for template in proved):
            for problem in template_problems(plans[0].source.metadata, text):
                progress.note(f"{model.name}: {problem}")
        decided = [
            _Decided(
                one,
                kept[index],
                proved[index],
                PlannedModel(one.place, plans[index], proved[index].chosen, file_name(one.request, model)),
                projectors[index],
                make_side_files(model, plans[index].source.metadata, proved[index].chosen),
                one.place.begin(
                    one.key, {"template": proved[index].chosen.entry["sha256"], "model": tensors.fingerprint}
                ),
            )
            for index, one in enumerate(asked)
        ]
        check_disk([stage for one in decided for stage in one.stages()])
        with SourceHashes(model) as hashes:
            with clock.stage("quantize"):
                given = [ready.get(one.asked.request.out) for one in decided]
                files = write_models([one.model for one in decided], first, progress, given)
                eyes = [ProjectorPlace(one.projector, one.asked.request, one.model.place.pack) for one in decided]
                seeing = write_projectors(eyes, model, progress)
            with clock.stage("hash the source"):
                source_entry = add_origin(hashes.entry(), model, tensors.metadata)
        inputs.check_unchanged()
    with clock.stage("write"):
        manifests = [
            _write_rest(one, model_files, projector, source_entry)
            for one, model_files, projector in zip(decided, files, seeing, strict=True)
        ]
    with clock.stage("install"):
        for one in sorted(decided, key=lambda one: one.model.place is holder):
            place = one.model.place
            place.install(place.pack if one.asked.request.layout == "pack" else place.pack / MODEL_DIR, one.kept)
    results = {}
    for one, manifest in zip(decided, manifests, strict=True):
        place, report, unlisted = one.model.place, one.template.report, tuple(one.kept)
        for name in unlisted:
            progress.note(f"{place.out / name}: kept, although no manifest lists it")
        results[place] = BuildResult(place.out, manifest, report, clock.seconds, one.resumed, unlisted)
    return results


def _write_rest(one: _Decided, files: ModelFiles, projector: WrittenProjector | None, source: SourceEntry) -> Manifest:
    """Write all files of a pack other than the GGUF files, the manifest last; return the manifest."""
    request, place, template = one.asked.request, one.model.place, one.template
    suite = template.chosen.suite
    written = write_side_files(place.pack, one.side_files, template.report)
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        tool=__version__,
        source=source,
        model=model_entry(one.model, files),
        request=request_entry(request, template.chosen.entry["sha256"]),
        recipe=recipe_entry(request, one.asked.imatrix),
        quantizer=quantizer_entry(one.model.plan, request.kernels),
        template=template.chosen.entry,
        golden=None if template.report is None or suite is None else golden_entry(suite, template.report),
        files=sorted([*files.entries, *written], key=lambda entry: entry["path"]),
    )
    if projector is not None:
        manifest["projector"] = projector.entry
        manifest["files"] = sorted([*manifest["files"], projector.file], key=lambda entry: entry["path"])
    for name, content in attestation_files(manifest).items():
        write_atomic(place.pack / name, content)
    write_manifest(place.pack / MANIFEST, manifest)
    return manifest
