"""Write a first ``release.toml`` from a source's format, size, template and licence."""

from __future__ import annotations

import json
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.library import status_of
from strata_pack.errors import BadInput, escaped
from strata_pack.files import read_bytes, read_state
from strata_pack.pack.model_card import CARD_LIMIT, card_head
from strata_pack.pack.model_source import folder_template, model_name
from strata_pack.progress import Progress, Silent
from strata_pack.weights.hub.connection import connect
from strata_pack.weights.hub.fetch import look
from strata_pack.weights.hub.small import SmallFiles
from strata_pack.weights.local_weights import find_weights
from strata_pack.weights.preflight import size_text
from strata_pack.weights.source import HubSource, LocalGguf, parse_source

SMALL = ("config.json", "README.md", "chat_template.jinja", "chat_template.json", "tokenizer_config.json")
_GGUF = re.compile(r"(?<=.)[-_.]gguf$", re.IGNORECASE)

STATES = {
    "repaired": "the repaired one that ships; auto keeps it",
    "stock": "the vendor's, for which a repair ships; auto adds it",
    "modified": "a changed copy of a shipped one; auto repairs what it can",
    "unknown": "not one that is known; auto repairs it if it is of the family, else use keep",
}


@dataclass(frozen=True)
class SourceSummary:
    """Facts about a source. ``weights`` in bytes, ``licence`` as its card names it."""

    name: str
    format: str
    weights: int
    architecture: str | None
    template: str | None
    licence: str | None
    gated: str | None = None


def look_at(text: str, progress: Progress | None = None) -> SourceSummary:
    """Inspect a source without downloading its weights. Raises as ``fetch`` does."""
    source = parse_source(text)
    if isinstance(source, LocalGguf):
        return SourceSummary(model_name(source.path.stem), "gguf", source.path.stat().st_size, None, "", None)
    if isinstance(source, HubSource):
        with tempfile.TemporaryDirectory(prefix="strata-init-") as name:
            folder = Path(name)
            plan = look(source.repo_id, source.revision, folder, path=source.path, progress=progress or Silent())
            small = SmallFiles(connect(), plan.tree, folder, offline=False)
            for file in plan.selection.files:
                if file.path in SMALL:
                    (folder / file.path).write_bytes(small.read(file.path))
            weights = sum(file.size for file in plan.selection.files if file.path in plan.selection.weights.files)
            return _of_folder(folder, source.repo_id.partition("/")[2], plan.selection.weights.format, weights)
    found = find_weights(source.path)
    size = sum((source.path / name).stat().st_size for name in found.files)
    return _of_folder(source.path, source.path.resolve().name, found.format, size)


def _of_folder(folder: Path, name: str, format: str, weights: int) -> SourceSummary:
    config = read_state(folder / "config.json")
    kinds = config.get("architectures") or [config.get("model_type")]
    card = _card(folder / "README.md")
    licence = card.get("license_name") or card.get("license")
    gate = card.get("extra_gated_prompt")
    return SourceSummary(
        name=_GGUF.sub("", model_name(name)),
        format=format,
        weights=weights,
        architecture=str(kinds[0]) if isinstance(kinds, list) and kinds and kinds[0] else None,
        template=folder_template(folder) or ("" if format == "gguf" else None),
        licence=licence if isinstance(licence, str) else None,
        gated=gate.strip().splitlines()[0][:200] if isinstance(gate, str) and gate.strip() else None,
    )


def _card(path: Path) -> dict[str, Any]:
    if path.is_file():
        with suppress(BadInput):
            return card_head(read_bytes(path, CARD_LIMIT).decode("utf-8", "replace"), str(path))
    return {}


def release_text(text: str, looked: SourceSummary) -> str:
    """Return the release file for the source ``text``, with a comment on every choice."""
    fits = size_text(looked.weights // 3)
    facts = [
        f"{looked.format}, {size_text(looked.weights)} of weights"
        + f" ({looked.architecture})" * bool(looked.architecture)
    ]
    if looked.licence:
        facts.append(f"licence: {looked.licence}")
    if looked.gated:
        facts.append(f"gated: {looked.gated}")
    template = _template_line(looked)
    # Some of it is the words of whoever made the source: none of them may become a line of the file.
    said = "\n".join(f"# {escaped(fact)}" for fact in facts)
    return f"""\
# Made by `strata-pack release init`. All keys: docs/release.md.
# `strata-pack release plan` shows what this will do, `release run` does it.

[release]
name = {json.dumps(looked.name)}
source = {json.dumps(text)}
{said}
out = "packs"          # packs, reports and the work lie here
template = "auto"      # {template}
# allow_requantize = true   # a source that is quantized already loses more when it is quantized again

[imatrix]              # better small quantizations; remove the table to do without
# text = ["calibration.txt"]   # your own texts; without them the text that ships is used

[[pack]]
quant = "Q8_0"

[[pack]]
quant = "Q4_K_M"

# [[pack]]
# fit = "{fits}"       # the best mix of that size

[gates]                # a pack that fails is built and reported, and not published
golden = true          # every golden case renders byte for byte
# smoke = true         # scenarios on a real server (minutes a pack)
kl_mean = 0.1          # nats, mean divergence from the source at most
# calls = 0.95         # right tool calls, as a share of the source's

# [publish]
# repo = "me/{looked.name}-GGUF"
# sign = "key.pem"     # see `strata-pack keygen`
"""


def _template_line(looked: SourceSummary) -> str:
    if looked.template is None:
        return "the source has none: give an id (`strata-pack template list`) or a file"
    if not looked.template:
        return "the one in the GGUF, repaired if it can be"
    return STATES.get(status_of(looked.template), "the source's own, repaired if it can be")
