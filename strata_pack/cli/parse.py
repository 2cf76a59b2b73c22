"""``strata-pack parse``: splits generated text, or a log of replies, into reasoning, content and calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from strata_pack.cli.output import Out
from strata_pack.cli.shared_flags import with_shared_flags
from strata_pack.parsing import CallFormat, DialectName, ImplicitEnd

app = typer.Typer()


@app.command(epilog="Example: strata-pack parse reply.txt --tools request.json")
@with_shared_flags
def parse(
    path: Annotated[Path, typer.Argument(help="A text, - for standard input, or a log (.jsonl, .gz, .zst).")] = Path(
        "-"
    ),
    thinking: Annotated[bool, typer.Option(help="The prompt ends inside the thinking.")] = True,
    tools: Annotated[Path | None, typer.Option(help="The request's tools, as JSON.", metavar="FILE")] = None,
    implicit_end: Annotated[ImplicitEnd, typer.Option(help="Which calls end the thinking.")] = "guarded",
    call_format: Annotated[CallFormat, typer.Option(help="The format of the calls.")] = "auto",
    dialect: Annotated[DialectName, typer.Option(help="The family whose tags the text has.")] = "qwen",
    finish_reason: Annotated[str, typer.Option(help="The server's finish reason; length means truncated.")] = "stop",
    summary: Annotated[
        bool, typer.Option("--summary", help="Print reasoning, content, calls and counters instead.")
    ] = False,
    stream_tools: Annotated[bool, typer.Option("--stream-tools", help="Send calls while they are written.")] = False,
    delta: Annotated[int, typer.Option(min=0, help="Characters per delta; 0 for all at once.")] = 0,
    *,
    out: Out,
) -> None:
    """Parse generated text, or the replies of a log, and print the events, one JSON object per line."""
    from strata_pack.replay.show import parse_file, read_tools_file

    declared = None if tools is None else read_tools_file(tools)
    replies = parse_file(
        path,
        tools=declared,
        finish_reason=finish_reason,
        delta=delta,
        thinking=thinking,
        implicit_end=implicit_end,
        call_format=call_format,
        dialect=dialect,
        stream_tools=stream_tools,
    )
    shown = []
    for reply in replies:
        if out.mode == "json":
            shown.append(reply)
            continue
        if "error" in reply:
            out.note(f"line {reply['line']} {reply['error']}")
            continue
        if not summary:
            place = {key: reply[key] for key in ("line", "model") if key in reply}
            for event in reply["events"]:
                out.line(json.dumps({**place, **event}, ensure_ascii=False))
            continue
        if "line" in reply:
            out.line(f"line {reply['line']} ({reply['model']})")
        for kind in ("reasoning", "content"):
            out.line(f"{kind}: {reply[kind]!r}")
        for call in reply["calls"]:
            out.line(f"call: {call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}")
        out.line(f"counters: {json.dumps(reply['counters'])}")
    out.result({"replies": shown})
