"""Detects whether and in which format a template writes calls, and how a reply to its prompts begins.

The template's text is not examined: a probe conversation is rendered, and the prompt shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.chat.render.template import TemplateError, in_thinking
from strata_pack.chat.repair.repair import RepairRefused, call_form
from strata_pack.parsing.dialect import THINK_OPEN
from strata_pack.smoke.data_files import Form, form_of

THINKING_START = f"{THINK_OPEN}\n"

Missing = str
"""Why a template cannot be tested with calls, as a sentence."""


@dataclass(frozen=True)
class CallSupport:
    """``form`` is the format in which calls are replayed; ``missing`` says why the template itself writes none."""

    form: Form
    missing: Missing | None = None

    @property
    def calls(self) -> bool:
        """Whether the template writes the calls of an agent's history."""
        return self.missing is None


@cache
def call_support(template: str) -> CallSupport:
    """Return whether ``template`` writes calls, by rendering one conversation with a call."""
    try:
        found = call_form(template, Jinja2Engine())
    except RepairRefused as refused:
        return CallSupport(form_of(template), refused.missing)
    except TemplateError as error:
        return CallSupport(form_of(template), str(error))
    if found is None:
        return CallSupport("xml", "it writes no tool calls: a call of the history does not reach the prompt")
    return CallSupport(found)


def beginning(prompt: str) -> str:
    """Return the beginning of a thinking model's reply to ``prompt``: ``<think>``, unless the prompt ends with it."""
    return "" if in_thinking(prompt) else THINKING_START
