"""Reads the templates in the files of a folder or repository; of GGUF files only the header."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.errors import BadInput
from strata_pack.pack.layout import named_templates
from strata_pack.pack.paths import ADDITIONAL_DIR, DEFAULT_NAME
from strata_pack.pack.recovery import recover
from strata_pack.pack.template.copies import JSON_FILES, read_all
from strata_pack.progress import Progress, Silent
from strata_pack.weights.gguf.file import GgufFile, MetaValue
from strata_pack.weights.gguf.head import read_header
from strata_pack.weights.hub.select import SHARD_NAME
from strata_pack.weights.hub.tree import RepoTree
from strata_pack.weights.source import HubSource

NOT_MODELS = frozenset({"mmproj", "adapter", "imatrix"})
"""Values of ``general.type`` of files without a template."""
_NAME_KEYS = ("general.basename", "general.finetune", "general.size_label", "general.version")


@dataclass(frozen=True)
class TemplateFile:
    """The templates of one file by name, empty for a GGUF without one; ``identity`` names the model, if the file
    does."""

    place: str
    texts: Mapping[str, str]
    is_gguf: bool = False
    identity: str = ""
    problem: str | None = None


def may_have_template(place: str) -> bool:
    """Return whether the file at ``place`` may contain a template; of a split GGUF, only the first shard."""
    folder, _, name = place.rpartition("/")
    if _is_gguf(name):
        shard = SHARD_NAME.fullmatch(name)
        return shard is None or int(shard["number"]) == 1
    return name in (*JSON_FILES, "chat_template.jinja") or (
        name.endswith(".jinja") and folder.rpartition("/")[2] == ADDITIONAL_DIR
    )


def _is_gguf(place: str) -> bool:
    return place.lower().endswith(".gguf")


def templates_in(path: Path, place: str) -> Iterator[TemplateFile]:
    """Yield the templates of the file ``path``; ``place`` is its path in its folder or repository."""
    try:
        if path.suffix.lower() == ".gguf":
            recover(path)
            with GgufFile.open(path) as gguf:
                yield from _in_metadata(gguf.metadata, place)
            return
        texts = {path.stem if path.parent.name == ADDITIONAL_DIR else one.name: one.text for one in read_all(path)}
        if texts:
            yield TemplateFile(place, texts)
    except BadInput as error:
        yield TemplateFile(place, {}, problem=str(error))


def _in_metadata(metadata: Mapping[str, MetaValue], place: str) -> Iterator[TemplateFile]:
    def said(key: str) -> str:
        return "" if key not in metadata else re.sub(r"[^a-z0-9]+", "-", str(metadata[key].value).lower())

    if said("general.type") not in NOT_MODELS and said("general.architecture") != "clip":
        identity = "/".join(filter(None, map(said, _NAME_KEYS))) if said(_NAME_KEYS[0]) else said("general.name")
        yield TemplateFile(place, named_templates(metadata, place), is_gguf=True, identity=identity)


def _never() -> bool:
    return False


def hub_templates(source: HubSource, progress: Progress, enough: Callable[[], bool] = _never) -> Iterator[TemplateFile]:
    """Yield the templates of a repository's files: first of small files, then of the headers of GGUF files.

    Stops reading headers when ``enough`` returns true.
    """
    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.repo import read_tree

    tree = read_tree(connect(), source.repo_id, source.revision)
    files = [file.path for file in tree.files if may_have_template(file.path)]
    inside = [path for path in files if source.path is None or f"{path}/".startswith(f"{source.path}/")]
    inside.sort(key=lambda path: (_is_gguf(path), path.count("/")))
    task = progress.task(f"templates of {source.repo_id}", len(inside), "files")
    with tempfile.TemporaryDirectory(prefix="strata-survey-") as name:
        read = _reader(tree, Path(name))
        for path in inside:
            if not (_is_gguf(path) and enough()):
                yield from read(path)
            task.advance(1)
    task.done()


def _reader(tree: RepoTree, folder: Path) -> Any:
    from strata_pack.weights.hub.connection import connect
    from strata_pack.weights.hub.head import head_opener
    from strata_pack.weights.hub.small import SmallFiles

    hub = connect()
    small = SmallFiles(hub, tree, folder, offline=False)

    def read(place: str) -> list[TemplateFile]:
        if _is_gguf(place):
            with hub.client() as client:
                head, size = head_opener(client, hub, tree, folder)(place)
                try:
                    return list(_in_metadata(read_header(head, size, place).metadata, place))
                except BadInput as error:
                    return [TemplateFile(place, {}, problem=str(error))]
        path = folder / place
        data = small.read(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return list(templates_in(path, place))

    return read


def hub_template_files(source: HubSource, progress: Progress | None = None) -> list[TemplateFile]:
    """Return every template of ``source``, in the order of precedence; ``BadInput`` for a file that cannot be read."""
    found = list(hub_templates(source, progress or Silent()))
    broken = next((one for one in found if one.problem is not None), None)
    if broken is not None and all(one.problem is not None for one in found):
        raise BadInput(str(broken.problem))
    return found


def hub_texts(source: HubSource, progress: Progress | None = None) -> dict[str, str]:
    """Return the templates of a repository by name; its small files take precedence over its GGUF files."""
    texts: dict[str, str] = {}
    for one in hub_templates(source, progress or Silent(), lambda: DEFAULT_NAME in texts):
        for name, text in one.texts.items():
            texts.setdefault(name, text)
    return texts
