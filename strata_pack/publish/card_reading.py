"""Check that a model card has the metadata that the Hub needs and agrees with the files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from strata_pack.files import read_bytes
from strata_pack.pack.layout import Pack
from strata_pack.pack.model_card import CARD_LIMIT, card_head
from strata_pack.pack.paths import CARD
from strata_pack.pack.verification import FurtherCheck, checked
from strata_pack.report.model import Check
from strata_pack.weights.quantize.presets import PRESETS

TITLE = "the card names licence and base model, and agrees with the files"

_GGUF = re.compile(r"[\w.+-]+\.gguf")
_HASH = re.compile(r"\b[0-9a-fA-F]{64}\b")
_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s?(kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)\b")
_UNITS: dict[str, int] = {
    unit: factor
    for power, prefix in enumerate(("k", "M", "G", "T"), 1)
    for unit, factor in ((f"{prefix}B", 1000**power), (f"{prefix.upper()}iB", 1024**power))
} | {"KB": 1000}
_TOLERANCE = 0.02
"""Share by which a size in a card may differ from the file's, because of rounding to two digits."""


def card_check() -> FurtherCheck:
    """Return the check of a pack's card: ``README.md`` in the pack, or next to it in a folder of published packs."""

    def check(pack: Pack, _digests: Mapping[str, str]) -> Check:
        return checked("card", TITLE, lambda: list(_problems(pack)))

    return check


def _problems(pack: Pack) -> Iterator[str]:
    own = pack.path / CARD
    path = own if own.is_file() or not (pack.path.parent / CARD).is_file() else pack.path.parent / CARD
    if not path.is_file():
        yield f"there is no card: no {CARD} in the pack or next to it"
        return
    text = read_bytes(path, CARD_LIMIT).decode("utf-8", "replace")
    head = card_head(text, str(path))
    if not head:
        yield "the card has no head: no YAML between --- lines at its start"
    yield from _licence(pack, head)
    yield from _base_model(pack, head)
    yield from _tags(pack, head, alone=path == own)
    yield from _body(pack, text, alone=path == own)


def _licence(pack: Pack, head: Mapping[str, Any]) -> Iterator[str]:
    said, known = _words(head.get("license")), pack.manifest["source"].get("license")
    if not said:
        yield "the card names no licence (license)"
    elif known is not None and known["id"] not in [one.lower() for one in said]:
        yield f"the card says the licence is {', '.join(said)}, and the source's is {known['id']}"
    if "other" in said and not (head.get("license_name") and head.get("license_link")):
        yield "the card calls the licence 'other' without license_name and license_link"


def _base_model(pack: Pack, head: Mapping[str, Any]) -> Iterator[str]:
    said, known = _words(head.get("base_model")), pack.manifest["source"].get("base_models", [])
    if not said:
        yield "the card names no base model (base_model)"
    elif known and not {one.lower() for one in said} & {one.lower() for one in known}:
        yield f"the card says the base model is {', '.join(said)}, and the pack is made from {', '.join(known)}"
    relation = head.get("base_model_relation")
    if relation not in (None, "quantized"):
        yield f"the card says the pack is {str(relation)[:40]!r} of its base model, and it is quantized"


def _tags(pack: Pack, head: Mapping[str, Any], *, alone: bool) -> Iterator[str]:
    preset = pack.manifest["recipe"]["preset"]
    named = [one for one in _words(head.get("tags")) if one.upper() in PRESETS]
    if named and preset not in [one.upper() for one in named]:
        yield f"the card's tags name {', '.join(named)}, and the pack is {preset}"
    elif alone and len(named) > 1:
        yield f"the card's tags name {', '.join(named)}, and the pack is {preset} alone"


def _body(pack: Pack, text: str, *, alone: bool) -> Iterator[str]:
    entries = {entry["path"].rpartition("/")[2]: entry for entry in pack.manifest["files"]}
    template = pack.manifest["template"]["sha256"]
    for number, line in enumerate(text.splitlines(), 1):
        names = list(dict.fromkeys(_GGUF.findall(line)))
        if alone:
            yield from (
                f"line {number} of the card names {one}, which is not here" for one in names if one not in entries
            )
        listed = [name for name in entries if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line)]
        if len(listed) != 1:
            digests = _HASH.findall(line) if "template" in line.lower() and not listed else []
            if digests and template not in [one.lower() for one in digests]:
                yield f"line {number} of the card has another hash for the template"
            continue
        entry = entries[listed[0]]
        digests = [one.lower() for one in _HASH.findall(line)]
        if digests and entry["sha256"] not in digests:
            yield f"line {number} of the card has another hash for {listed[0]}"
        size = _SIZE.search(line)
        if size is not None and _is_another_size(size[1], size[2], entry["size"]):
            yield f"line {number} of the card says {size[0]} for {listed[0]}, which has {entry['size']} bytes"


def _is_another_size(number: str, unit: str, size: int) -> bool:
    """Return whether ``number unit`` differs from ``size`` bytes by more than rounding."""
    digits = len(number.partition(".")[2])
    said = float(number) * _UNITS[unit]
    step: float = _UNITS[unit] / 10**digits
    return abs(said - size) > max(_TOLERANCE * size, step)


def _words(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [one for one in values if isinstance(one, str) and one]
