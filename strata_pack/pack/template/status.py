"""Reports which templates a pack or GGUF holds, what they are, and which engines read which copy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

from strata_pack.chat.library import status_of
from strata_pack.files import sha256_text
from strata_pack.pack.journal import TemplateIdentityDict
from strata_pack.pack.recovery import backups_in, recover
from strata_pack.pack.template.target import (
    READERS,
    CopyDict,
    Reader,
    TemplateTarget,
    modelfile_note,
    open_linked,
    open_target,
    tools_note,
)


class ReaderDict(TypedDict):
    """An engine, the copy that it reads, and what overrides it."""

    engine: str
    reads: str
    overridden_by: str
    caveat: str


class TargetStatusDict(TypedDict):
    """A ``TargetStatus`` as JSON."""

    target: str
    kind: str
    status: str
    id: str | None
    sha256: str | None
    agree: bool
    copies: list[CopyDict]
    previous: int
    recovered: str | None
    notes: list[str]
    readers: list[ReaderDict]


@dataclass(frozen=True)
class TargetStatus:
    """The template of a pack or GGUF. ``status`` is that of the copy in the GGUF; ``previous`` is the number of
    installations that can be rolled back; ``recovered`` says what was completed of an interrupted installation."""

    target: str
    kind: str
    status: str
    id: str | None
    sha256: str | None
    agree: bool
    copies: list[CopyDict]
    previous: int
    recovered: str | None
    notes: list[str]
    readers: list[ReaderDict]

    def to_dict(self) -> TargetStatusDict:
        found: TargetStatusDict = asdict(self)  # type: ignore[assignment]
        return found


def template_status(path: Path) -> TargetStatus:
    """Return which templates a PACK or GGUF holds and what they are; completes an interrupted installation first."""
    linked = path.is_symlink() and not path.is_dir() and path.resolve().suffix != ".gguf"
    recovered = None if linked else recover(path)
    target = open_linked(path) if linked else open_target(path.resolve())
    text = target.text
    copies = [copy.to_dict() for copy in target.copies]
    own = next((copy for copy in copies if copy["sha256"] == template_identity(text)["sha256"]), None)
    notes = [note for note in (recovered, modelfile_note(target.files[0].parent)) if note]
    notes += [f"{copy.place} differs from {target.first(copy.name).place}" for copy in target.disagreeing]
    notes += [note for note in (tools_note(target.copies),) if note]
    return TargetStatus(
        target=str(path),
        kind="gguf" if target.pack is None else "pack",
        status=status_of(text),
        id=None if own is None else own["id"],
        sha256=template_identity(text)["sha256"],
        agree=not target.disagreeing,
        copies=copies,
        previous=len(backups_in(target.state_dir)),
        recovered=recovered,
        notes=notes,
        readers=readers_of(target),
    )


def readers_of(target: TemplateTarget) -> list[ReaderDict]:
    """Return which engines read which copy of this target's template."""
    kinds = {"gguf"} if target.pack is None else {"gguf", "file"}
    return [_reader(reader) for reader in READERS if reader.copy in kinds]


def _reader(reader: Reader) -> ReaderDict:
    copy = {"gguf": "tokenizer.chat_template in the GGUF", "file": "tokenizer/chat_template.jinja"}[reader.copy]
    return {"engine": reader.engine, "reads": copy, "overridden_by": reader.override, "caveat": reader.caveat}


def template_identity(text: str | None) -> TemplateIdentityDict:
    """Return hash and status of ``text``."""
    return {"sha256": None if text is None else sha256_text(text), "status": status_of(text)}
