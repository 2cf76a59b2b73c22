"""Formats prefix stability for a terminal: a bar for each turn, the first break of each cause, and the total cost."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from strata_pack.chat.prefix.report import Break, PrefixReport, Run, TurnStep
from strata_pack.report import model

BAR = 36
SHOWN = 56
"""Characters shown of each text at a break."""

_CACHED, _AGAIN, _NEW = ("dim", "░"), ("red", "█"), ("green", "▓")


def screen(report: PrefixReport, title: str) -> Group:
    """Return the renderables for rich for ``report`` on the template ``title``."""
    parts: list[RenderableType] = [
        Text(f"{title}: prefix stability over {report.session.name!r}", style="bold"),
        _legend(),
    ]
    longest = max(step.prompt for run in report.runs for step in run.steps)
    for run in report.runs:
        parts += [Text(), _heading(run), Padding(_turns(run, longest), (0, 0, 0, 2), expand=False)]
        parts += [Padding(part, (0, 0, 0, 2), expand=False) for part in _breaks(run)]
    parts += [Text(), _summary(report)]
    parts += [Text(note, style="yellow") for note in _notes(report)]
    return Group(*parts)


def to_report(report: PrefixReport, title: str) -> model.Report:
    """Return the runs as a report, one check each; only a break with the thinking kept is a failure."""
    facts = {"session": report.session.name, "template sha256": report.template_sha256}
    return model.Report(f"prefix: {title}", tuple(_check(run, title) for run in report.runs), facts)


def _check(run: Run, title: str) -> model.Check:
    broken = [step.broken for step in run.steps if step.broken is not None]
    rows = tuple((str(step.turn), step.title, step.prompt, step.fresh, step.again) for step in run.steps)
    turns = tuple(str(step.turn) for step in run.steps)
    series = {"new": [step.fresh for step in run.steps], "read again": [step.again for step in run.steps]}
    return model.Check(
        id=run.mode.name,
        title=run.mode.title,
        status="passed" if not broken else "failed" if run.mode.name == "kept" else "skipped",
        detail=f"{len(broken)} of {len(run.steps)} prompts do not extend the previous one: {broken[0].why}"
        if broken
        else f"every prompt extends the previous one; {run.fresh:,} new characters, none read again",
        repeat=shlex.join(["strata-pack", "template", "prefix", title, "--mode", run.mode.name]),
        table=model.Table(("turn", "did", "next prompt", "new", "read again"), rows),
        chart=model.Chart(
            "Characters to read for each next prompt",
            "turn",
            "characters",
            turns,
            {name: tuple(float(value) for value in values) for name, values in series.items()},
        ),
    )


def _legend() -> Text:
    legend = Text("each bar is one prompt: ", style="dim")
    for (style, mark), meaning in ((_CACHED, "from the cache"), (_AGAIN, "read again"), (_NEW, "new")):
        legend.append(mark * 3, style=style)
        legend.append(f" {meaning}  ", style="dim")
    return legend


def _heading(run: Run) -> Text:
    heading = Text()
    heading.append("✓ " if run.stable else "✗ ", style="bold green" if run.stable else "bold red")
    heading.append(run.mode.title, style="bold")
    return heading


def _turns(run: Run, longest: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("turn", justify="right", style="dim")
    table.add_column("did", overflow="ellipsis", max_width=20, no_wrap=True)
    for header in ("next prompt", "new", "read again"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for step in run.steps:
        again = Text(_amount(step.again, step.again_tokens), style="bold red" if step.again else "dim")
        prompt, new = _amount(step.prompt, step.prompt_tokens), _amount(step.fresh, step.fresh_tokens)
        table.add_row(str(step.turn), step.title, prompt, new, again, _bar(step, longest))
    return table


def _amount(chars: int, tokens: int | None) -> str:
    return f"{chars:,}" if tokens is None else f"{chars:,} ({tokens:,} tok)"


def _bar(step: TurnStep, longest: int) -> Text:
    """Return the bar of one prompt, to scale; every non-empty part has at least one cell."""
    bar = Text()
    parts = ((_CACHED, step.prompt - step.again - step.fresh), (_AGAIN, step.again), (_NEW, step.fresh))
    for (style, mark), amount in parts:
        bar.append(mark * (max(1, round(amount / longest * BAR)) if amount > 0 else 0), style=style)
    return bar


def _breaks(run: Run) -> Iterator[Text]:
    """Yield the first break of each cause with both texts, and the other turns with the same cause."""
    kinds: dict[str, list[TurnStep]] = {}
    for step in run.steps:
        if step.broken is not None:
            kinds.setdefault(step.broken.cause.id, []).append(step)
    for steps in kinds.values():
        first = steps[0].broken
        if first is None:
            continue
        head = Text(f"after turn {steps[0].turn}, at character {first.at:,}: ", style="red")
        head.append(first.why, style="bold red")
        yield head
        yield _side("cache", first, first.cached, "red")
        yield _side("sent ", first, first.sent, "green")
        yield Text(f"  help   {first.cause.remedy}", style="cyan")
        if len(steps) > 1:
            others = ", ".join(str(step.turn) for step in steps[1:])
            yield Text(f"  and so after turn{'s' if len(steps) > 2 else ''} {others}", style="dim")


def _side(name: str, place: Break, text: str, style: str) -> Text:
    line = Text(f"  {name}  ")
    line.append("…" + _one_line(place.before[-SHOWN // 2 :]), style="dim")
    line.append(_one_line(text[:SHOWN]), style=style)
    line.append("…" if len(text) > SHOWN else "", style="dim")
    return line


def _one_line(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped."""
    shown = text.replace("\n", "↵").replace("\t", "⇥")
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in shown)


def _summary(report: PrefixReport) -> Table:
    table = Table("", "new", "read again", "extra", "if the cache cannot be cut", box=None, pad_edge=False)
    table.padding = (0, 2, 0, 0)
    for column in table.columns[1:]:
        column.justify = "right"
    for run in report.runs:
        share = run.again / run.fresh if run.fresh else 0.0
        style = "green" if run.stable else "red"
        table.add_row(
            Text(f"thinking {run.mode.name}", style=f"bold {style}"),
            _amount(run.fresh, run.fresh_tokens),
            _amount(run.again, run.again_tokens),
            Text(f"+{share:.0%}", style=style),
            f"{run.whole:,}",
        )
    return table


def _notes(report: PrefixReport) -> Iterator[str]:
    if not report.honours_preserve and {"kept", "dropped"} <= {run.mode.name for run in report.runs}:
        yield "This template does not read preserve_thinking: kept and dropped are the same."
