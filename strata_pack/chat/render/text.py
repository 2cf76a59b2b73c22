"""Reads and decodes the text of a template file, without compiling it."""

from __future__ import annotations

from pathlib import Path

from strata_pack.chat.render.budget import RenderLimits
from strata_pack.errors import BadInput
from strata_pack.files import read_bytes


def normalize_source(text: str) -> str:
    """Return ``text`` without a byte order mark and with LF line ends."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def read_template(path: Path, *, limits: RenderLimits | None = None) -> str:
    """Return the template text in ``path``, with LF line ends and without a byte order mark.

    Raises ``BadInput`` if the file is missing, larger than ``limits.source_bytes``, or not UTF-8.
    """
    data = read_bytes(path, (limits or RenderLimits()).source_bytes)
    try:
        return normalize_source(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadInput(
            f"is not UTF-8 text (byte {error.start})", where=path, remedy="save the template as UTF-8"
        ) from error
