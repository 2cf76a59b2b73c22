"""Plans a build before a weight is written: the template and its check, the model's plan, memory and disk needs.

Cheap steps that can fail come first; for a Hub source, before its weights are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_pack import __version__
from strata_pack.chat.engines.engines import available_engines
from strata_pack.chat.golden.check import GoldenReport, check_golden
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import read_json_object
from strata_pack.outputs import check_outputs, enclosing_pack, is_inside
from strata_pack.pack.build_dir import check_target, partial_folder
from strata_pack.pack.forecast import Forecast, forecast
from strata_pack.pack.loadable import config_problems, header_problems
from strata_pack.pack.model_source import (
    Model,
    bring,
    folder_template,
    folder_variants,
    source_template,
    source_variants,
)
from strata_pack.pack.paths import TEMPLATE_KEY
from strata_pack.pack.projector import open_projector, refuse_other_kinds
from strata_pack.pack.request import BuildRequest, parts_text, read_paths, recipe_options
from strata_pack.pack.template.choice import AUTO, KEEP, ChosenTemplate, check_variants, choose_template
from strata_pack.pack.template.install import GoldenFailed
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.edit import CHUNK_END, EDGE_KEY, PAD_KEY, RESERVE, pad_value
from strata_pack.weights.gguf.file import MetaValue, TensorInfo
from strata_pack.weights.local_weights import open_weights
from strata_pack.weights.preflight import size_text
from strata_pack.weights.quantize.edits import EditedSource, edit_imatrix
from strata_pack.weights.quantize.imatrix import Imatrix, read_imatrix
from strata_pack.weights.quantize.run import QuantPlan, plan_quantization
from strata_pack.weights.source import HubSource, Source, parse_source
from strata_pack.weights.tensor_source import TensorSource

TEMPLATE_KEYS = re.compile(r"tokenizer\.chat_templates?(\..*)?")
"""The template and its named variants: llama.cpp prefers ``tokenizer.chat_template.tool_use`` when there are tools."""


class WithoutKeys:
    """A ``TensorSource`` without some of its metadata keys. The pack's template and pad are written last in the header,
    so that installing another template changes only a few bytes at the header's end."""

    def __init__(self, source: TensorSource, keys: frozenset[str]) -> None:
        self.label, self.fingerprint = source.label, source.fingerprint
        self.tensors, self.shards, self.rows = source.tensors, source.shards, source.rows
        self.inputs = source.inputs
        self.metadata = {key: value for key, value in source.metadata.items() if key not in keys}


def template_keys(chosen: ChosenTemplate) -> dict[str, MetaValue | None]:
    """Return the keys that a build writes at the end of the model's header."""
    return {
        EDGE_KEY: MetaValue.string(CHUNK_END),
        TEMPLATE_KEY: MetaValue.string(chosen.text),
        PAD_KEY: pad_value(RESERVE),
    }


def check_together(requests: Sequence[BuildRequest]) -> None:
    """Raise ``ValueError`` unless all ``requests`` can be built from one reading of the source."""
    if len({request.reading for request in requests}) != 1:
        raise ValueError(
            "the requests cannot share one reading of the source: source, parts, edits, threads or kernels differ"
        )


def check_places(requests: Sequence[BuildRequest], source: Source) -> list[Path]:
    """Return the absolute folder of every pack; ``WrongUse`` for a folder that would destroy an input or another
    pack."""
    outs = [request.out.absolute() for request in requests]
    places = [place for out in outs for place in (out, partial_folder(out))]
    check_outputs(places, [path for request in requests for path in read_paths(request, source)])
    for out in outs:
        pack = enclosing_pack(out)
        if pack is not None:
            raise WrongUse(f"lies in the pack {pack}, which holds no other", where=out, remedy="choose another folder")
        around = next((other for other in outs if other != out and is_inside(out, other)), None)
        if around is not None:
            raise WrongUse(f"is inside {around}, another pack", where=out, remedy="give each pack its own folder")
    return outs


