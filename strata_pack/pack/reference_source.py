"""Opens the weights of a build's source, or what llama.cpp's own converter makes of them where that is asked for.

The converted model and its projector lie in the build's folder, so that a build that was stopped finds them again; the
quantizer then reads them as any GGUF.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import dump_json, read_json_object, write_atomic
from strata_pack.pack.loadable import header_problems
from strata_pack.pack.model_source import Model
from strata_pack.pack.request import BuildRequest
from strata_pack.progress import Progress
from strata_pack.weights.convert.convert import SourcePart
from strata_pack.weights.convert.reference import convert_by_reference
from strata_pack.weights.convert.reference_environment import REQUIREMENTS
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.input_files import InputFiles
from strata_pack.weights.local_weights import open_weights
from strata_pack.weights.tensor_source import GgufSource, TensorSource

_TOWERS = ("vision_config", "audio_config")


@contextmanager
def open_source(request: BuildRequest, model: Model, work: Path, progress: Progress) -> Iterator[TensorSource]:
    """Yield the tensors of ``model`` as ``request`` wants them converted; ``work`` is a folder of the build.

    Raises ``WrongUse`` where llama.cpp's converter is asked for and there is nothing to convert.
    """
    if request.converter == "own":
        with open_weights(model.root, model.weights, mtp=request.mtp) as tensors:
            yield tensors
        return
    if model.weights.format == "gguf":
        raise WrongUse("is a GGUF already", where=request.source, remedy="leave out --converter")
    with GgufSource(_converted(model, "model" if request.mtp else "trunk", "auto", work, progress)) as converted:
        yield converted


def with_projector(request: BuildRequest, model: Model, work: Path, progress: Progress) -> BuildRequest:
    """Return ``request`` with the projector that llama.cpp's converter makes of a checkpoint with a tower."""
    config = model.side_file("config.json")
    if request.converter == "own" or not request.projector or request.projector_file is not None or config is None:
        return request
    if not any(isinstance(read_json_object(config).get(key), dict) for key in _TOWERS):
        return request
    return replace(request, projector_file=_converted(model, "projector", request.projector_type, work, progress))


def _converted(model: Model, part: SourcePart, outtype: str, work: Path, progress: Progress) -> Path:
    """Return the file that llama.cpp's converter makes of a part of ``model``, made now if it is not there."""
    dest, record = work / f"{part}-{outtype}.gguf", work / f"{part}-{outtype}.json"
    inputs = InputFiles.of(file.path for file in model.files)
    said = {"inputs": inputs.fingerprint().hex(), "requirements": list(REQUIREMENTS)}
    if dest.is_file() and _read(record) == said:
        return dest
    folder = (model.root / (model.weights.index or model.weights.files[0])).parent

    def check(file: GgufFile) -> None:
        problems = [] if part == "projector" else header_problems(file.metadata, file.tensors)
        if problems:
            raise BadInput(f"llama.cpp's converter made a file that no loader takes: {problems[0]}", where=folder)

    convert_by_reference(folder, dest, outtype=outtype, part=part, check=check, progress=progress)
    inputs.check_unchanged()
    write_atomic(record, dump_json(said))
    return dest


def _read(record: Path) -> object:
    try:
        return read_json_object(record)
    except BadInput:
        return None
