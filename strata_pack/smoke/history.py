"""Scenarios about history: a call that was left in the thinking must come back outside it.

Each is played twice: on the server under test, and on the control, whose stock template must show the fault. A control
that shows none means that the scenario proves nothing, and fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strata_pack.llama.client import LlamaClient
from strata_pack.report import Check
from strata_pack.smoke.data_files import Call, Replay, call_text, failures, fill, fill_messages, read
from strata_pack.smoke.scenario import Scenario
from strata_pack.smoke.stage import Stage

ASSISTANT = "<|im_start|>assistant\n"
END = "<|im_end|>"


def assistant_turns(prompt: str) -> list[str]:
    """Return the text of every finished assistant turn of a ChatML prompt."""
    turns = prompt.split(ASSISTANT)[1:]
    return [turn[: turn.index(END)] for turn in turns if END in turn]


def faults(turn: str, calls: Sequence[Call], form: str) -> list[str]:
    """Return what is wrong with the history ``turn`` of a reply that held ``calls``; empty: nothing."""
    found = []
    opened = turn.startswith("<think>")
    end = turn.find("</think>") if opened else 0
    for call in calls:
        place = turn.find(call_text(call, "json" if form == "json" else "xml"))
        if place < 0:
            found.append(f"the call of {call['name']} is gone")
        elif opened and (end < 0 or place < end):
            found.append(f"the call of {call['name']} stands inside the thinking")
    if opened and end < 0:
        found.append("the thinking is never closed")
    return found


def _render(client: LlamaClient, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    return client.apply_template(messages, None, chat_template_kwargs=dict(variables))


def repair(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Play the history whose scenario this is, and its control."""
    case = next(entry for entry in read("histories") if entry["scenario"] == scenario.id)
    form, calls = stage.form, case["calls"]
    messages = fill_messages(case["messages"], calls, form)
    expected = fill(case["turn"], calls, form)
    prompt = _render(stage.client, messages, case["variables"])
    got = next(iter(assistant_turns(prompt)), "")
    control = next(iter(assistant_turns(_render(stage.control(), messages, case["variables"]))), "")
    control_faults = faults(control, calls, form)
    data = {"control_turn": control, "control_faults": control_faults}
    if not control_faults:
        return [
            Check(
                scenario.id,
                scenario.proves,
                "failed",
                "the control, a stock template, shows no fault: this proves nothing",
                got=control,
                data=data,
            )
        ]
    wrong = faults(got, calls, form)
    same = got == expected
    detail = "; ".join(wrong) if wrong else "closed" if same else "closed, but not as the rules say"
    return [
        Check(
            scenario.id,
            scenario.proves,
            "passed" if same else "failed",
            f"{detail}; the stock template: {control_faults[0]}",
            prompt=prompt,
            expected=expected,
            got=got,
            data=data,
        )
    ]


def ways_back(reply: Replay) -> dict[str, dict[str, Any]]:
    """The ways in which a client that lost the call sends the reply back."""
    return {
        "reasoning_content": {"role": "assistant", "content": "", "reasoning_content": reply.text},
        "inline": {"role": "assistant", "content": f"<think>\n{reply.text}"},
        "stripped": {"role": "assistant", "content": ""},
    }


def round_trip(stage: Stage, scenario: Scenario) -> Iterable[Check]:
    """Send the lost reply back in each way and look at the next prompt.

    A client that strips the thinking has thrown the call away; then the turn must merely hold no open thinking.
    """
    reply = failures(stage.form)[0]
    for way, message in ways_back(reply).items():
        messages = [
            {"role": "user", "content": reply.user},
            message,
            {"role": "user", "content": "Did it work?"},
        ]
        calls = reply.calls if way != "stripped" else ()
        prompt = _render(stage.client, messages, {})
        got = next(iter(assistant_turns(prompt)), "")
        wrong = faults(got, calls, stage.form)
        control = next(iter(assistant_turns(_render(stage.control(), messages, {}))), "")
        control_faults = faults(control, calls, stage.form)
        if calls and not control_faults:
            wrong.append("the control, a stock template, shows no fault: this proves nothing")
        yield Check(
            f"{scenario.id}/{way}",
            scenario.proves,
            "failed" if wrong else "passed",
            "; ".join(wrong) or ("closed" if calls else "the client threw the call away; nothing is left open"),
            prompt=prompt,
            got=got,
            data={"control_turn": control, "control_faults": control_faults},
        )
