"""``strata-pack template check``: finds copies of a template that differ in a folder or repository."""

from __future__ import annotations

from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags


@with_shared_flags
def check(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|ORG/NAME|ORG", help="A folder, a hub repository, or an organisation on the Hub."
        ),
    ],
    out: Out,
) -> None:
    """Compare the template copies of all quantizations of a model (exit code 1 if any differs).

    Of a repository only the small files and the headers of GGUF files are downloaded.
    """
    from rich.markup import escape
    from rich.table import Table

    from strata_pack.errors import BadInput, CheckFailed
    from strata_pack.pack.template.survey import survey
    from strata_pack.report.diff import printable

    with out.progress() as progress:
        found = survey(target, progress)
    for model in dict.fromkeys(copy.model for copy in found.copies):
        table = Table("copy", "name", "status", "sha256", "", title=escape(printable(model)), title_justify="left")
        table.columns[0].overflow = "fold"
        for copy in found.copies:
            if copy.model == model:
                digest = "none" if copy.sha256 is None else copy.sha256[:12]
                differs = "differs" if copy.differs else ""
                table.add_row(escape(printable(copy.place)), escape(printable(copy.name)), copy.status, digest, differs)
        out.show(table)
    out.result(found.to_dict())
    if found.differing:
        raise CheckFailed(
            f"{len(found.differing)} of {len(found.copies)} copies differ from the others of their model",
            where=target,
            remedy="see how with `strata-pack template diff`, then `strata-pack template install` the right one",
        )
    if found.unreadable:
        raise BadInput(str(found.unreadable[0].problem))
