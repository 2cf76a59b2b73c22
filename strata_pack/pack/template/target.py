"""Opens the target of an installation: a pack or a GGUF, with every copy of a template in it.

Nothing is written here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from strata_pack.chat.library import list_templates, status_of
from strata_pack.chat.render.template import normalize_source
from strata_pack.errors import BadInput
from strata_pack.files import CONFIG_LIMIT, read_bytes, read_json_object, sha256_text
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import (
    ADDITIONAL_DIR,
    DEFAULT_NAME,
    MODEL_DIR,
    NAMED_KEY,
    TEMPLATE,
    TEMPLATE_KEY,
    TOKENIZER_DIR,
    TOOLS_NAME,
    is_pack,
    member,
)
from strata_pack.pack.recovery import state_folder
from strata_pack.weights.gguf.file import GgufFile, open_shards, shard_paths
from strata_pack.weights.tokenizer.chat_templates import chat_templates, refuse_too_many

TOKENIZER_CONFIG = f"{TOKENIZER_DIR}/tokenizer_config.json"
NAMES_KEY = "tokenizer.chat_templates"
_MODELFILE = re.compile(r"^\s*FROM\s+\S", re.MULTILINE | re.IGNORECASE)
_RENDERER = re.compile(r"^\s*(RENDERER|PARSER)\s+\S+", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Reader:
    """An engine: which copy of the template it reads, what overrides that copy, and further notes."""

    engine: str
    copy: str
    override: str
    caveat: str = ""


READERS = (
    Reader("llama.cpp (llama-server, llama-cli)", "gguf", "--chat-template, --chat-template-file"),
    Reader("xllamacpp, llama-cpp-python, koboldcpp, node-llama-cpp", "gguf", "a template or chat handler in their API"),
    Reader("LM Studio", "gguf", "the model's prompt template setting"),
    Reader(
        "Ollama",
        "gguf",
        "TEMPLATE in the Modelfile",
        "RENDERER and PARSER in the Modelfile, or built in for the architecture (Qwen3.5 and later), ignore both; "
        "`ollama create` must be run again",
    ),
    Reader("Strata engine", "file", "its own template option"),
    Reader("transformers", "file", "chat_template= of apply_chat_template"),
    Reader("vLLM, SGLang", "file", "--chat-template"),
)
"""For each engine, the listed options override the model's own template."""


class CopyDict(TypedDict):
    """A ``TemplateCopy`` as JSON, with its identity in place of its text."""

    place: str
    name: str
    sha256: str
    status: str
    id: str | None


@dataclass(frozen=True)
class TemplateCopy:
    """One copy of a template in the target. ``place`` describes it for users; copies with the same ``name`` must be
    equal."""

    place: str
    kind: str
    text: str
    name: str = DEFAULT_NAME

    @property
    def main(self) -> bool:
        """Whether it is the main template, used by default."""
        return self.name == DEFAULT_NAME

    @property
    def sha256(self) -> str:
        return sha256_text(self.text)

    def to_dict(self) -> CopyDict:
        """Return identity and status, without the text."""
        digest = self.sha256
        known = next((shipped.id for shipped in list_templates() if shipped.sha256 == digest), None)
        return {
            "place": self.place,
            "name": self.name,
            "sha256": digest,
            "status": status_of(self.text),
            "id": known,
        }


def tools_note(copies: Sequence[TemplateCopy]) -> str | None:
    """Return a note on the template that engines use for requests with tools, if it is not the main one."""
    main = next((copy.text for copy in copies if copy.main), None)
    others = [copy for copy in copies if copy.name == TOOLS_NAME and copy.text != main]
    if not others:
        return None
    places = " and ".join(f"{copy.place} ({status_of(copy.text)})" for copy in others)
    readers = {"gguf": "llama.cpp"}
    who = " and ".join(sorted({readers.get(copy.kind, "transformers") for copy in others}))
    verb = "takes" if " and " not in who else "take"
    return f"for requests with tools, {who} {verb} {places} in place of the main template"


@dataclass(frozen=True)
class TemplateTarget:
    """``root`` is the folder that contains all changes; ``files`` are the GGUF files in shard order."""

    root: Path
    state_dir: Path
    files: tuple[Path, ...]
    pack: Pack | None
    copies: tuple[TemplateCopy, ...]

    @property
    def text(self) -> str | None:
        """The GGUF's main template, or ``None``."""
        return next((copy.text for copy in self.copies if copy.kind == "gguf" and copy.main), None)

    @property
    def disagreeing(self) -> list[TemplateCopy]:
        """The copies that differ from the first copy of the same name, which is the GGUF's if it has one."""
        return [copy for copy in self.copies if copy.text != self.first(copy.name).text]

    def first(self, name: str) -> TemplateCopy:
        """Return the first copy with the name ``name``."""
        return next(copy for copy in self.copies if copy.name == name)


