"""Runs ``prefix-cache``: measures how much of an agent's history the server processes again at each turn.

A model's thinking is part of its generated text, so it is in the server's cache. A client that sends it back gets a
prompt that extends the cached text, if the template allows it; `template prefix` predicts the parts that the template
writes differently. The server must reuse the whole common prefix of its cache and the next prompt. The figures are the
server's own timings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strata_pack.chat.prefix.measure import check_prefix
from strata_pack.chat.prefix.report import ModeName, Run
from strata_pack.chat.prefix.session import Session
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.llama.answers import Timings
from strata_pack.prefixes import common_length
from strata_pack.report import Chart, Check, Table
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import read
from strata_pack.smoke.scenario import Scenario

SLOT = 0
SLACK = 4
"""Tokens that a server may process again at the end of the common prefix: tokens differ where a text is cut."""

TITLES: dict[ModeName, str] = {"kept": "thinking echoed", "stripped": "thinking stripped"}


@dataclass(frozen=True)
class CachedTurn:
    """One prompt of the session: the server's timings, and the number of its tokens that must be in the cache."""

    timings: Timings
    held: int

    @property
    def lost(self) -> bool:
        """Whether the server processed cached tokens again."""
        return self.timings.cache_n + SLACK < self.held


def session() -> Session:
    """Return the recorded agent session as messages."""
    data = read("session")
    messages: list[Mapping[str, Any]] = [
        {"role": "system", "content": data["system"]},
        {"role": "user", "content": data["user"]},
    ]
    for number, turn in enumerate(data["turns"]):
        call = {"id": f"call_{number}", "type": "function", "function": turn["call"]}
        thinking = turn["thinking"]
        messages.append({"role": "assistant", "content": "", "reasoning_content": thinking, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": turn["result"]})
    return Session("session", messages[:-1], read("tools"))


def predicted(context: SmokeContext) -> dict[ModeName, Run]:
    """Return the prediction of `template prefix` for the template over the session, in each mode."""
    report = check_prefix(ChatTemplate(context.template), session(), modes=("kept", "stripped"))
    return {run.mode.name: run for run in report.runs}


def run_session(context: SmokeContext, run: Run) -> list[CachedTurn]:
    """Run the session as in ``run``, and return what the server had to process for each prompt.

    Each reply is put into the cache in the form in which this template writes it as the newest turn, as if the model
    had generated it. (A grammar would force it in tokens that no model chooses.)
    """
    client, template, variables = context.client, ChatTemplate(context.template), dict(run.mode.variables)
    sent = [_sent(message, run) for message in session().messages]
    ends = [number for number, message in enumerate(sent) if message["role"] == "assistant"]
    played: list[CachedTurn] = []
    cached: str | None = None
    for number, end in enumerate(ends):
        prompt = client.apply_template(sent[:end], read("tools"), chat_template_kwargs=variables)
        held = 0 if cached is None else len(client.tokenize(prompt[: common_length(cached, prompt)]))
        answer = client.completion(prompt, n_predict=1, id_slot=SLOT, cache_prompt=True)
        played.append(CachedTurn(answer.timings, held))
        if number + 1 == len(ends):
            break  # no prompt follows the last reply
        begun = template.render(sent[:end], read("tools"), **variables, add_generation_prompt=True)
        cached = prompt + run.steps[number].cached[len(begun) :]
        client.completion(cached, n_predict=1, id_slot=SLOT, cache_prompt=True)
    return played


def _sent(message: Mapping[str, Any], run: Run) -> Mapping[str, Any]:
    return {k: v for k, v in message.items() if k != "reasoning_content"} if run.mode.strips else message


def prefix_cache(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Run the session with the thinking echoed and with it stripped; the table is the result.

    It fails if the server processes cached tokens again: then the cache is off, or is dropped too early.
    """
    runs = predicted(context)
    played = {mode: run_session(context, run) for mode, run in runs.items()}
    echoed, stripped = played["kept"], played["stripped"]
    lost = [
        f"turn {number + 1}, {TITLES[mode]}: {turn.timings.cache_n:,} of {turn.held:,} tokens found in the cache"
        for mode, turns in played.items()
        for number, turn in enumerate(turns)
        # Recurrent state cannot be truncated at a break, so everything is processed again.
        if turn.lost and not (context.target.recurrent and _breaks(runs[mode], number))
    ]
    again = {mode: sum(turn.timings.prompt_n for turn in turns[1:]) for mode, turns in played.items()}
    rows: tuple[tuple[str | int | float, ...], ...] = tuple(
        (str(number + 1), *(figure for turn in pair for figure in _figures(turn)))
        for number, pair in enumerate(zip(echoed, stripped, strict=True))
    )
    said = "; ".join(f"{TITLES[mode]}, {_verdict(run)}" for mode, run in runs.items())
    yield Check(
        scenario.id,
        scenario.proves,
        "failed" if lost else "passed",
        "; ".join(lost)
        or f"turns 2 to {len(rows)} read {again['kept']:,} tokens with the thinking echoed, {again['stripped']:,} with "
        f"it stripped, as `template prefix` says ({said})",
        table=Table(("turn", "prompt, echoed", "read", "held", "prompt, stripped", "read", "held"), rows),
        chart=Chart(
            title="Tokens read in each turn of an agent session, after the first",
            x_label="turn",
            y_label="tokens read",
            x=tuple(str(number + 1) for number in range(1, len(rows))),
            series={
                TITLES[mode]: tuple(float(turn.timings.prompt_n) for turn in turns[1:])
                for mode, turns in played.items()
            },
        ),
        data={
            "echoed": [asdict(turn.timings) for turn in echoed],
            "stripped": [asdict(turn.timings) for turn in stripped],
            "stable": {mode: run.stable for mode, run in runs.items()},
        },
    )


def _figures(turn: CachedTurn) -> tuple[int, int, int]:
    return turn.timings.prompt_n + turn.timings.cache_n, turn.timings.prompt_n, turn.held


def _breaks(run: Run, number: int) -> bool:
    return number > 0 and run.steps[number - 1].broken is not None


def _verdict(run: Run) -> str:
    broken = [step for step in run.steps if step.broken is not None]
    if not broken:
        return "every prompt extends the previous one"
    first = broken[0].broken
    assert first is not None
    return f"{len(broken)} of {len(run.steps)} prompts do not extend the previous one: {first.why}"
