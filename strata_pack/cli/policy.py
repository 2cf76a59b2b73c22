"""Defines the option ``--policy``: the file of justified exceptions, and the rules that it may name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from strata_pack.policy import Policy

PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        help="Justified exceptions (default: strata-pack.toml in this folder, if it exists).",
        metavar="FILE",
    ),
]

KEPT = ("verify/manifest", "verify/hashes", "verify/signature")
"""Checks that allow no exception: if one fails, the pack is not the one that was built or signed."""


def load_policy(path: Path | None) -> Policy:
    """Read the policy; its rules may be those of ``template lint`` and the checks of ``verify``."""
    from strata_pack.policy import NAME, Policy

    if path is None and not Path(NAME).is_file():
        return Policy()  # the usual case, which needs no list of rules
    from strata_pack.chat.lint.rules import RULES
    from strata_pack.pack.verification import CHECKS
    from strata_pack.policy import read_policy

    checks = (*CHECKS, "signature", "card")
    return read_policy(path, [*(rule.id for rule in RULES), *(f"verify/{name}" for name in checks)], KEPT)
