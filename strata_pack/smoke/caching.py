"""Scenario ``prefix-cache``: how much of an agent's history the server reads again at each turn.

A model's thinking is part of what it generated, so it is in the server's cache. A client that sends it back gets a
prompt that continues the cache; a client that strips it changes the history from that turn on, and pays for it. The
figures are the server's own timings.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from strata_pack.llama.answers import Timings
from strata_pack.report import Chart, Check, Table
from strata_pack.smoke.data_files import call_text, read
from strata_pack.smoke.scenario import Scenario
from strata_pack.smoke.stage import Stage

SLOT = 0


def _assistant(turn: dict[str, Any], number: int, *, echo: bool) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": turn["call"]}],
    }
    return {**message, "reasoning_content": turn["thinking"]} if echo else message


def play_session(stage: Stage, *, echo: bool, first: Timings | None = None) -> list[Timings]:
    """Play the recorded agent session and return the server's timings of each turn's prompt.

    Each reply is put into the cache as the tokens in which this vocabulary writes it, as a model would have left it
    there. (A grammar would force the same text in tokens that no model chooses.) ``first`` are the figures of the
    first turn where they are known: its prompt is the same however the later ones are made.
    """
    session, client = read("session"), stage.client
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": session["system"]},
        {"role": "user", "content": session["user"]},
    ]
    figures: list[Timings] = []
    for number, turn in enumerate(session["turns"]):
        prompt = client.apply_template(messages, read("tools"))
        if number == 0 and first is not None:
            timings = first
        else:
            # The first turn must not find what another scenario left.
            timings = client.completion(prompt, n_predict=0, id_slot=SLOT, cache_prompt=number > 0).timings
        figures.append(timings)
        if number + 1 == len(session["turns"]):
            break  # nobody comes after the last reply
        reply = f"{turn['thinking']}\n</think>\n\n{call_text(turn['call'], stage.form)}"
        client.completion(prompt + reply, n_predict=0, id_slot=SLOT, cache_prompt=True)
        messages.append(_assistant(turn, number, echo=echo))
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": turn["result"]})
    return figures


def prefix_cache(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Play the session with the thinking echoed and with it stripped; the table is the result.

    It fails if echoing the thinking makes the server read more again than stripping it: then the template changes the
    history, or the cache is off.
    """
    echoed = play_session(stage, echo=True)
    stripped = play_session(stage, echo=False, first=echoed[0])
    rows = tuple(
        (str(number + 1), with_.prompt_n + with_.cache_n, with_.prompt_n, out.prompt_n + out.cache_n, out.prompt_n)
        for number, (with_, out) in enumerate(zip(echoed, stripped, strict=True))
    )
    later = slice(1, None)
    again = sum(turn.prompt_n for turn in echoed[later]), sum(turn.prompt_n for turn in stripped[later])
    yield Check(
        scenario.id,
        scenario.proves,
        "passed" if again[0] <= again[1] else "failed",
        f"turns 2 to {len(rows)} read {again[0]:,} tokens with the thinking echoed, {again[1]:,} with it stripped",
        table=Table(("turn", "prompt, echoed", "read again", "prompt, stripped", "read again"), rows),
        chart=Chart(
            title="Tokens read again in each turn of an agent session, after the first",
            x_label="turn",
            y_label="tokens read again",
            x=tuple(str(number + 1) for number in range(1, len(rows))),
            series={
                "thinking echoed": tuple(float(turn.prompt_n) for turn in echoed[later]),
                "thinking stripped": tuple(float(turn.prompt_n) for turn in stripped[later]),
            },
        ),
        data={"echoed": [asdict(turn) for turn in echoed], "stripped": [asdict(turn) for turn in stripped]},
    )
