"""Opens the source of a build, of any kind: its files, their hashes, its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strata_pack.chat.render.template import read_template
from strata_pack.files import read_json_object, sha256_file
from strata_pack.pack.file_names import CONFIG, SHARD_SUFFIX, file_stem
from strata_pack.pack.layout import named_templates
from strata_pack.pack.manifest import FileEntry, SourceEntry
from strata_pack.pack.paths import DEFAULT_NAME, TEMPLATE_KEY
from strata_pack.pack.template.copies import read_all
from strata_pack.progress import Progress
from strata_pack.weights.convert.convert import check_convertible
from strata_pack.weights.convert.safetensors import StoredTensor, parse_header
from strata_pack.weights.gguf.file import MetaValue, shard_paths
from strata_pack.weights.hub.fetch import fetch_repo
from strata_pack.weights.hub.head import OpenHead
from strata_pack.weights.hub.outcome import FetchPlan
from strata_pack.weights.hub.select import SIDE_FILES, Weights
from strata_pack.weights.local_weights import file_names, find_weights
from strata_pack.weights.quantize.rows import usable_cores
from strata_pack.weights.source import HubSource, LocalFolder, LocalGguf, Source
from strata_pack.weights.tokenizer.chat_templates import chat_templates

_HEADS_AT_ONCE = 8
_QUANT_SUFFIX = re.compile(r"(?i)[-._](?:I?Q\d(?:_\w+)?|TQ\d_\d|MXFP4\w*|BF16|F16|F32|FP16)$")


@dataclass(frozen=True)
class SourceFile:
    """One file of the source: its name in the source, its path, and its SHA-256 if already known."""

    name: str
    path: Path
    sha256: str | None = None


@dataclass(frozen=True)
class Model:
    """A model on this disk. ``folder`` has its tokenizer and config, if they are next to the weights."""

    kind: Literal["file", "folder", "hub"]
    name: str
    weights: Weights
    root: Path
    folder: Path | None
    files: tuple[SourceFile, ...]
    repo: str | None = None
    commit: str | None = None

    def side_file(self, name: str) -> Path | None:
        """Return the path of a file next to the weights, or ``None``."""
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None


def model_name(text: str) -> str:
    """Return ``text`` as a file name's stem, without a shard number and quantization in it."""
    return file_stem(_QUANT_SUFFIX.sub("", SHARD_SUFFIX.sub("", text)))


def bring(
    source: Source, into: Path, progress: Progress, early: Callable[[Path], None], *, own_converter: bool = True
) -> Model:
    """Return the model that ``source`` names; a Hub source is fetched into ``into`` first.

    ``early`` is called with the fetched folder before the weights are downloaded, and may raise to stop the fetch;
    so does a checkpoint that the tool's own converter does not support, unless ``own_converter`` is False.
    """
    if isinstance(source, LocalGguf):
        return _local_gguf(source.path)
    if isinstance(source, LocalFolder):
        return _local_folder(source.path)
    return _hub(source, into, progress, early, own_converter=own_converter)


def _local_gguf(path: Path) -> Model:
    shards = shard_paths(path)
    files = tuple(SourceFile(shard.name, shard) for shard in shards)
    weights = Weights("gguf", tuple(shard.name for shard in shards))
    return Model("file", model_name(shards[0].stem), weights, shards[0].parent, None, files)


def _local_folder(folder: Path) -> Model:
    names = file_names(folder)
    weights = find_weights(folder)
    used = [*weights.files, *([weights.index] if weights.index else []), *(n for n in names if n in SIDE_FILES)]
    files = tuple(SourceFile(name, folder / name) for name in sorted(set(used)))
    return Model("folder", _name(weights, folder.absolute().name), weights, folder, folder, files)


def hub_folder(source: HubSource, into: Path) -> Path:
    """Return the folder below ``into`` for a Hub source. Like llama.cpp's converter, ours takes the model's name
    from the folder's."""
    return into / source.repo_id.rpartition("/")[2]


