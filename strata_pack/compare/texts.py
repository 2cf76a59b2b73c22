"""Loads the texts that models are compared over: the shipped ones, and the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.errors import BadInput
from strata_pack.files import read_bytes, sha256_text

TEXT_LIMIT = 64 << 20
PROSE = Path(__file__).parent / "compare_text.txt"
"""Chapter I of Lewis Carroll's "Alice's Adventures in Wonderland" (1865), in the public domain."""
AGENT = Path(__file__).parent / "compare_agent.txt"
"""Transcripts of an agent with tool calls, as the shipped template renders them; made for the project."""


@dataclass(frozen=True)
class Text:
    """A text to evaluate. ``parse_special``: special tokens spelled in it are read as such."""

    name: str
    content: str
    parse_special: bool = False

    @property
    def sha256(self) -> str:
        return sha256_text(self.content)

    @classmethod
    def read(cls, path: Path, *, parse_special: bool = False) -> Text:
        """Read a UTF-8 file; ``BadInput`` if it is none."""
        try:
            return cls(path.name, read_bytes(path, TEXT_LIMIT).decode("utf-8"), parse_special)
        except UnicodeDecodeError as error:
            raise BadInput(f"is not UTF-8 (byte {error.start})", where=path) from None


def texts(paths: Sequence[Path] = (), *, parse_special: bool = False) -> tuple[Text, ...]:
    """Return the texts in ``paths``; the two that ship, prose and agent, if there are none."""
    if not paths:
        return Text.read(PROSE), Text.read(AGENT, parse_special=True)
    return tuple(Text.read(path, parse_special=parse_special) for path in paths)
