"""Reads all copies of a chat template in a file, a GGUF, a model folder or a pack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from strata_pack.chat.render.template import RenderLimits
from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, read_json
from strata_pack.pack.layout import Pack, gguf_templates
from strata_pack.pack.paths import ADDITIONAL_DIR, DEFAULT_NAME, NAMED_KEY, TEMPLATE, is_pack
from strata_pack.weights.tokenizer.chat_templates import chat_templates

JSON_FILES = ("chat_template.json", "tokenizer_config.json")
JINJA_FILES = ("chat_template.jinja", TEMPLATE)


@dataclass(frozen=True)
class NamedTemplate:
    """The unchanged text of a template, and where it was found.

    ``name`` is "default" for the main template; transformers and llama.cpp use "tool_use" if the request has tools.
    """

    text: str
    where: str
    name: str = DEFAULT_NAME
    kind: str = "file"
    """"gguf" for a template in a GGUF."""

    @property
    def main(self) -> bool:
        """Whether it is the main template, used by default."""
        return self.name == DEFAULT_NAME


def read_copies(path: Path) -> list[NamedTemplate]:
    """Return every copy of the template in a file, GGUF, model folder or pack: the effective one comes first."""
    return [one for one in read_all(path) if one.main]


def read_all(path: Path) -> list[NamedTemplate]:
    """Return every template in a file, GGUF, model folder or pack: the first main one is effective.

    The order in a folder is ``chat_template.jinja``, the JSON files, the GGUF files.
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
    """Yield the templates of a tokenizer's JSON file."""
    data = read_json(path)
    value = data.get("chat_template") if isinstance(data, dict) else None
    for name, text in chat_templates(value, path).items():
        yield NamedTemplate(text, str(path) if name == DEFAULT_NAME else f"{path}: {name!r}", name)
