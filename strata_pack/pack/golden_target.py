"""Resolves the argument of a golden check: a shipped template, a pack, a GGUF or a file, and its cases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from strata_pack.chat.golden.cases import GoldenSuite, load_suite
from strata_pack.chat.library import ShippedTemplate, find_shipped, list_templates
from strata_pack.chat.render.template import normalize_source
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_text
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import is_pack
from strata_pack.pack.template.source import load_set, load_template


@dataclass(frozen=True)
class GoldenTarget:
    """A template text and the golden file or folder it is checked against. ``where`` is its name in messages.

    ``tools`` selects its cases: those with tools (true), without (false), or all (``None``). A model that has a
    separate template for tools is two targets.
    """

    where: str
    source: str
    golden: Path
    in_pack: bool = False
    tools: bool | None = None

    def suite(self) -> GoldenSuite:
        """Return the cases that engines render with this template; ``BadInput`` if the file holds none."""
        suite = load_suite(self.golden)
        if self.tools is None:
            return suite
        return replace(suite, cases=tuple(case for case in suite.cases if bool(case.tools) == self.tools))


def golden_targets(target: str | None, golden: Path | None) -> list[GoldenTarget]:
    """Return the targets that ``target`` names: the id of a shipped template, a PACK, a GGUF or a template file;
    ``None`` means all shipped templates.

    ``golden`` names cases that replace the target's own. Raises ``WrongUse`` if there are no cases, ``BadInput`` for an
    unknown target.
    """
    shipped = list_templates()
    if target is None:
        return [_of_shipped(one, golden) for one in shipped]
    by_id = find_shipped(target)
    if by_id is not None:
        return [_of_shipped(by_id, golden)]
    path = Path(target)
    if not path.exists():
        ids = ", ".join(one.id for one in shipped)
        raise BadInput(f"neither a file, a pack, nor one of the shipped templates ({ids})", where=target)
    found = load_set(target)
    sources = [normalize_source(one.text) for one in (found.main, found.tools) if one is not None]
    own = Pack.open(path).golden_path if is_pack(path) else None
    if own is None:
        digests = {sha256_text(source) for source in sources}
        own = next((one.golden_dir for one in shipped if one.sha256 in digests), None)
    cases = golden or own
    if cases is None:
        raise WrongUse("there are no golden cases for this template", where=target, remedy="name them with --golden")
    in_pack = golden is None and is_pack(path)
    if found.tools is None:
        return [GoldenTarget(target, sources[0], cases, in_pack)]
    both = ((found.main.where, False), (found.tools.where, True))
    return [
        GoldenTarget(where, source, cases, in_pack, tools) for (where, tools), source in zip(both, sources, strict=True)
    ]


def template_source(target: str) -> str:
    """Return the text of the template that ``target`` names: a shipped id, a PACK, a GGUF, a file or a hub id."""
    return normalize_source(load_template(target).text)


def _of_shipped(shipped: ShippedTemplate, golden: Path | None) -> GoldenTarget:
    return GoldenTarget(shipped.id, shipped.source, golden or shipped.golden_dir)
