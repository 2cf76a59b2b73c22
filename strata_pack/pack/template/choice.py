"""Chooses the template of a pack and the golden cases to check it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_pack.chat.engines.engines import Engine
from strata_pack.chat.golden.check import GoldenSuite, load_suite
from strata_pack.chat.golden.recorded import record_suite
from strata_pack.chat.library import is_ours, list_templates, load_shipped, named_template
from strata_pack.chat.render.template import ChatTemplate, normalize_source, read_template
from strata_pack.chat.repair.repair import RepairRefused, repair_template
from strata_pack.chat.repair.rules import CallForm
from strata_pack.chat.triggers.check import NOT_FINISHED, Trigger, search_triggers
from strata_pack.errors import BadInput, CheckFailed
from strata_pack.files import sha256_text
from strata_pack.pack.manifest import TemplateEntry
from strata_pack.pack.paths import DEFAULT_NAME

AUTO = "auto"
KEEP = "keep"


@dataclass(frozen=True)
class ChosenTemplate:
    """``text`` goes into the pack, ``entry`` into its manifest; ``suite`` has its golden cases, if there are any;
    ``notes`` are messages of the search for triggers."""

    text: str
    entry: TemplateEntry
    suite: GoldenSuite | None
    notes: tuple[str, ...] = ()


def choose_template(
    option: str,
    source_text: str | None,
    golden: Path | None = None,
    *,
    allow_triggers: bool = False,
    engines: Sequence[Engine] | None = None,
) -> ChosenTemplate:
    """Return the template that ``--template option`` means for a source whose own template is ``source_text``.

    ``option``: "auto" (the source's own, with history repair added), "keep" (the source's own as it is), the id of a
    shipped template, or a file. ``golden`` names cases that replace the template's own; a repaired template, which
    has none of its own, gets those it was proved on. ``engines`` prove a repair (default: all of this process). Line
    ends become LF and a byte order mark is removed, because the copies in a pack are compared byte by byte.
    Raises ``HidesSomething`` for a template with a trigger, whatever ``option`` says, unless ``allow_triggers`` (the
    entry then lists them), ``WrongUse`` for an unknown id, ``BadInput`` if the source has none to keep, the file does
    not compile or the template cannot be repaired.
    """
    suite: GoldenSuite | None = None
    identity: str | None = None
    form: CallForm | None = None
    if option in (AUTO, KEEP):
        if source_text is None:
            remedy = f"give --template with an id ({_ids()}) or a file"
            raise BadInput("the source has no chat template", remedy=remedy)
        text = normalize_source(source_text)
        origin, identity = "source", _known_id(text)
        if option == AUTO and not is_ours(text):
            try:
                repaired = repair_template(text, engines)
            except RepairRefused as error:
                remedy = f"use --template keep, a file of your own, or one of {_ids()}"
                raise BadInput(f"the source's template cannot be repaired: {error.problem}", remedy=remedy) from error
            text = repaired.text
            origin = "repaired" if repaired.changed else "source"
            form = repaired.proof.form
    elif isinstance(named := named_template(option, AUTO, KEEP), Path):
        text, origin, identity = read_template(named), "file", None
    else:
        text, origin, identity = named.source, "shipped", named.id
    ChatTemplate(text)
    allowed, notes = _triggers(text, allow=allow_triggers)
    if golden is not None:
        suite = load_suite(golden)
    elif identity is not None:
        suite = load_suite(load_shipped(identity).golden_dir)
    elif form is not None:
        suite = record_suite(text, form, engines)
    replaced = None if source_text is None or source_text == text else sha256_text(source_text)
    entry = TemplateEntry(id=identity, sha256=sha256_text(text), origin=origin, replaced_sha256=replaced)  # type: ignore[typeddict-item]
    if allowed:
        entry["allowed_triggers"] = [trigger.sentence() for trigger in allowed]
    return ChosenTemplate(text, entry, suite, notes)


class HidesSomething(CheckFailed):
    """The template adds or hides text on a trigger; ``triggers`` are all that were found."""

    def __init__(self, triggers: Sequence[Trigger], name: str = DEFAULT_NAME) -> None:
        """``name`` is that of the template among those of its model."""
        first = triggers[0]
        place = "chat template" if name == DEFAULT_NAME else f"chat template {name}"
        more = f" (and {len(triggers) - 1} more)" if len(triggers) > 1 else ""
        super().__init__(
            f"{first.sentence()}{more}; nothing was changed",
            where=place if first.line is None else f"{place}, line {first.line}",
            remedy="see all of it with `strata-pack template lint --select ST605`; use another template or, if you "
            "have checked it and accept it, repeat with --allow-triggers",
        )
        self.triggers = tuple(triggers)


def check_variants(named: Mapping[str, str], *, allow_triggers: bool) -> tuple[str, ...]:
    """Search a source's templates of other names for triggers, and return notes; raises as ``choose_template``.

    A pack has one template and gets none of them, but a source that hides something in one is not to be trusted.
    """
    notes: list[str] = []
    for name, text in named.items():
        notes += _triggers(normalize_source(text), allow=allow_triggers, name=name)[1]
    return tuple(notes)


def _triggers(text: str, *, allow: bool, name: str = DEFAULT_NAME) -> tuple[tuple[Trigger, ...], tuple[str, ...]]:
    """Return the allowed triggers and notes for the user; a shipped template has none.

    Raises ``HidesSomething`` if the template has a trigger and ``allow`` is false.
    """
    if _known_id(text) is not None:
        return (), ()
    search = search_triggers(text)
    if search.errors and not allow:
        raise HidesSomething(search.errors, name)
    label = "chat template" if name == DEFAULT_NAME else f"chat template {name}"
    notes = [f"{label}: {trigger.sentence()} (allowed)" for trigger in search.errors]
    if not search.finished:
        notes.append(f"{label}: {NOT_FINISHED}")
    return search.errors, tuple(notes)


def _known_id(text: str) -> str | None:
    digest = sha256_text(text)
    return next((shipped.id for shipped in list_templates() if shipped.sha256 == digest), None)


def _ids() -> str:
    return ", ".join(shipped.id for shipped in list_templates())
