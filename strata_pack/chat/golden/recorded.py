"""Records golden cases for a template that has none: generated conversations, each rendered once.

They do not define what the template should print, only what it printed when it was checked, so that a later change of
the template shows its effects.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata_pack.chat.engines.engines import Engine, available_engines
from strata_pack.chat.golden.cases import GoldenCase, GoldenSuite
from strata_pack.chat.render.template import TemplateError, TemplateRefused
from strata_pack.chat.repair.rules import CallForm
from strata_pack.chat.repair.suite import generate

RECORDED = "recorded"
DIFFERS = "it differed when the cases were recorded"


def record_suite(source: str, form: CallForm, engines: Sequence[Engine] | None = None) -> GoldenSuite:
    """Return the prompts of template ``source`` for the generated conversations with calls of ``form``.

    The first engine (jinja2) gives the expected result; the case lists engines that differ. Conversations on which the
    template fails other than by ``raise_exception`` are left out.
    """
    reference, *others = available_engines() if engines is None else engines
    cases = []
    for conversation in generate(form):
        inputs = conversation.inputs()
        outcome = _outcome(reference, source, inputs)
        if outcome is None:
            continue
        differs = {engine.name: DIFFERS for engine in others if _outcome(engine, source, inputs) != outcome}
        cases.append(
            GoldenCase(
                conversation.name,
                conversation.messages,
                conversation.tools,
                conversation.variables,
                expected=outcome[0],
                error=outcome[1],
                differs_on=differs,
            )
        )
    return GoldenSuite(RECORDED, tuple(cases))


def _outcome(engine: Engine, source: str, inputs: dict[str, object]) -> tuple[str | None, str | None] | None:
    """Return (prompt, None) or (None, the template's message); ``None`` if it failed otherwise."""
    try:
        return engine.render(source, inputs), None
    except TemplateRefused as error:
        return None, error.message
    except TemplateError:
        return None
