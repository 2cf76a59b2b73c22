"""Loads the texts for comparisons: the shipped ones, or the user's."""

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
"""Transcripts of an agent with tool calls, rendered by the shipped template; written for the project."""


@dataclass(frozen=True)
class Text:
    """A text to evaluate. ``parse_special``: special tokens spelled in it are tokenized as special."""

    name: str
    content: str
    parse_special: bool = False

    @property
    def sha256(self) -> str:
        return sha256_text(self.content)

    @classmethod
    def read(cls, path: Path, *, parse_special: bool = False) -> Text:
        """Read a UTF-8 file; ``BadInput`` for another encoding."""
        try:
            return cls(path.name, read_bytes(path, TEXT_LIMIT).decode("utf-8"), parse_special)
        except UnicodeDecodeError as error:
            raise BadInput(f"is not UTF-8 (byte {error.start})", where=path) from None


def texts(paths: Sequence[Path] = (), *, parse_special: bool = False) -> tuple[Text, ...]:
    """Return the texts in ``paths``, by default the two shipped ones (prose and agent transcripts)."""
    if not paths:
        return Text.read(PROSE), Text.read(AGENT, parse_special=True)
    return tuple(Text.read(path, parse_special=parse_special) for path in paths)
