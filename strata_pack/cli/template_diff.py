"""``strata-pack template diff``: compares two templates, as texts and by their prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.differences import show_difference
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags

SHOWN = 3
"""Maximum number of conversations shown; the JSON names all of them."""

_KINDS = "An id, a file, a .gguf, a model folder, a pack or a hub id."


@with_shared_flags
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=_KINDS)],
    out: Out,
    second: Annotated[str | None, typer.Argument(metavar="[B]", help=_KINDS)] = None,
    vendor: Annotated[
        bool,
        typer.Option("--vendor", help="Take as B the current template of the repository that pack A was built from."),
    ] = False,
) -> None:
    """Compare two templates: as texts, and by the prompts of several hundred conversations, on jinja2.

    Exit code 1 if any conversation renders differently; different texts that render the same pass. If B is a repository
    on the Hub, the commit since which it differs is named. Without B, A is compared with the base model that its model
    card or its GGUF header names.
    """
    from strata_pack.errors import CheckFailed, WrongUse
    from strata_pack.pack.template.difference import base_set, compare_sets, vendor_set
    from strata_pack.pack.template.since import differs_since
    from strata_pack.pack.template.source import load_set
    from strata_pack.weights.source import hub_source

    if vendor and second is not None:
        raise WrongUse("takes two templates, or one and --vendor", remedy="give A and B, or a pack and --vendor")
    with out.progress() as progress:
        ours = load_set(first, progress)
        if second is not None:
            theirs = load_set(second, progress)
        else:
            theirs = vendor_set(Path(first), progress) if vendor else base_set(first, progress)
    found = compare_sets(ours, theirs)
    for one in found:
        for side in (one.first, one.second):
            out.line(f"{side['where']}: {side['status']} (sha256 {side['sha256'][:12]})")
        for line in one.text.splitlines():
            out.line(line)
        if one.note:
            out.line(f"note: {one.note}")
        for rendering in one.renderings[:SHOWN]:
            out.line(f"{rendering.conversation}: A in red, B in green:")
            show_difference(rendering.first, rendering.second, out)
        if not one.text:
            out.line("the texts are the same")
        else:
            out.line(f"{len(one.renderings)} of {one.compared} conversations render differently")
    count = sum(len(one.renderings) for one in found)
    repository = hub_source(theirs.main.where)
    since = None
    if count and repository is not None:
        with out.progress() as progress:
            since = differs_since(ours.main, repository, progress)
    if since is not None:
        out.line(f"{repository}: {since.sentence()}")
    commits = {"since": None if since is None else since.to_dict()}
    out.result({"ok": count == 0, "templates": [one.to_dict() for one in found], **commits})
    if count:
        raise CheckFailed(f"{count} conversations render differently", where=f"{first}, {theirs.main.where}")
