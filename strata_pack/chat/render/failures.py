"""Defines the errors of templates and of template engines."""

from __future__ import annotations

from strata_pack.errors import BadInput


class TemplateError(BadInput):
    """The template does not compile or fails at run time. ``line`` is 1-based, ``None`` if unknown."""

    def __init__(self, cause: str, *, line: int | None = None, remedy: str | None = None) -> None:
        self.cause = cause
        self.line = line
        where = "chat template" if line is None else f"chat template, line {line}"
        super().__init__(cause, where=where, remedy=remedy)


class TemplateLimit(TemplateError):
    """The template needs more time, memory or output than its ``RenderLimits`` allow."""


class TemplateRefused(TemplateError):
    """The template called ``raise_exception`` with ``message``."""

    def __init__(self, message: str, *, line: int | None = None) -> None:
        self.message = message
        super().__init__(f"refuses the conversation: {message}", line=line)


class RequestUnseen(TemplateError):
    """An engine's own check of the request refused the conversation before the template saw it."""
