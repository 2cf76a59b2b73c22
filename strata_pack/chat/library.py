"""Lists and loads the shipped templates: one folder each below ``templates/``, described by ``template.toml``.

A template text is recognised by its SHA-256 (UTF-8, LF, no byte order mark); ``status_of`` classifies it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from strata_pack.chat.render.text import read_template
from strata_pack.chat.repair.prelude import without_prelude
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import read_bytes, sha256_text
from strata_pack.resources import data_dir
from strata_pack.suggest import hint, unknown

TemplateState = Literal["repaired", "stock", "modified", "unknown", "missing"]

DESCRIPTION = "template.toml"
TEMPLATE = "chat_template.jinja"
MAX_DESCRIPTION_BYTES = 1 << 16


@dataclass(frozen=True)
class KnownText:
    """A published text that is known by its hash only: its status and its origin."""

    sha256: str
    origin: str


@dataclass(frozen=True)
class ShippedTemplate:
    """One template of the library. ``formats``: the formats of its tool calls ("xml", "json").

    ``markers`` are texts that identify a template of this family with an unknown hash; ``llama_server_caps``
    are the capability flags that llama-server must derive from it (``chat_template_caps`` of ``/props``). ``stock`` are
    the publishers' texts that it replaces, ``upstream`` texts that others repaired, ``earlier`` its own former texts.
    """

    id: str
    family: str
    title: str
    formats: tuple[str, ...]
    sha256: str
    source: str
    path: Path
    repairs: tuple[str, ...]
    golden_dir: Path
    stock: tuple[KnownText, ...]
    upstream: tuple[KnownText, ...]
    earlier: tuple[KnownText, ...]
    markers: tuple[str, ...]
    llama_server_caps: dict[str, bool]


def list_templates() -> list[ShippedTemplate]:
    """Return every shipped template, ordered by id."""
    folders = sorted(path.parent for path in data_dir("templates").glob(f"*/{DESCRIPTION}"))
    return [_load(folder) for folder in folders]


def find_shipped(name: str) -> ShippedTemplate | None:
    """Return the shipped template whose id is ``name``, or ``None``: then the argument is a path.

    In every command, an id takes precedence over a file or folder of that name in the working directory; ``./id`` is
    the file.
    """
    return next((shipped for shipped in list_templates() if shipped.id == name), None)


def named_template(name: str, *words: str) -> ShippedTemplate | Path:
    """Return the template that a ``--template`` option names: a shipped one by its id, or else an existing file.

    ``words`` are the other values of the option, for the message. Raises ``WrongUse`` for any other text.
    """
    shipped = find_shipped(name)
    if shipped is not None:
        return shipped
    path = Path(name)
    if path.is_file():
        return path
    names = [*(one.id for one in list_templates()), *words]
    problem = f"no template {name!r}: neither a file nor one of {', '.join(names)}{hint(name, names)}"
    raise WrongUse(problem, where="--template")


def load_shipped(template_id: str) -> ShippedTemplate:
    """Return the shipped template with this id; raises ``WrongUse``, which lists the existing ids."""
    found = {shipped.id: shipped for shipped in list_templates()}
    if template_id not in found:
        raise unknown("shipped template", template_id, found)
    return found[template_id]


def status_of(text: str | None) -> TemplateState:
    """Return the status of ``text``, a model's template.

    "repaired": a shipped template (also a former text of it), any template with our history repair prepended, or a
    known published repair; "stock": a publisher's template that a shipped one replaces; "modified": an unknown text of
    a known family; "unknown": anything else; "missing": no template.
    """
    if text is None or not text.strip():
        return "missing"
    if is_ours(text) or _listed(text, "upstream") is not None:
        return "repaired"
    if _listed(text, "stock") is not None:
        return "stock"
    return "modified" if any(all(marker in text for marker in one.markers) for one in list_templates()) else "unknown"


def is_ours(text: str) -> bool:
    """Return whether ``text`` is a template that the tool ships or shipped, or has the history repair prepended."""
    shipped = any(one.sha256 in _digests(text) for one in list_templates())
    return shipped or _listed(text, "earlier") is not None or without_prelude(text) is not None


def origin_of(text: str) -> str | None:
    """Return the origin of a text that is known by its hash, ``None`` for any other."""
    found = (_listed(text, kind) for kind in ("stock", "upstream", "earlier"))
    return next((one.origin for one in found if one is not None), None)


def _listed(text: str, kind: Literal["stock", "upstream", "earlier"]) -> KnownText | None:
    digests = _digests(text)
    return next(
        (one for shipped in list_templates() for one in getattr(shipped, kind) if one.sha256 in digests),
        None,
    )


def _digests(text: str) -> frozenset[str]:
    """Return the hashes to look up ``text`` by: engines ignore a newline at its end, so converters may drop it."""
    return frozenset(map(sha256_text, (text, text.removesuffix("\n"), f"{text}\n")))


def _known(data: dict[str, Any], key: str) -> tuple[KnownText, ...]:
    return tuple(KnownText(one["sha256"], one["origin"]) for one in data.get(key, []))


@cache
def _load(folder: Path) -> ShippedTemplate:
    described = folder / DESCRIPTION
    try:
        data: dict[str, Any] = tomllib.loads(read_bytes(described, MAX_DESCRIPTION_BYTES).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"is not TOML ({error})", where=described) from error
    path = folder / TEMPLATE
    source = read_template(path)
    try:
        shipped = ShippedTemplate(
            id=data["id"],
            family=data["family"],
            title=data["title"],
            formats=tuple(data["formats"]),
            sha256=data["sha256"],
            source=source,
            path=path,
            repairs=tuple(data["repairs"]),
            golden_dir=data_dir("golden") / data["id"],
            stock=_known(data, "stock"),
            upstream=_known(data, "upstream"),
            earlier=_known(data, "earlier"),
            markers=tuple(data["markers"]),
            llama_server_caps=dict(data.get("llama_server_caps", {})),
        )
    except KeyError as error:
        raise BadInput(f"lacks the key {error}", where=described) from error
    if shipped.sha256 != sha256_text(source):
        raise BadInput(
            f"says sha256 {shipped.sha256}, but {TEMPLATE} has {sha256_text(source)}",
            where=described,
            remedy="run the golden cases, then write the new hash into it",
        )
    return shipped