def _hub(
    source: HubSource, into: Path, progress: Progress, early: Callable[[Path], None], *, own_converter: bool
) -> Model:
    folder = hub_folder(source, into)
    chosen: list[Weights] = []

    def announce(plan: FetchPlan) -> None:
        chosen.append(plan.selection.weights)
        progress.note(plan.sentence())

    def check_heads(fetched: Path, open_head: OpenHead) -> None:
        (weights,) = chosen
        if weights.format == "safetensors" and own_converter:
            check_convertible(fetched, tensors=_stored(weights, fetched, open_head))
        early(fetched)

    fetched = fetch_repo(
        source.repo_id,
        source.revision,
        folder,
        path=source.path,
        progress=progress,
        announce=announce,
        check_heads=check_heads,
    )
    weights = fetched.selection.weights
    files = tuple(SourceFile(file.path, folder / file.path, file.sha256) for file in fetched.files)
    return Model("hub", _name(weights, folder.name), weights, folder, folder, files, fetched.repo_id, fetched.commit)


def _stored(weights: Weights, folder: Path, open_head: OpenHead) -> Iterator[StoredTensor]:
    """Yield the headers of a checkpoint's files, a few files at a time; only the headers are downloaded."""

    def header(name: str) -> list[StoredTensor]:
        read, size = open_head(name)
        return parse_header(read, size, folder / name)

    with ThreadPoolExecutor(_HEADS_AT_ONCE, "headers") as pool:
        for tensors in pool.map(header, sorted(weights.files)):
            yield from tensors


def _name(weights: Weights, otherwise: str) -> str:
    """Return the model's name: of a GGUF by its file name, of a checkpoint by its folder or repository."""
    return model_name(Path(weights.files[0]).stem if weights.format == "gguf" else otherwise)


def source_name(source: Source) -> str:
    """Return the model's name for packs of ``source``, as far as it is known before anything is fetched."""
    if isinstance(source, LocalGguf):
        return _local_gguf(source.path).name
    if isinstance(source, LocalFolder):
        return _local_folder(source.path).name
    return model_name(Path(source.path).stem if source.path else source.repo_id.rpartition("/")[2])


def source_template(model: Model, metadata: Mapping[str, MetaValue]) -> str | None:
    """Return the source's own chat template: the file next to the weights, else the tokenizer's, else the GGUF's."""
    own = folder_template(model.folder) if model.folder is not None else None
    if own is not None:
        return own
    value = metadata.get(TEMPLATE_KEY)
    return None if value is None else str(value.value)


def source_variants(model: Model, metadata: Mapping[str, MetaValue]) -> dict[str, str]:
    """Return the source's templates of other names (``tool_use``), by name."""
    if model.folder is not None:
        return folder_variants(model.folder)
    return {name: text for name, text in named_templates(metadata, model.files[0].path).items() if name != DEFAULT_NAME}


def folder_variants(folder: Path) -> dict[str, str]:
    """Return the templates of other names of a model folder, by name; the first of a name counts."""
    found: dict[str, str] = {}
    for one in read_all(folder):
        if not one.main:
            found.setdefault(one.name, one.text)
    return found


def folder_template(folder: Path) -> str | None:
    """Return the chat template of a Hugging Face folder: ``chat_template.jinja``, else that of its JSON files.

    Of several named templates, "default" is taken. Raises ``BadInput`` for files that are not JSON.
    """
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return read_template(jinja)
    for name in ("chat_template.json", CONFIG):
        path = folder / name
        if not path.is_file():
            continue
        template = chat_templates(read_json_object(path).get("chat_template"), path).get(DEFAULT_NAME)
        if template is not None:
            return template
    return None


class SourceHashes:
    """Computes the hashes of the source's files in parallel with quantizing."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pool = ThreadPoolExecutor(usable_cores(), "source hashes")
        self._entries = [self._pool.submit(_file_entry, file) for file in model.files]

    def __enter__(self) -> SourceHashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def entry(self) -> SourceEntry:
        """Wait for the hashes and return the manifest's entry of the source."""
        model = self._model
        files = [future.result() for future in self._entries]
        return SourceEntry(kind=model.kind, repo=model.repo, commit=model.commit, files=files)


def _file_entry(file: SourceFile) -> FileEntry:
    size = file.path.stat().st_size
    return FileEntry(path=file.name, size=size, sha256=file.sha256 or sha256_file(file.path))
