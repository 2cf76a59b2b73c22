"""``strata-pack publish``: publishes packs to the Hub, a folder or an OCI layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata_pack.cli.confirm import DryRun, Yes, can_ask, confirm, consent
from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.errors import WrongUse
from strata_pack.plural import counted

if TYPE_CHECKING:
    from strata_pack.publish import FileChange

app = typer.Typer()


@app.command(epilog="Example: strata-pack publish packs/Qwen3-0.6B-Q4_K_M me/Qwen3-0.6B-GGUF --key key.pem --dry-run")
@with_shared_flags
def publish(
    words: Annotated[
        list[str],
        typer.Argument(help="Pack folders, and the repository (org/name) unless --to.", metavar="PACK... REPO"),
    ],
    to: Annotated[
        str | None, typer.Option(help="A folder, or an OCI layout as oci:DIR, in place of a repository.", metavar="DIR")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The private key that signs each pack.", metavar="FILE")] = None,
    dry_run: DryRun = False,
    update_template: Annotated[
        str | None,
        typer.Option(
            help="First install this template (auto, an id or a file); without PACK, in every published pack.",
            metavar="TEMPLATE",
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="With --update-template: the folder to download published packs to.", metavar="DIR"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="The card's title.")] = None,
    author: Annotated[str | None, typer.Option(help="Who quantized it, for the card.")] = None,
    base_model: Annotated[str | None, typer.Option(help="The base model, if no pack names it.")] = None,
    message: Annotated[str | None, typer.Option(help="The commit's message.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="The source's terms were read and allow it.")
    ] = False,
    yes: Yes = False,
    *,
    out: Out,
) -> None:
    """Publish packs with a model card, checksums, statements of origin and signatures, as one commit.

    Packs are verified first. Files that the target already has are not sent again; run it again after an interruption.
    On a terminal it asks before it replaces or removes a published file.
    """
    from dataclasses import replace

    from strata_pack.publish import LicenceQuestion, PublishOptions, update_templates
    from strata_pack.publish import publish as publish_packs

    packs, target = _sorted(words, to)

    def agree(lost: Sequence[FileChange]) -> None:
        done = {"replace": "replaced", "remove": "removed"}
        consent(lambda: [f"{target}: {one.path} will be {done[one.kind]}" for one in lost], out, yes=yes, named=True)

    options = PublishOptions(accept_licence or yes, private, title, author, base_model, message, agree=agree)
    with out.progress() as progress:
        if update_template is not None:
            packs = update_templates(packs, target, update_template, work, dry_run=dry_run, progress=progress)
        try:
            done = publish_packs(packs, target, key=key, dry_run=dry_run, options=options, progress=progress)
        except LicenceQuestion as question:
            for sentence in question.questions:
                out.note(sentence)
            if not can_ask():
                raise
            confirm("Do the terms allow you to publish it?", out, yes=False)
            options = replace(options, accept_licence=True)
            done = publish_packs(packs, target, key=key, dry_run=dry_run, options=options, progress=progress)
    _show(out, done)


def _sorted(words: list[str], to: str | None) -> tuple[list[Path], str]:
    if to is not None:
        return [Path(word) for word in words], to if to.startswith("oci:") else f"dir:{to}"
    *packs, target = words
    if not packs and Path(target).is_dir():
        raise WrongUse("no target is given", where="publish", remedy="name a repository (org/name), or --to DIR")
    return [Path(word) for word in packs], target


def _show(out: Out, done: object) -> None:
    from strata_pack.publish import Published
    from strata_pack.weights.preflight import size_text

    assert isinstance(done, Published)
    for change in done.changes:
        size = "" if change.kind == "remove" else f"  {size_text(change.size)}"
        out.line(f"{change.kind:<8}{change.path}{size}")
    for question in done.questions:
        out.line(f"mind: {question}")
    moving = [change for change in done.changes if change.kind != "keep"]
    kept = len(done.changes) - len(moving)
    verb = "would change" if done.dry_run else "changed"
    out.line(
        f"{done.target}: {counted(len(moving), 'file')} {verb}, {kept} unchanged; {size_text(done.travelling)} new"
    )
    if done.commit is not None and not done.dry_run:
        out.line(f"commit {done.commit}")
    out.result(done.to_dict())
