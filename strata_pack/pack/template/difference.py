"""Compares two templates, as texts and by their prompts for the same conversations.

A change of the text may change no prompt, and the change of one tag may change every prompt; a model sees the prompt.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from strata_pack.chat.engines.engines import Engine, Jinja2Engine
from strata_pack.chat.library import status_of
from strata_pack.chat.render.template import TemplateError, normalize_source
from strata_pack.chat.repair.prelude import without_prelude
from strata_pack.chat.repair.repair import RepairRefused, call_form
from strata_pack.chat.repair.suite import generate
from strata_pack.errors import BadInput, WrongUse
from strata_pack.files import sha256_text
from strata_pack.pack.layout import Pack
from strata_pack.pack.paths import DEFAULT_NAME, TOOLS_NAME, is_pack
from strata_pack.pack.template.base import base_models
from strata_pack.pack.template.copies import NamedTemplate
from strata_pack.pack.template.source import TemplateSet
from strata_pack.pack.template.template_files import hub_texts
from strata_pack.progress import Progress
from strata_pack.weights.source import HubSource


@dataclass(frozen=True)
class Rendering:
    """A conversation for which two templates render different prompts (or raise different errors)."""

    conversation: str
    first: str
    second: str


@dataclass(frozen=True)
class TemplateDifference:
    """What was compared and where it differs.

    ``name`` is the templates' name ("default", "tool_use"); ``text`` a unified diff, empty for equal texts;
    ``compared`` the number of conversations; ``note`` a known relation of the two.
    """

    name: str
    first: dict[str, Any]
    second: dict[str, Any]
    text: str
    compared: int
    renderings: tuple[Rendering, ...]
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return asdict(self)


def compare_sets(first: TemplateSet, second: TemplateSet) -> list[TemplateDifference]:
    """Compare the main templates, and the templates for tools if a side has one (a side without one uses its main
    one)."""
    pairs = [(DEFAULT_NAME, first.main, second.main)]
    if first.tools is not None or second.tools is not None:
        pairs.append((TOOLS_NAME, first.tools or first.main, second.tools or second.main))
    return [compare_templates(a, b, name) for name, a, b in pairs]


def compare_templates(first: NamedTemplate, second: NamedTemplate, name: str = DEFAULT_NAME) -> TemplateDifference:
    """Render the conversations of the repair proof with both templates on jinja2, and compare.

    Raises ``TemplateError`` for a template that does not compile.
    """
    a, b = normalize_source(first.text), normalize_source(second.text)
    engine = Jinja2Engine()
    conversations = [] if a == b else generate(_form((a, b), engine))
    prompts = [[_render(engine, text, one.inputs()) for one in conversations] for text in (a, b)]
    renderings = tuple(
        Rendering(one.name, *pair)
        for one, pair in zip(conversations, zip(*prompts, strict=True), strict=True)
        if pair[0] != pair[1]
    )
    lines = difflib.unified_diff(a.splitlines(), b.splitlines(), first.where, second.where, lineterm="", n=2)
    sides = [
        {"where": one.where, "sha256": sha256_text(text), "status": status_of(text)}
        for one, text in ((first, a), (second, b))
    ]
    return TemplateDifference(
        name, sides[0], sides[1], "\n".join(lines), len(conversations), renderings, _relation((first, a), (second, b))
    )


def vendor_set(pack: Path, progress: Progress | None = None) -> TemplateSet:
    """Return the current templates of the repository from which ``pack`` was built.

    Raises ``WrongUse`` for a pack that was not built from a repository, ``EnvironmentFailure`` if the Hub cannot be
    reached.
    """
    repo = Pack.open(pack).manifest["source"]["repo"] if is_pack(pack) else None
    if repo is None:
        raise WrongUse("was not built from a repository of the Hub", where=pack, remedy="name the vendor's id instead")
    return _hub_set(HubSource(repo), progress)


def base_set(target: str, progress: Progress | None = None) -> TemplateSet:
    """Return the templates of the base model that ``target`` names in its card, its header or its manifest.

    Raises ``WrongUse`` if it names none, ``EnvironmentFailure`` if the Hub is out of reach.
    """
    bases = base_models(target)
    if not bases:
        raise WrongUse(
            "names no base model, neither in a model card nor in a GGUF", where=target, remedy="give B, or --vendor"
        )
    return _hub_set(HubSource(bases[0]), progress)


def _hub_set(source: HubSource, progress: Progress | None) -> TemplateSet:
    texts = hub_texts(source, progress)
    if DEFAULT_NAME not in texts:
        raise BadInput("has no chat template now", where=str(source))
    tools = texts.get(TOOLS_NAME)
    main = NamedTemplate(texts[DEFAULT_NAME], str(source))
    return TemplateSet(main, None if tools is None else NamedTemplate(tools, f"{source}: {TOOLS_NAME}", TOOLS_NAME))


def _form(texts: Sequence[str], engine: Engine) -> Any:
    """Return the format of calls in the first of ``texts`` that has one, else "xml"."""
    for text in texts:
        try:
            if form := call_form(text, engine):
                return form
        except RepairRefused:
            continue
    return "xml"


def _render(engine: Engine, text: str, inputs: dict[str, Any]) -> str:
    try:
        return engine.render(text, inputs)
    except TemplateError as error:
        return f"(refused: {error})"


def _relation(first: tuple[NamedTemplate, str], second: tuple[NamedTemplate, str]) -> str | None:
    for (one, text), (other, bare) in ((first, second), (second, first)):
        if without_prelude(text) == bare:
            return f"{one.where} is {other.where} with history repair in front"
    return None
