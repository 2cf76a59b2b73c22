"""Runs history scenarios: a call left in the thinking must be outside it in the next prompt.

The required turn is the template's own rendering of a *healthy* turn with the same content, in which the call is at its
proper place. Each named history is run twice, on the server under test and on the control, whose stock template must
show the fault. If the control shows no fault, the scenario proves nothing and fails too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from strata_pack.chat.engines.server import LlamaServerEngine
from strata_pack.chat.repair.proof import Difference, baseline, compare_renders
from strata_pack.chat.repair.rules import heal_conversation
from strata_pack.chat.repair.suite import generate
from strata_pack.llama.client import LlamaClient
from strata_pack.report import Check
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.data_files import Call, ReplayCase, call_text, failures, fill_messages, read
from strata_pack.smoke.scenario import Scenario

ASSISTANT = "<|im_start|>assistant\n"
END = "<|im_end|>"

NO_PROOF = "the control, a stock template, shows no fault: this proves nothing"
DRAWN = "drawn"
"""Prefix of the names of random conversations, which only `template repair` runs."""


def assistant_turns(prompt: str) -> list[str]:
    """Return the text of every finished assistant turn of a ChatML prompt."""
    turns = prompt.split(ASSISTANT)[1:]
    return [turn[: turn.index(END)] for turn in turns if END in turn]


def faults(turn: str, calls: Sequence[Call], form: str) -> list[str]:
    """Return the faults in the history ``turn`` of a reply with ``calls``; empty if there are none."""
    found = []
    opened = turn.startswith("<think>")
    end = turn.find("</think>") if opened else 0
    for call in calls:
        place = turn.find(call_text(call, "json" if form == "json" else "xml"))
        if place < 0:
            found.append(f"the call of {call['name']} is gone")
        elif opened and (end < 0 or place < end):
            found.append(f"the call of {call['name']} is inside the thinking")
    if opened and end < 0:
        found.append("the thinking is never closed")
    return found


def _render(client: LlamaClient, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
    return client.apply_template(messages, None, chat_template_kwargs=dict(variables))


def _first_turn(prompt: str) -> str:
    return next(iter(assistant_turns(prompt)), "")


def repair_history(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Run the scenario's history on the server and on the control."""
    case = next(entry for entry in read("histories") if entry["scenario"] == scenario.id)
    calls = case["calls"]
    messages = fill_messages(case["messages"], calls, context.form)
    yield _closed(context, scenario.id, scenario, messages, calls, case["variables"])


def round_trip(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Send the lost reply back in each form and check the next prompt.

    A client that strips the thinking has dropped the call; then the turn must only have no open thinking.
    """
    reply = failures(context.form)[0]
    for way, message in ways_back(reply).items():
        messages = [{"role": "user", "content": reply.user}, message, {"role": "user", "content": "Did it work?"}]
        calls = () if way == "stripped" else reply.calls
        yield _closed(context, f"{scenario.id}/{way}", scenario, messages, calls, {})


def ways_back(reply: ReplayCase) -> dict[str, dict[str, Any]]:
    """Return the forms in which a client that lost the call sends the reply back."""
    return {
        "reasoning_content": {"role": "assistant", "content": "", "reasoning_content": reply.text},
        "inline": {"role": "assistant", "content": f"<think>\n{reply.text}"},
        "stripped": {"role": "assistant", "content": ""},
    }


def _closed(
    context: SmokeContext,
    id_: str,
    scenario: Scenario,
    messages: Sequence[Mapping[str, Any]],
    calls: Sequence[Call],
    variables: Mapping[str, Any],
) -> Check:
    """Judge ``messages``, whose first assistant turn left ``calls`` in its thinking, against the healthy turn."""
    healthy = heal_conversation(list(messages), context.form, variables)
    wanted, prompt = (_render(context.client, each, variables) for each in (healthy, messages))
    turn, control = _first_turn(prompt), _first_turn(_render(context.control(), messages, variables))
    wrong, control_faults = faults(turn, calls, context.form), faults(control, calls, context.form)
    unproved = bool(calls) and not control_faults
    same = prompt == wanted
    if unproved:
        detail = NO_PROOF
    elif calls:
        state = "; ".join(wrong) or ("closed" if same else "closed, but not as the template writes a healthy turn")
        detail = f"{state}; the stock template: {control_faults[0]}"
    else:
        detail = "; ".join(wrong) or "the client dropped the call; nothing is left open"
    return Check(
        id_,
        scenario.proves,
        "passed" if same and not wrong and not unproved else "failed",
        detail,
        prompt=prompt,
        expected=_first_turn(wanted),
        got=turn,
        data={"control_turn": control, "control_faults": control_faults},
    )


def repair_shapes(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Render every known form of a stranded call, in every place, both unchanged and healthy; the prompts must be
    equal.

    These are the conversations with which `template repair` proves a repair, here on the server under test.
    """
    server = context.own_server()
    every = [one for one in generate(context.form) if one.stranded and not one.name.startswith(DRAWN)]
    base = baseline(server.client.props().chat_template, LlamaServerEngine(server), every)
    found = compare_renders(base, base.as_is)
    if isinstance(found, Difference):
        yield Check(
            scenario.id,
            scenario.proves,
            "failed",
            f"conversation {found.conversation!r}: {found.problem}",
            expected=found.wanted,
            got=found.got,
        )
        return
    yield Check(
        scenario.id,
        scenario.proves,
        "passed" if found.closed else "failed",
        f"{found.closed} of {len(every)} conversations closed, {found.refused} refused by the template"
        if found.closed
        else "the template renders no conversation with a stranded call, so nothing is proved",
    )
