"""Functions that templates call, with limits on what they create."""

from __future__ import annotations

from typing import Any

import jinja2
from jinja2.utils import Namespace as JinjaNamespace
from jinja2.utils import generate_lorem_ipsum

from strata_pack.chat.render.budget import LimitExceeded, current
from strata_pack.chat.render.guards import MAX_WIDTH, STRFTIME, WIDE_NUMBER


class Namespace(JinjaNamespace):
    """jinja2's namespace, printed without its content, because it may contain itself."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        current().elements(len(args) + len(kwargs))
        JinjaNamespace.__init__(*args, **kwargs)

    def __repr__(self) -> str:
        return "<Namespace>"


def lipsum(n: int = 5, html: bool = True, min: int = 20, max: int = 100) -> str:
    """Return jinja2's filler text, limited to a page."""
    if n > MAX_WIDTH or max > MAX_WIDTH or n * max > MAX_WIDTH:
        raise LimitExceeded(f"asks for more than {MAX_WIDTH} words of filler")
    return generate_lorem_ipsum(n, html, min, max)


def check_strftime(pattern: str) -> None:
    """Check that ``pattern`` is a plain ``strftime`` format: a width such as ``%999999d`` would be applied."""
    if len(pattern) > MAX_WIDTH or not STRFTIME.fullmatch(pattern):
        raise jinja2.TemplateRuntimeError(f"{pattern[:40]!r} is not a date format")


def check_format_spec(spec: str) -> None:
    """Check that the format specification of ``'{:spec}'.format(...)`` has no huge width."""
    if WIDE_NUMBER.search(spec):
        raise LimitExceeded(f"asks for a width of more than {MAX_WIDTH}")
