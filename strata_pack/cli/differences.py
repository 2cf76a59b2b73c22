"""Shows the differences of two prompts on a terminal."""

from __future__ import annotations

from strata_pack.cli.output import Out


def show_difference(first: str, second: str, out: Out) -> None:
    """Show where two texts differ: what only the first has in red, what only the second has in green."""
    from rich.text import Text

    from strata_pack.report.diff import differences, shorten, visible

    body = Text()
    for part in shorten(differences(first, second), 60):
        style = {"equal": "dim", "removed": "red", "added": "green"}[part.kind]
        body.append(part.text if part.kind == "equal" else visible(part.text), style=style)
    out.show(body)
