"""Selects the files that a build needs: weights in one format, tokenizer, config, template.

The selection depends on names and a checkpoint's index, so the same rules apply to repositories and local folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal
from unicodedata import normalize

from strata_pack.errors import BadInput
from strata_pack.weights.checkpoint_index import NoModel, checkpoint_files
from strata_pack.weights.hub.tree import RepoFile, RepoTree
from strata_pack.weights.tokenizer.chat_templates import refuse_too_many

SIDE_FILES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "tokenizer.model",
        "chat_template.jinja",
        "chat_template.json",
        "preprocessor_config.json",
        "processor_config.json",
        "README.md",
    }
)
"""Beside the weights. README.md because its head is the model card: licence, base models and languages go into GGUF."""

ADDITIONAL_TEMPLATE = re.compile(r"additional_chat_templates/[^/]+\.jinja")
"""Named templates, as transformers stores them next to ``chat_template.jinja``."""

SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<ext>gguf|safetensors)")
_NOT_A_MODEL = re.compile(r"(?i)(^|[/._-])(mmproj|imatrix)[^/]*\.gguf$")
_SHOWN = 8

ReadFile = Callable[[str], bytes]
"""Returns the bytes of a small file by its name."""


@dataclass(frozen=True)
class Weights:
    """The weights of one model: their format and the file names, shards in order (``index`` only for safetensors)."""

    format: Literal["safetensors", "gguf"]
    files: tuple[str, ...]
    index: str | None = None


@dataclass(frozen=True)
class Selection:
    """The files of a repository that a build needs; ``skipped`` are the others."""

    weights: Weights
    files: tuple[RepoFile, ...]
    skipped: tuple[RepoFile, ...]

    @property
    def nbytes(self) -> int:
        """The size of all selected files."""
        return sum(file.size for file in self.files)


def select_files(tree: RepoTree, path: str | None, read: ReadFile) -> Selection:
    """Return the files of ``tree`` that a build needs.

    ``path`` restricts it to one GGUF (any of its shards) or to one folder. Without it, safetensors take precedence over
    GGUF, and a repository with several GGUF models is refused with their names. ``read`` returns the bytes of a small
    file of the repository, such as a checkpoint's index.

    ``BadInput`` for selected names that differ only in case, on every disk: the same source gives the same files
    everywhere, and the folder can be copied to a disk that would merge them.
    """
    where = f"{tree.repo_id}@{tree.revision}"
    weights = choose_weights((file.path for file in tree.files), path, where, read)
    folder = _folder_of(weights.index or weights.files[0])
    wanted = {*weights.files, *([weights.index] if weights.index else [])}
    present = {file.path for file in tree.files}
    for name in SIDE_FILES:
        # A GGUF in a subfolder usually leaves its config and tokenizer at the top of the repository.
        near = folder + name
        wanted.add(near if near in present else name)
    templates = {name for name in present if ADDITIONAL_TEMPLATE.fullmatch(name.removeprefix(folder))}
    refuse_too_many(len(templates), where)
    wanted |= templates
    files = tuple(file for file in tree.files if file.path in wanted)
    _refuse_merged([file.path for file in files], where)
    return Selection(weights, files, tuple(file for file in tree.files if file.path not in wanted))


def _refuse_merged(names: Iterable[str], where: str) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(normalize("NFC", name).casefold(), name)
        if other != name:
            raise BadInput(
                f"the files {other[:80]} and {name[:80]} are one file on a disk that ignores case",
                where=where,
                remedy="rename one of them in the repository",
            )


def choose_weights(names: Iterable[str], path: str | None, where: str, read: ReadFile) -> Weights:
    """Return the weights among ``names``; ``BadInput``, which names ``where``, if there is not exactly one model."""
    names = sorted(names)
    if path is not None and path in names:
        if not path.endswith(".gguf"):
            raise BadInput(f"{path} is not a GGUF file", where=where, remedy="name a .gguf, a folder, or nothing")
        return Weights("gguf", _shards_of(path, names, where))
    folder = "" if path is None else path.rstrip("/") + "/"
    inside = [name for name in names if name.startswith(folder)]
    if path is not None and not inside:
        raise BadInput(f"has no file or folder {path}", where=where, remedy="check its file list")
    return _safetensors(inside, folder, where, read) or _single_gguf(
        [name for name in inside if path is None or "/" not in name[len(folder) :]], where
    )


def _safetensors(inside: list[str], folder: str, where: str, read: ReadFile) -> Weights | None:
    relative = [name[len(folder) :] for name in inside]
    ggufs = any(name.endswith(".gguf") for name in relative)
    try:
        index, files = checkpoint_files(relative, lambda name: read(folder + name), where)
    except NoModel:
        # Adapters and similar files do not prevent a GGUF next to them from being the model.
        if not ggufs:
            raise
        return None
    if not files:
        return None
    return Weights("safetensors", tuple(folder + name for name in files), None if index is None else folder + index)


def gguf_models(names: Iterable[str], path: str | None, where: str) -> list[tuple[str, ...]]:
    """Return the files of each GGUF model among ``names``, or of those that ``path`` (a file or a folder) names.

    Projectors and importance matrices are not models. Raises ``BadInput`` if there is none, or a shard is missing.
    """
    names = sorted(names)
    if path is not None and path in names:
        return [choose_weights(names, path, where, lambda _name: b"").files]
    inside = [name for name in names if path is None or name.startswith(f"{path}/")]
    if path is not None and not inside:
        raise BadInput(f"has no file or folder {path}", where=where, remedy="check its file list")
    models = [name for name in inside if name.lower().endswith(".gguf") and not _NOT_A_MODEL.search(name)]
    firsts = [name for name in models if (shard := SHARD_NAME.fullmatch(name)) is None or int(shard["number"]) == 1]
    if not firsts:
        remedy = "look at a checkpoint with `strata-pack build --dry-run`"
        raise BadInput("has no GGUF model", where=where, remedy=remedy)
    return [_shards_of(name, names, where) for name in firsts]


def _single_gguf(names: list[str], where: str) -> Weights:
    models = [name for name in names if name.endswith(".gguf") and not _NOT_A_MODEL.search(name)]
    firsts = [name for name in models if (shard := SHARD_NAME.fullmatch(name)) is None or int(shard["number"]) == 1]
    if len(firsts) == 1:
        return Weights("gguf", _shards_of(firsts[0], names, where))
    if firsts:
        shown = ", ".join(firsts[:_SHOWN]) + (f" and {len(firsts) - _SHOWN} more" if len(firsts) > _SHOWN else "")
        raise BadInput(
            f"has {len(firsts)} GGUF models ({shown})",
            where=where,
            remedy="name one: its path, or hf://org/name/file.gguf",
        )
    if models:
        raise BadInput(f"{models[0]} is a shard whose first shard is missing", where=where)
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickled:
        raise BadInput(
            f"has only pickled weights ({pickled[0]})", where=where, remedy="use a safetensors or GGUF version"
        )
    raise BadInput("has no safetensors and no GGUF weights", where=where, remedy="choose a model repository")


def _shards_of(name: str, names: Iterable[str], where: str) -> tuple[str, ...]:
    shard = SHARD_NAME.fullmatch(name)
    if shard is None:
        return (name,)
    count = int(shard["count"])
    present = set(names)
    if not 1 <= count <= len(present):
        raise BadInput(f"{name} claims {count} shards, the repository has fewer files", where=where)
    wanted = tuple(f"{shard['stem']}-{n:05d}-of-{count:05d}.{shard['ext']}" for n in range(1, count + 1))
    for missing in wanted:
        if missing not in present:
            raise BadInput(f"the shard {missing} is missing", where=where, remedy="the repository is incomplete")
    return wanted


def _folder_of(name: str) -> str:
    head, slash, _ = name.rpartition("/")
    return head + slash