def replaced_packs(requests: Sequence[BuildRequest]) -> list[str]:
    """Return a sentence for every pack or bare GGUF that a forced build of ``requests`` replaces; raises as it does."""
    check_places(requests, parse_source(requests[0].source))
    sentences = []
    for request in requests:
        kept = check_target(request.out, force=True)
        held = [path for path in request.out.rglob("*") if path.is_file()] if request.out.is_dir() else []
        if held:
            size = size_text(sum(path.stat().st_size for path in held))
            stays = f"; kept: {', '.join(kept)}" if kept else ""
            sentences.append(f"{request.out}: {len(held) - len(kept)} files of {size} will be replaced{stays}")
    return sentences


def read_imatrices(requests: Sequence[BuildRequest]) -> list[Imatrix | None]:
    """Return the importance matrix of every request; each file is read once."""
    read: dict[Path | None, Imatrix | None] = {None: None}
    for request in requests:
        if request.imatrix is not None and request.imatrix not in read:
            read[request.imatrix] = read_imatrix(request.imatrix)
    return [read[request.imatrix] for request in requests]


def plan_models(
    requests: Sequence[BuildRequest], tensors: TensorSource, imatrices: Sequence[Imatrix | None]
) -> list[QuantPlan]:
    """Return the plan of every request's model; all have the same source.

    Raises as ``plan_quantization``, and ``WrongUse`` for edits that leave no layers or no importances.
    """
    edits = requests[0].edits
    edited = EditedSource(tensors, edits)
    template = next((key for key, _ in edits.overrides if TEMPLATE_KEYS.fullmatch(key)), None)
    if template is not None:
        raise WrongUse(f"{template} is the pack's template", where="--override-kv", remedy="name it with --template")
    keys = frozenset(key for key in edited.metadata if TEMPLATE_KEYS.fullmatch(key) or key in (EDGE_KEY, PAD_KEY))
    source = WithoutKeys(edited, keys)
    plans = []
    for request, imatrix in zip(requests, imatrices, strict=True):
        weights = None if imatrix is None else edit_imatrix(imatrix, edited, edits)
        if imatrix is not None and weights is None:
            raise WrongUse("leaves no weights", where="--include-weights, --exclude-weights", remedy="check the names")
        plan = plan_quantization(
            source,
            request.recipe,
            weights,
            allow_requantize=request.allow_requantize,
            keep_split=request.keep_split,
            split_bytes=request.split_bytes,
        )
        plans.append(replace(plan, closing=edited.closing))
    return plans


def refuse_unloadable(model: Model, plan: QuantPlan) -> None:
    """Raise ``BadInput`` for a model that llama.cpp could not load, before any work is done for it."""
    metadata = {**plan.source.metadata, **plan.closing}
    if not plan.recipe.base.copy:
        metadata["general.file_type"] = MetaValue.uint32(plan.recipe.base.file_type)
    problems = header_problems(metadata, [TensorInfo(t.name, t.source.shape, t.type, 0, 0) for t in plan.tensors])
    config = model.side_file("config.json")
    if config is not None and not plan.closing:
        problems += config_problems(metadata, read_json_object(config), config.name)
    if problems:
        shown = "; ".join(problems[:3]) + (f" (and {len(problems) - 3} more)" if len(problems) > 3 else "")
        raise BadInput(f"would not load: {shown}", where=plan.source.label, remedy="fetch or convert the model again")


@dataclass(frozen=True)
class ProvedTemplate:
    """The template of a pack, and the report of its golden check if it has cases."""

    chosen: ChosenTemplate
    report: GoldenReport | None


