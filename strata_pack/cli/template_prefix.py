"""``strata-pack template prefix``: shows, turn by turn, how much of the prompt a prefix cache must process again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.report_files import HtmlFile, ReportFiles
from strata_pack.cli.shared_flags import with_shared_flags


class ModeChoice(StrEnum):
    """How a client treats the thinking of old turns."""

    kept = "kept"
    dropped = "dropped"
    stripped = "stripped"


@with_shared_flags
def prefix(
    target: Annotated[
        str, typer.Argument(metavar="TEMPLATE", help="An id, a file, a .gguf, a model folder, a pack or a hub id.")
    ],
    out: Out,
    session: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A conversation (JSON messages, or a request's body).")
    ] = None,
    mode: Annotated[list[ModeChoice] | None, typer.Option(help="Only this mode; repeatable.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Count tokens too, with this tokenizer.json or .gguf.")
    ] = None,
    html: HtmlFile = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 if the prefix breaks even with the thinking kept.")
    ] = False,
) -> None:
    """Show, turn by turn, whether a prompt extends the previous one, where and why it does not, and what that costs.

    The same session is run in three modes: thinking kept, dropped by the template, stripped by the client. If the model
    has a separate template for tools, a session with tools is measured on that template, as engines use it.
    """
    from strata_pack.chat.prefix.measure import check_prefix
    from strata_pack.chat.prefix.output import screen, to_report
    from strata_pack.chat.prefix.report import MODES
    from strata_pack.chat.prefix.session import bundled_session, load_session
    from strata_pack.chat.render.template import ChatTemplate, normalize_source
    from strata_pack.errors import CheckFailed
    from strata_pack.pack.template.source import load_set
    from strata_pack.pack.token_count import open_tokenizer

    files = ReportFiles(html)
    files.try_all(target, session, tokenizer)
    with out.progress() as progress:
        named = load_set(target, progress)
    conversation = bundled_session() if session is None else load_session(session)
    found = named.tools if named.tools is not None and conversation.tools else named.main
    template = ChatTemplate(normalize_source(found.text))
    modes = [MODES[one.value].name for one in mode] if mode else list(MODES)
    with open_tokenizer(tokenizer) as tokenize:
        report = check_prefix(template, conversation, modes, tokenize)
    out.show(screen(report, found.where))
    out.result({"template": found.where, **report.to_dict()})
    code = files.write(to_report(report, found.where), out)
    broken = [run for run in report.runs if run.mode.name == "kept" and not run.stable]
    if check and broken:
        raise CheckFailed("a prompt does not extend the previous one, even with the thinking kept", where=found.where)
    if code:
        raise typer.Exit(code)