def resolve(path: Path) -> tuple[Path, Path]:
    """Return (root, state folder) of a PACK or GGUF (any of its shards).

    Raises ``BadInput`` for anything else, and for a GGUF that is a link: its target may be in a cache and must not
    change.
    """
    if path.is_dir():
        return state_folder(path.resolve())
    if path.is_symlink():
        remedy = "copy it, or name the link's target if you may change that"
        raise BadInput(f"is a link to {os.readlink(path)}", where=path, remedy=remedy)
    if not path.exists():
        raise BadInput("no such pack or GGUF file", where=path)
    if path.suffix != ".gguf":
        raise BadInput(_why_not(path), where=path)
    return state_folder(shard_paths(path)[0])


def refuse_inside_pack(path: Path) -> None:
    """Raise ``BadInput`` for a GGUF of a pack: changed alone, it would no longer match the manifest."""
    root = path.absolute().parent.parent
    if not path.is_dir() and path.absolute().parent.name == MODEL_DIR and is_pack(root):
        raise BadInput(f"belongs to the pack {root}", where=path, remedy="name the pack, so that all copies change")


def _why_not(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    if not _MODELFILE.search(text):
        return "is neither a pack nor a .gguf file"
    built_in = _RENDERER.search(text)
    why = f"its {built_in[1].upper()} ignores any template" if built_in else "its TEMPLATE is in another language (Go)"
    return f"is an Ollama Modelfile, and {why}; install into the GGUF that FROM names, then `ollama create` again"


def open_linked(path: Path) -> TemplateTarget:
    """Open a GGUF that is a link, as in the Hub's cache, for reading only.

    The link's name is used, also to find the other shards (a cache names its files by hash). Raises ``BadInput`` for a
    broken link, or a link to something else.
    """
    if not path.exists():
        raise BadInput(f"is a link to {os.readlink(path)}, which does not exist", where=path)
    files = tuple(file.absolute() for file in shard_paths(path))
    root, state_dir = state_folder(files[0])
    with GgufFile.open(files[0]) as gguf:
        return TemplateTarget(root, state_dir, files, None, tuple(_gguf_copies(gguf)))


def open_target(path: Path) -> TemplateTarget:
    """Open a PACK or GGUF. An interrupted installation must have been recovered before.

    Raises ``BadInput`` for anything else, or a damaged target.
    """
    root, state_dir = resolve(path)
    pack = Pack.open(root) if path.is_dir() else None
    files = tuple(pack.model_files if pack is not None else (file.absolute() for file in shard_paths(path)))
    shards = open_shards(files[0])
    copies = [*_gguf_copies(shards[0]), *(_folder_copies(root) if pack is not None else ())]
    for shard in shards:
        shard.close()
    return TemplateTarget(root, state_dir, files, pack, tuple(copies))


def _gguf_copies(gguf: GgufFile) -> Iterator[TemplateCopy]:
    keys = [key for key in gguf.metadata if key == TEMPLATE_KEY or key.startswith(NAMED_KEY)]
    refuse_too_many(len(keys), gguf.path)
    for key in keys:
        text = gguf.text(key) or ""
        name = DEFAULT_NAME if key == TEMPLATE_KEY else key.removeprefix(NAMED_KEY)
        yield TemplateCopy(f"{gguf.path.name}: {key}", "gguf", text, name)


def _folder_copies(root: Path) -> Iterator[TemplateCopy]:
    path = member(root, TEMPLATE)
    if path.is_file():
        yield TemplateCopy(
            TEMPLATE, "file", normalize_source(read_bytes(path, CONFIG_LIMIT).decode("utf-8", "replace"))
        )
    config = read_tokenizer_config(root)
    value = None if config is None else config.get("chat_template")
    for name, text in chat_templates(value, root / TOKENIZER_CONFIG).items():
        place = f"{TOKENIZER_CONFIG}: chat_template" + ("" if isinstance(value, str) else f" {name!r}")
        yield TemplateCopy(place, "config", text, name)
    for file in sorted((root / TOKENIZER_DIR / ADDITIONAL_DIR).glob("*.jinja")):
        inside = f"{TOKENIZER_DIR}/{ADDITIONAL_DIR}/{file.name}"
        text = read_bytes(member(root, inside), CONFIG_LIMIT).decode("utf-8", "replace")
        yield TemplateCopy(inside, "additional", normalize_source(text), file.stem)


def modelfile_note(root: Path) -> str | None:
    """Return how an Ollama Modelfile in ``root`` overrides the template, or ``None`` if it does not."""
    path = root / "Modelfile"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(1 << 16).decode("utf-8", "replace")
    if built_in := _RENDERER.search(text):
        return f"{path.name} has {built_in[1].upper()}: Ollama will not use this template, whatever the GGUF holds"
    if re.search(r"^\s*TEMPLATE\s", text, re.MULTILINE | re.IGNORECASE):
        return f"{path.name} has a TEMPLATE: Ollama will use that one instead of the GGUF's"
    return None


def read_tokenizer_config(root: Path) -> dict[str, Any] | None:
    """Return the pack's tokenizer_config.json, or ``None`` if it has none; ``BadInput`` if it is not a JSON object."""
    path = member(root, TOKENIZER_CONFIG)
    if not path.is_file():
        return None
    return read_json_object(path)
