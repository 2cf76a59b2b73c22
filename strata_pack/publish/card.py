"""The model card of published packs: YAML metadata for the Hub, and the text for readers.

It is made from the packs' manifests and from measured figures, if there are any. It contains no time: the
same packs and figures give the same card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from strata_pack.errors import BadInput
from strata_pack.llama.memory import OVERHEAD, kv_cache_bytes
from strata_pack.pack.layout import Pack
from strata_pack.report.model import Point, Scatter
from strata_pack.report.picture import STYLE, drawing
from strata_pack.weights.gguf.file import GgufFile
from strata_pack.weights.preflight import size_text

CARD = "README.md"
PICTURE = "quality.svg"
SUMS = "SHA256SUMS"
CONTEXTS = (8192, 32768)
"""Context lengths in tokens for which the table gives the memory."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one pack: mean KL divergence from the source, and correct tool calls of all tasks."""

    kl_mean: float | None = None
    calls_right: int | None = None
    calls: int | None = None


@dataclass(frozen=True)
class CardFacts:
    """What a card says besides the packs: target, makers, signing key and measurements."""

    repo: str | None = None
    title: str | None = None
    author: str | None = None
    base_model: str | None = None
    fingerprint: str | None = None
    figures: Mapping[str, Figures] | None = None
    """By the pack's name."""

    def of(self, pack: Pack) -> Figures:
        """Return the measurements of ``pack``."""
        return (self.figures or {}).get(pack.path.name, Figures())


def card_files(packs: Sequence[Pack], facts: CardFacts) -> dict[str, bytes]:
    """Return the card, its picture (where two packs have a KL divergence) and the list of hashes, by their names."""
    # The largest first, so that the card does not depend on the order in which packs were named.
    packs = sorted(packs, key=lambda pack: (-_size(pack), pack.path.name))
    picture = _picture(packs, facts)
    files = {
        CARD: card_text(packs, facts, picture=picture is not None).encode(),
        SUMS: "".join(
            f"{entry['sha256']}  {pack.path.name}/{entry['path']}\n"
            for pack in packs
            for entry in pack.manifest["files"]
        ).encode(),
    }
    return files if picture is None else {**files, PICTURE: picture.encode()}


def card_head_of(packs: Sequence[Pack], facts: CardFacts) -> dict[str, Any]:
    """Return the card's YAML metadata."""
    source = packs[0].manifest["source"]
    bases = [facts.base_model] if facts.base_model else source.get("base_models", [])
    licence = source.get("license")
    head: dict[str, Any] = {}
    if licence is not None:
        head["license"] = licence["id"]
        if "name" in licence:
            head["license_name"] = licence["name"]
        if "link" in licence:
            head["license_link"] = licence["link"]
    if bases:
        head["base_model"] = bases[0] if len(bases) == 1 else list(bases)
        head["base_model_relation"] = "quantized"
    if facts.author:
        head["quantized_by"] = facts.author
    head["library_name"] = "gguf"
    head["pipeline_tag"] = (
        "image-text-to-text" if any(p.manifest.get("projector") for p in packs) else "text-generation"
    )
    head["tags"] = ["gguf", "llama.cpp", "strata-pack", *sorted({pack.manifest["recipe"]["preset"] for pack in packs})]
    if any(pack.manifest["recipe"]["imatrix_sha256"] for pack in packs):
        head["tags"].append("imatrix")
    return head


def card_text(packs: Sequence[Pack], facts: CardFacts, *, picture: bool) -> str:
    """Return the whole card."""
    head = yaml.safe_dump(card_head_of(packs, facts), sort_keys=False, allow_unicode=True)
    parts = [
        f"---\n{head}---\n",
        f"# {facts.title or _title(packs)}\n",
        _origin(packs, facts),
        "## Files\n",
        _table(packs, facts),
        *([f"![Size against KL divergence]({PICTURE})\n"] if picture else []),
        "## How to run\n",
        _how_to_run(packs, facts),
        "## The chat template\n",
        _template(packs),
        "## How to check it\n",
        _how_to_check(packs, facts),
    ]
    return "\n".join(parts)


def _title(packs: Sequence[Pack]) -> str:
    name = packs[0].manifest["model"]["name"]
    return f"{name.removesuffix('-' + packs[0].manifest['recipe']['preset'])} as GGUF"


def _origin(packs: Sequence[Pack], facts: CardFacts) -> str:
    source = packs[0].manifest["source"]
    bases = [facts.base_model] if facts.base_model else source.get("base_models", [])
    made = f"Made from {' and '.join(bases)}" if bases else f"Made from a local {source['kind']}"
    commit = "" if source["commit"] is None else f" at the commit `{source['commit'][:12]}` of {source['repo']}"
    return (
        f"{made}{commit} with strata-pack {packs[0].manifest['tool']}. Every folder is a pack: a model, its tokenizer, "
        "its chat template, a manifest of all of it, the statement of its origin and a bill of materials.\n"
    )


