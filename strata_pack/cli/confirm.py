"""Asks before a destructive change, and defines the flags that answer (``--yes``) or only show the change
(``--dry-run``)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strata_pack.errors import WrongUse

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Start the server even if the model needs more memory than is available.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and stop.")]


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask unless ``yes``; raise ``WrongUse`` if there is no terminal to answer on."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise WrongUse(
            "there is no terminal on which to confirm the change", remedy="look at it above, then run again with --yes"
        )
    return typer.confirm(question, err=True)
