"""Opens a pack, and reads a GGUF's template.

A pack is complete if and only if it has a ``manifest.json``; a folder in which a pack is being built is called
``<pack>.partial``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.pack.manifest import Manifest, read_manifest
from strata_pack.pack.paths import (
    DEFAULT_NAME,
    GOLDEN,
    MANIFEST,
    NAMED_KEY,
    PARTIAL_SUFFIX,
    TEMPLATE,
    TEMPLATE_KEY,
    member,
)
from strata_pack.pack.recovery import recover
from strata_pack.weights.gguf.file import GgufFile, MetaValue, shard_paths
from strata_pack.weights.tokenizer.chat_templates import refuse_too_many


@dataclass(frozen=True)
class Pack:
    """A finished pack: its folder (absolute) and its manifest."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path) -> Pack:
        """Open the pack in ``path``.

        Raises ``BadInput`` if the folder or the manifest is missing, or the manifest is invalid. An interrupted
        template installation is completed or undone first.
        """
        if not path.is_dir():
            raise BadInput("no such pack (a folder with a manifest.json)", where=path)
        recover(path)
        manifest_path = path / MANIFEST
        if not manifest_path.is_file():
            remedy = "run the same build again to finish it" if path.name.endswith(PARTIAL_SUFFIX) else None
            raise BadInput("is not a complete pack: manifest.json is missing", where=path, remedy=remedy)
        return cls(path.absolute(), read_manifest(manifest_path))

    @property
    def model_files(self) -> list[Path]:
        """The GGUF files in shard order."""
        return [member(self.path, name) for name in self.manifest["model"]["files"]]

    @property
    def projector_path(self) -> Path | None:
        """The vision projector, or ``None`` if the pack has none."""
        projector = self.manifest.get("projector")
        return None if projector is None else member(self.path, projector["file"])

    @property
    def template_path(self) -> Path:
        return member(self.path, TEMPLATE)

    @property
    def golden_path(self) -> Path | None:
        """The pack's golden cases, or ``None`` if it was built without."""
        return member(self.path, GOLDEN) if self.manifest["golden"] is not None else None


def gguf_template(path: Path) -> str | None:
    """Return the text under ``tokenizer.chat_template`` of a GGUF (of the first shard), or ``None``.

    An interrupted template installation is completed first.
    """
    return gguf_templates(path).get(DEFAULT_NAME)


def gguf_templates(path: Path) -> dict[str, str]:
    """Return all templates of a GGUF (of the first shard) by name; the main one is called "default".

    An interrupted template installation is completed first.
    """
    recover(path)
    with GgufFile.open(shard_paths(path)[0]) as gguf:
        return named_templates(gguf.metadata, gguf.path)


def named_templates(metadata: Mapping[str, MetaValue], where: str | Path) -> dict[str, str]:
    """Return the templates in a GGUF's metadata by name, the default one first; ``BadInput``, which names ``where``,
    for too many."""
    main = metadata.get(TEMPLATE_KEY)
    others = {key.removeprefix(NAMED_KEY): value for key, value in metadata.items() if key.startswith(NAMED_KEY)}
    others.pop(DEFAULT_NAME, None)
    found = others if main is None else {DEFAULT_NAME: main, **others}
    refuse_too_many(len(found), where)
    return {name: str(value.value) for name, value in found.items()}
