"""Reads a chat template from an id of ours, a file, a GGUF, a model folder, a pack or a Hub repository.

A model often carries its template several times; ``read_copies`` returns all of them, for somebody to compare, and
``read_all`` those that a tokenizer has under other names too. The order is that of transformers: what lies in a
``chat_template.jinja`` goes before what a JSON file says.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_pack.chat.library import find_shipped, status_of
from strata_pack.chat.render.template import RenderLimits, normalize_source, read_template
from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, read_json
from strata_pack.pack.layout import Pack, gguf_template, gguf_templates
from strata_pack.pack.paths import ADDITIONAL_DIR, DEFAULT_NAME, NAMED_KEY, TEMPLATE, TEMPLATE_KEY, TOOLS_NAME, is_pack
from strata_pack.pack.template.target import TemplateCopy, tools_note
from strata_pack.progress import Progress
from strata_pack.weights.source import HubSource, parse_source

JSON_FILES = ("chat_template.json", "tokenizer_config.json")
JINJA_FILES = ("chat_template.jinja", TEMPLATE)


@dataclass(frozen=True)
class NamedTemplate:
    """A template's text, as it lies there, and where that is.

    ``name`` is "default" for the main one; transformers and llama.cpp use "tool_use" when there are tools.
    """

    text: str
    where: str
    name: str = DEFAULT_NAME
    kind: str = "file"
    """"gguf" for one that lies in a GGUF."""

    @property
    def main(self) -> bool:
        """Whether it is the one that is used where nothing else is asked for."""
        return self.name == DEFAULT_NAME


@dataclass(frozen=True)
class TemplateSet:
    """The templates that engines use of one model: ``main``, and ``tools`` where tools are given (or ``None``)."""

    main: NamedTemplate
    tools: NamedTemplate | None = None


@dataclass(frozen=True)
class FoundTemplates:
    """All templates that lie in one place (but not in a pack or GGUF), each as ``TemplateCopy`` describes it.

    ``status`` and ``sha256`` are those of the one that counts, which lies in ``where``; ``None`` if none does.
    """

    status: str
    sha256: str | None
    where: str | None
    copies: Sequence[dict[str, Any]]
    notes: Sequence[str] = ()


def load_template(target: str, progress: Progress | None = None) -> NamedTemplate:
    """Return the main template of what ``target`` names; as ``load_set``."""
    return load_set(target, progress).main


def load_set(target: str, progress: Progress | None = None) -> TemplateSet:
    """Return the templates that ``target`` names: the id of a shipped one, a path, or a hub id (``org/name``, ``hf://``).

    The texts are not cleaned: line ends and a byte order mark are still there. Raises ``BadInput`` if there is none.
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
    """Return the first of each name: the main one and the one for tools, where it is another text."""
    main = next((one for one in found if one.main), None)
    if main is None:
        return None
    tools = next((one for one in found if one.name == TOOLS_NAME), None)
    other = tools is not None and normalize_source(tools.text) != normalize_source(main.text)
    return TemplateSet(main, tools if other else None)


def find_templates(path: Path) -> FoundTemplates:
    """Return which templates a file or model folder holds and what they are; ``BadInput`` if there are none."""
    found = [TemplateCopy(one.where, one.kind, normalize_source(one.text), one.name) for one in read_all(path)]
    if not found:
        raise _none_in(path)
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
    remedy = f"one can lie in {', '.join((*JINJA_FILES, *JSON_FILES))} or a .gguf" if path.is_dir() else None
    return BadInput("holds no chat template", where=path, remedy=remedy)


def read_copies(path: Path) -> list[NamedTemplate]:
    """Return every copy of the template in a file, GGUF, model folder or pack: the one that counts comes first."""
    return [one for one in read_all(path) if one.main]


def read_all(path: Path) -> list[NamedTemplate]:
    """Return every template in a file, GGUF, model folder or pack: of the main ones, the first counts.

    In a folder that is ``chat_template.jinja``, then the JSON files, then the GGUF files.
    """
    if not path.is_dir():
        if path.suffix.lower() == ".gguf":
            return list(_from_gguf(path))
        if path.suffix.lower() == ".json":
            return list(_from_json(path))
        return [NamedTemplate(_text(path), str(path))]
    if is_pack(path):
        pack = Pack.open(path)
        ggufs = pack.model_files[:1]
    else:
        ggufs = sorted(file for file in path.glob("*.gguf") if "mmproj" not in file.name)[:1]
    copies = [NamedTemplate(_text(path / name), str(path / name)) for name in JINJA_FILES if (path / name).is_file()]
    for folder in (path, path / "tokenizer"):
        additional = sorted((folder / ADDITIONAL_DIR).glob("*.jinja"))
        copies += [NamedTemplate(_text(file), str(file), file.stem) for file in additional]
        for name in JSON_FILES:
            if (folder / name).is_file():
                copies += _from_json(folder / name)
    for file in ggufs:
        copies += _from_gguf(file)
    return copies


def _from_gguf(path: Path) -> Iterator[NamedTemplate]:
    for name, text in gguf_templates(path).items():
        yield NamedTemplate(text, str(path) if name == DEFAULT_NAME else f"{path}: {NAMED_KEY}{name}", name, "gguf")


def _text(path: Path) -> str:
    try:
        return read_bytes(path, RenderLimits().source_bytes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"is not UTF-8 text (byte {error.start})", where=path, remedy="save the template as UTF-8"
        ) from error


def _from_json(path: Path) -> Iterator[NamedTemplate]:
    """Yield the templates of a tokenizer's JSON file: a text, or a list of named ones of which the default counts."""
    data = read_json(path)
    value = data.get("chat_template") if isinstance(data, dict) else None
    named = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else [{"template": value}]
    default = next((one for one in reversed(named) if one.get("name", DEFAULT_NAME) == DEFAULT_NAME), None)
    for one in named:
        if isinstance(text := one.get("template"), str):
            name = DEFAULT_NAME if one is default else str(one.get("name"))
            yield NamedTemplate(text, str(path) if one is default else f"{path}: {one.get('name')!r}", name)


class _Enough(Exception):
    """Stops a fetch before the weights."""


def _from_hub(source: HubSource, progress: Progress | None) -> TemplateSet:
    """Fetch config and tokenizer alone, and read the template out of them."""
    from strata_pack.weights.hub.fetch import fetch_repo

    def stop(_folder: Path) -> None:
        raise _Enough

    with tempfile.TemporaryDirectory(prefix="strata-template-") as name:
        folder = Path(name)
        with contextlib.suppress(_Enough):
            fetch_repo(
                source.repo_id, source.revision, folder, path=source.path, progress=progress, before_weights=stop
            )
        found = _set_of(read_all(folder))
        if found is None:
            remedy = "fetch the model and give the .gguf file"
            raise BadInput("has no chat template in its tokenizer files", where=str(source), remedy=remedy)
        tools = found.tools
        return TemplateSet(
            replace(found.main, where=str(source)),
            None if tools is None else replace(tools, where=f"{source}: {TOOLS_NAME}"),
        )