class Templates:
    """Chooses and checks the templates for one source; each is checked once, also if several packs use it."""

    def __init__(self, own: str | None, variants: Mapping[str, str], progress: Progress) -> None:
        """``own`` is the source's own template, ``variants`` are its named templates (``tool_use``)."""
        self._own, self._variants, self._progress = own, variants, progress
        self._proved: dict[tuple[object, ...], ProvedTemplate] = {}

    @classmethod
    def of(cls, model: Model, metadata: Mapping[str, MetaValue], progress: Progress) -> Templates:
        """Return the templates for ``model``, whose tensors have ``metadata``."""
        return cls(source_template(model, metadata), source_variants(model, metadata), progress)

    def prove(self, request: BuildRequest) -> ProvedTemplate:
        """Return the checked template of ``request``; raises as ``choose_template``, and ``GoldenFailed``."""
        key = (request.template, request.golden, request.allow_triggers)
        if key not in self._proved:
            chosen = self.choose(request)
            for note in chosen.notes:
                self._progress.note(note)
            self._proved[key] = ProvedTemplate(chosen, check_template(chosen, self._progress))
        return self._proved[key]

    def choose(self, request: BuildRequest) -> ChosenTemplate:
        """Return the template of ``request``, with a note on those that a pack leaves out."""
        allow = request.allow_triggers
        chosen = choose_template(request.template, self._own, request.golden, allow_triggers=allow)
        if not self._variants or request.template not in (AUTO, KEEP):
            return chosen
        left_out = f"the source's templates of other names are left out: {', '.join(self._variants)}"
        found = check_variants(self._variants, allow_triggers=allow)
        return replace(chosen, notes=(*chosen.notes, left_out, *found))

    def check_early(self, request: BuildRequest) -> None:
        """Check the template of ``request``, unless it depends on a template that may be in the weights only."""
        if self._own is not None or request.template not in (AUTO, KEEP):
            self.prove(request)


def check_early(requests: Sequence[BuildRequest], folder: Path) -> None:
    """Refuse unusable templates before the weights are downloaded."""
    templates = Templates(folder_template(folder), folder_variants(folder), Silent())
    for request in requests:
        templates.check_early(request)


def check_template(chosen: ChosenTemplate, progress: Progress) -> GoldenReport | None:
    """Check the template against its golden cases on every engine that runs in this process.

    Raises ``GoldenFailed`` if one differs; returns ``None`` if the template has no cases.
    """
    if chosen.suite is None:
        return None
    report = check_golden(chosen.text, chosen.suite, available_engines(), progress)
    if not report.ok:
        raise GoldenFailed(report)
    return report


@contextmanager
def plan_build(request: BuildRequest) -> Iterator[QuantPlan]:
    """Yield the plan of a build's model without writing a file; raises as ``plan_packs``."""
    with plan_packs([request]) as ((plan, _),):
        yield plan


@contextmanager
def plan_packs(requests: Sequence[BuildRequest]) -> Iterator[list[tuple[QuantPlan, Forecast]]]:
    """Yield the plan of every build and the forecast of its pack's needs, without writing a file.

    Raises as ``build_packs``, and ``WrongUse`` for a Hub source: its weights would have to be downloaded first.
    """
    check_together(requests)
    first = requests[0]
    source = parse_source(first.source)
    if isinstance(source, HubSource):
        remedy = f"run `strata-pack fetch {first.source} --out DIR` and plan from DIR"
        raise WrongUse("a plan needs the weights on this disk", where=first.source, remedy=remedy)
    if first.converter == "reference":
        remedy = "run `strata-pack convert --converter reference` and plan from its file"
        raise WrongUse("a plan needs what llama.cpp's converter makes of it", where=first.source, remedy=remedy)
    for out, request in zip(check_places(requests, source), requests, strict=True):
        check_target(out, force=request.force)
    imatrices = read_imatrices(requests)
    model = bring(source, first.out, Silent(), lambda _folder: None)
    with ExitStack() as stack:
        tensors = stack.enter_context(open_weights(model.root, model.weights, mtp=first.mtp))
        projectors = [stack.enter_context(open_projector(one, model, tensors, Silent())) for one in requests]
        refuse_other_kinds(tensors.metadata, first.source)
        templates = Templates.of(model, tensors.metadata, Silent())
        for request in requests:
            templates.choose(request)
        stored = sum((model.root / name).stat().st_size for name in model.weights.files)
        yield [
            (plan, forecast(plan, 0 if projector is None else projector.nbytes, stored))
            for plan, projector in zip(plan_models(requests, tensors, imatrices), projectors, strict=True)
        ]


def build_key(request: BuildRequest, source: Source, imatrix: Imatrix | None) -> dict[str, Any]:
    """Return the part of a pack's inputs that is known before the source is read."""
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
