"""Defines how a template, or the engine that runs it, fails."""

from __future__ import annotations

from strata_pack.errors import BadInput


class TemplateError(BadInput):
    """A template that does not compile or does not run. ``line`` is 1-based, ``None`` where it is not known."""

    def __init__(self, cause: str, *, line: int | None = None, remedy: str | None = None) -> None:
        self.cause = cause
        self.line = line
        where = "chat template" if line is None else f"chat template, line {line}"
        super().__init__(cause, where=where, remedy=remedy)


class TemplateLimit(TemplateError):
    """A template that needs more time, memory or output than its ``Limits`` allow."""


class TemplateRefused(TemplateError):
    """The template called ``raise_exception``; ``message`` is the text it gave."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        self.message = message
        super().__init__(f"refuses the conversation: {message}", line=line)


class RequestUnseen(TemplateError):
    """An engine's own check refused the conversation; the template never saw it."""
