"""Asks before something is destroyed, and defines the flags that answer (``--yes``) or stop short (``--dry-run``)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata_pack.errors import WrongUse

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Start the server also if the model needs more memory than there is.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Say what would be done, and stop.")]


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask, unless ``--yes`` is given; where nobody can answer, a missing ``--yes`` is wrong use."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise WrongUse("nobody is there to confirm the change", remedy="look at it above, then run again with --yes")
    return typer.confirm(question, err=True)
