"""Reads a chat template from a shipped id, a file, a GGUF, a model folder, a pack or a Hub repository.

A model often has several copies of its template (``copies.py``). The precedence is that of transformers: a
``chat_template.jinja`` before a JSON file. Of a repository only small files and headers are downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.chat.library import find_shipped, status_of
from strata_pack.chat.render.template import normalize_source, read_template
from strata_pack.errors import BadInput
from strata_pack.pack.layout import Pack, gguf_template
from strata_pack.pack.paths import DEFAULT_NAME, TEMPLATE_KEY, TOOLS_NAME, is_pack
from strata_pack.pack.template.copies import JINJA_FILES, JSON_FILES, NamedTemplate, read_all, read_copies
from strata_pack.pack.template.target import CopyDict, TemplateCopy, tools_note
from strata_pack.pack.template.template_files import hub_template_files, hub_texts
from strata_pack.progress import Progress
from strata_pack.weights.source import HubSource, parse_source


@dataclass(frozen=True)
class TemplateSet:
    """The templates of one model that engines use: ``main``, and ``tools`` (or ``None``) for requests with tools."""

    main: NamedTemplate
    tools: NamedTemplate | None = None


@dataclass(frozen=True)
class FoundTemplates:
    """All templates of a file, folder or repository (not a pack or GGUF), as ``TemplateCopy`` describes each.

    ``status`` and ``sha256`` are those of the effective template, found in ``where``; ``None`` if there is none.
    """

    status: str
    sha256: str | None
    where: str | None
    copies: Sequence[CopyDict]
    notes: Sequence[str] = ()


_NONE_ON_HUB = "has no chat template, neither in its tokenizer files nor in a GGUF"


def load_template(target: str, progress: Progress | None = None) -> NamedTemplate:
    """Return the main template of ``target``; arguments and errors as for ``load_set``."""
    return load_set(target, progress).main


def load_set(target: str, progress: Progress | None = None) -> TemplateSet:
    """Return the templates that ``target`` names: the id of a shipped one, a path, or a hub id (``org/name``,
    ``hf://``).

    The texts are unchanged, with their line ends and byte order mark. Raises ``BadInput`` if there is no template.
    """
    shipped = find_shipped(target)
    if shipped is not None:
        return TemplateSet(NamedTemplate(shipped.source, target))
    if not Path(target).exists():
        if target.endswith((".jinja", ".jinja2", ".j2")):
            raise BadInput("no such file", where=target)
        source = parse_source(target)
        if isinstance(source, HubSource):
            return _from_hub(source, progress)
    found = _set_of(read_all(Path(target)))
    if found is None:
        raise _none_in(Path(target))
    return found


def _set_of(found: Sequence[NamedTemplate]) -> TemplateSet | None:
    """Return the first of each name: the main template, and the template for tools if its text differs.

    A set with only the template for tools has it as its main one.
    """
    tools = next((one for one in found if one.name == TOOLS_NAME), None)
    main = next((one for one in found if one.main), tools)
    if main is None:
        return None
    other = tools is not None and normalize_source(tools.text) != normalize_source(main.text)
    return TemplateSet(main, tools if other else None)


def find_templates(path: Path) -> FoundTemplates:
    """Return the templates of a file or model folder with their status; ``BadInput`` if there are none."""
    found = read_all(path)
    if not found:
        raise _none_in(path)
    return _described(found)


def find_hub_templates(source: HubSource, progress: Progress | None = None) -> FoundTemplates:
    """Return the templates of a repository, or of its file that ``source`` names; as ``find_templates``."""
    found = [
        NamedTemplate(text, f"hf://{source.repo_id}/{one.place}", name, "gguf" if one.is_gguf else "file")
        for one in hub_template_files(source, progress)
        for name, text in one.texts.items()
    ]
    if not found:
        raise BadInput(_NONE_ON_HUB, where=str(source))
    return _described(found)


def _described(templates: Sequence[NamedTemplate]) -> FoundTemplates:
    found = [TemplateCopy(one.where, one.kind, normalize_source(one.text), one.name) for one in templates]
    main = next((copy for copy in found if copy.main), None)
    return FoundTemplates(
        status=status_of(None if main is None else main.text),
        sha256=None if main is None else main.sha256,
        where=None if main is None else main.place,
        copies=[copy.to_dict() for copy in found],
        notes=[note for note in (tools_note(found),) if note],
    )


def read_pack_template(path: Path) -> str:
    """Return the chat template of a PACK, a GGUF, a model folder or a template file; ``BadInput`` if there is none."""
    if path.is_dir():
        if is_pack(path):
            return read_template(Pack.open(path).template_path)
        copies = read_copies(path)
        if not copies:
            raise _none_in(path)
        return normalize_source(copies[0].text)
    if path.suffix == ".gguf":
        text = gguf_template(path)
        if text is None:
            raise BadInput(f"has no {TEMPLATE_KEY}", where=path)
        return text
    return read_template(path)


def _none_in(path: Path) -> BadInput:
    remedy = f"a template can be in {', '.join((*JINJA_FILES, *JSON_FILES))} or a .gguf" if path.is_dir() else None
    return BadInput("has no chat template", where=path, remedy=remedy)


def _from_hub(source: HubSource, progress: Progress | None) -> TemplateSet:
    """Read the template from the tokenizer's files, or else from the headers of GGUF files."""
    texts = hub_texts(source, progress)
    found = _set_of([NamedTemplate(text, _place(source, name), name) for name, text in texts.items()])
    if found is None:
        raise BadInput(_NONE_ON_HUB, where=str(source))
    return found


def _place(source: HubSource, name: str) -> str:
    return str(source) if name == DEFAULT_NAME else f"{source}: {name}"
