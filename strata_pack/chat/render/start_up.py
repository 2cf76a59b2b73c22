"""Tells whether llama-server starts with a template: it renders one conversation then, and gives up if that is refused.

Where a template refuses a system message, llama-server puts its text into the question (b11434), and it goes on where
jinja2 fails on a value that is null or not there: neither keeps it from starting.
"""

from __future__ import annotations

from strata_pack.chat.render.failures import TemplateError, TemplateLimit, TemplateRefused
from strata_pack.chat.render.template import ChatTemplate

_SYSTEM, _QUESTION = "You are here.", "Say one."
_REST = [{"role": "assistant", "content": "One."}, {"role": "user", "content": "Say two."}]
START_UP = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _QUESTION}, *_REST]
WITHOUT_SYSTEM = [{"role": "user", "content": f"{_SYSTEM}\n{_QUESTION}"}, *_REST]


def start_up_failure(template: ChatTemplate, *, on_any_engine: bool = False) -> TemplateError | None:
    """Return why llama-server would not start with ``template``, ``None`` if it would.

    ``on_any_engine`` counts what fails on jinja2 alone, too.
    """
    failure: TemplateError | None = None
    for messages in (START_UP, WITHOUT_SYSTEM):
        try:
            template.render(messages, add_generation_prompt=True)
        except TemplateError as error:
            if not on_any_engine and not isinstance(error, (TemplateLimit, TemplateRefused)):
                return None
            failure = failure or error
        else:
            return None
    return failure