def _table(packs: Sequence[Pack], facts: CardFacts) -> str:
    headers = [
        "file",
        "size",
        "bits per weight",
        "KL divergence",
        "tool calls",
        *(f"memory, {c >> 10}k" for c in CONTEXTS),
    ]
    measured = [facts.of(pack) for pack in packs]
    shown = [
        True,
        True,
        True,
        any(one.kl_mean is not None for one in measured),
        any(one.calls for one in measured),
        *(True for _ in CONTEXTS),
    ]
    rows = [headers, ["---"] * len(headers)]
    rows += [_row(pack, one) for pack, one in zip(packs, measured, strict=True)]
    lines = ["| " + " | ".join(cell for cell, keep in zip(row, shown, strict=True) if keep) + " |" for row in rows]
    return "\n".join([*lines, ""])


def _row(pack: Pack, measured: Figures) -> list[str]:
    model = pack.manifest["model"]
    size = _size(pack)
    first = model["files"][0]
    label = first.rpartition("/")[2] + (f" and {len(model['files']) - 1} more" if len(model["files"]) > 1 else "")
    return [
        f"[{label}]({pack.path.name}/{first})",
        size_text(size),
        f"{model['bits_per_weight']:.2f}",
        "" if measured.kl_mean is None else f"{measured.kl_mean:.4f}",
        "" if not measured.calls else f"{measured.calls_right} of {measured.calls}",
        *_memory(pack, size),
    ]


def _size(pack: Pack) -> int:
    """Return the bytes of the pack's model."""
    sizes = {entry["path"]: entry["size"] for entry in pack.manifest["files"]}
    return sum(sizes[path] for path in pack.manifest["model"]["files"])


def _memory(pack: Pack, size: int) -> list[str]:
    with GgufFile.open(pack.model_files[0]) as gguf:
        values = {key: value.value for key, value in gguf.metadata.items() if not key.startswith("tokenizer.")}
    shown = []
    for context in CONTEXTS:
        try:
            shown.append(size_text(size + kv_cache_bytes(values, context) + OVERHEAD))
        except BadInput:
            shown.append("")
    return shown


def _how_to_run(packs: Sequence[Pack], facts: CardFacts) -> str:
    pack = packs[0]
    path, place = f"{pack.path.name}/{pack.manifest['model']['files'][0]}", facts.repo or "ORG/NAME"
    preset = pack.manifest["recipe"]["preset"]
    return "\n".join(
        [
            "```sh",
            f"llama-server -hf {place}:{preset} --jinja",
            f"ollama run hf.co/{place}:{preset}",
            f"lms get {place}",
            f"hf download {place} --include '{pack.path.name}/*' --local-dir . && strata-pack serve {pack.path.name}",
            "```\n",
            f"Other programs take the file `{path}` alone. `strata-pack export ollama` writes a Modelfile that leaves "
            "the template in charge.\n",
        ]
    )


def _template(packs: Sequence[Pack]) -> str:
    said = []
    for template in {pack.manifest["template"]["sha256"]: pack.manifest["template"] for pack in packs}.values():
        name = f"`{template['id']}`" if template["id"] else f"with the SHA-256 `{template['sha256'][:16]}`"
        said.append(f"The template {name} {_ORIGINS[template['origin']]}.")
    golden = [pack.manifest["golden"] for pack in packs if pack.manifest["golden"] is not None]
    if golden:
        said.append(f"It renders {golden[0]['cases']} recorded conversations byte for byte on {_engines(golden[0])}.")
    return " ".join(said) + "\n"


_ORIGINS = {
    "shipped": "is the repaired one that strata-pack ships: calls inside the thinking are not lost from the history",
    "repaired": "is the source's own with its history repaired: tool calls inside the thinking stay in it",
    "file": "was given by the publisher",
    "source": "is the source's own",
}


def _engines(golden: Any) -> str:
    return " and ".join(sorted(golden["engines"])) or "jinja2"


def _how_to_check(packs: Sequence[Pack], facts: CardFacts) -> str:
    name = packs[0].path.name
    lines = ["```sh", f"sha256sum -c {SUMS}"]
    if facts.fingerprint is None:
        lines += [f"strata-pack verify {name}", "```\n"]
        return "\n".join(lines)
    lines += [f"strata-pack verify {name} --require-signature --key key.pub", "```\n"]
    lines.append(
        f"Every pack is signed (OpenSSF Model Signing) with the key whose public half has the SHA-256 "
        f"`{facts.fingerprint}`; get that key from the publisher, not from here.\n"
    )
    return "\n".join(lines)


def _picture(packs: Sequence[Pack], facts: CardFacts) -> str | None:
    points = []
    for pack in packs:
        kl = facts.of(pack).kl_mean
        if kl is not None and kl > 0:
            points.append(Point(pack.manifest["recipe"]["preset"], round(_size(pack) / (1 << 30), 3), kl))
    if len(points) < 2:
        return None
    marked = [Point(p.name, p.x, p.y, not any(q.x <= p.x and q.y < p.y for q in points)) for p in points]
    return drawing(Scatter("Size against KL divergence", "GiB", "mean KL divergence", tuple(marked), log_y=True), STYLE)
