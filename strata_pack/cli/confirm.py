"""Asks before a destructive change, and defines the flags that answer (``--yes``) or only show the change
(``--dry-run``).

All commands follow one rule. On a terminal the command lists what will be replaced or removed and asks; ``--yes``
answers in advance. Without a terminal the command line decides: it agrees to the loss that it names (``--force``,
``--in-place``, ``rollback``, the target of ``publish``); any other loss needs ``--yes``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.errors import Declined, WrongUse

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Go on without asking.")]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Start the server even if the model needs more memory than is available.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would be done, and stop.")]

_REMEDY = "look at what would happen, then run again with --yes"


def can_ask() -> bool:
    """Return whether there is a terminal on which to ask (stderr) and answer (stdin)."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, out: Out, *, yes: bool) -> None:
    """Ask unless ``yes``; raise ``Declined`` for a no, ``WrongUse`` if there is no terminal."""
    if yes:
        return
    if not can_ask():
        raise WrongUse("there is no terminal on which to confirm it", remedy=_REMEDY)
    _ask(question, out)


def consent(going: Callable[[], Sequence[str]], out: Out, *, yes: bool, named: bool = False) -> None:
    """Return if the user agrees to the losses that ``going`` lists, one sentence each.

    ``named``: the command line names the loss, which is enough without a terminal. Raises as ``confirm`` does. An empty
    list needs no consent.
    """
    if yes or (named and not can_ask()):
        return
    sentences = going()
    if not sentences:
        return
    for sentence in sentences:
        out.note(sentence)
    if not can_ask():
        raise WrongUse(f"{sentences[0]}, and there is no terminal on which to confirm it", remedy=_REMEDY)
    _ask("Go on?", out)


def _ask(question: str, out: Out) -> None:
    with out.paused():
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort:
            raise KeyboardInterrupt from None
    if not agreed:
        raise Declined
