"""Runs ``drafting``: the text with the model's draft head must be the trunk's; the speed is reported.

A draft head (MTP) guesses tokens that the trunk verifies, so it can only change the speed. A wrongly converted head
does not show in the text, but in the number of accepted tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from strata_pack.llama.answers import Completion
from strata_pack.llama.client import LlamaClient
from strata_pack.llama.server import LlamaServer, StartFailed
from strata_pack.pack.drafting import plan_drafting
from strata_pack.report import Check
from strata_pack.smoke.context import SmokeContext
from strata_pack.smoke.scenario import Impossible, Scenario

TOKENS = 128
TOP = 5
TIE = 0.02
"""Two tokens whose log probabilities are closer than this are a tie, which the order of additions decides."""

TEXT = (
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy cat. "
    "Here are the numbers from one to twenty: one, two, three, four,"
)
"""A beginning with a predictable continuation, so that drafts are accepted."""


def written(client: LlamaClient, prompt: Sequence[int]) -> Completion:
    """Return the model's greedy output after ``prompt``."""
    return client.completion(
        prompt, n_predict=TOKENS, temperature=0.0, ignore_eos=True, cache_prompt=False, return_tokens=True, n_probs=TOP
    )


def draft_head(context: SmokeContext, scenario: Scenario) -> Iterable[Check]:
    """Write the same text without and with the draft head."""
    server, model = context.own_server(), context.target.model
    assert model is not None
    assert context.runtime is not None
    plan = plan_drafting(model, context.runtime, "auto", sees=False)
    if not plan.on:
        raise Impossible(plan.reason or "the model has no draft head")
    prompt = server.client.tokenize(TEXT, add_special=True)
    plain = written(server.client, prompt)
    settings = server.settings
    try:
        # Without the projector: some models cannot draft with images.
        drafting = LlamaServer.start(
            model,
            runtime=context.runtime,
            template_file=settings.template_file,
            context=2 * TOKENS + len(prompt),
            gpu_layers=settings.gpu_layers,
            threads=settings.threads,
            warmup=False,
            drafts=True,
        )
    except StartFailed as failure:
        if failure.reason == "memory":
            raise Impossible("there is no memory for a second server") from failure
        raise
    with drafting:
        drafted = written(drafting.client, prompt)
    yield _check(scenario, plain, drafted)


def _check(scenario: Scenario, plain: Completion, drafted: Completion) -> Check:
    one, other = _tokens(plain), _tokens(drafted)
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    same = one == other
    alike = same or _is_tie(plain, at, other)
    speeds = [answer.timings.predicted_n * 1000 / answer.timings.predicted_ms for answer in (drafted, plain)]
    guessed, accepted = (int(drafted.raw.get("timings", {}).get(name) or 0) for name in ("draft_n", "draft_n_accepted"))
    told = (
        f"{speeds[0]:,.1f} tokens/s with it, {speeds[1]:,.1f} without; {accepted} of {guessed} drafted tokens accepted"
    )
    if guessed and not accepted:
        told += "; none was right, so the head may be of another model"
    text = f"the same {len(one)} tokens" if same else f"the same until two tokens tie, after {at}"
    if not alike:
        text = f"the text differs after {at} tokens"
    elif not guessed:
        text = "the server drafted nothing"
    return Check(
        scenario.id,
        scenario.proves,
        "passed" if alike and guessed else "failed",
        f"{text}: {told}",
        data={
            "tokens per second with it": speeds[0],
            "tokens per second without": speeds[1],
            "drafted": guessed,
            "accepted": accepted,
            "same tokens": at,
        },
    )


def _tokens(answer: Completion) -> list[int]:
    tokens = answer.raw.get("tokens")
    if not isinstance(tokens, list) or not tokens or not answer.timings.predicted_ms:
        raise Impossible("this build of the server returns no tokens or no timings")
    return tokens


def _is_tie(plain: Completion, at: int, other: Sequence[int]) -> bool:
    """Return whether the two texts first differ where the trunk gives both tokens the same probability."""
    entries: Any = plain.raw.get("completion_probabilities")
    if not isinstance(entries, list) or at >= len(entries) or at >= len(other):
        return False
    top = {one.get("id"): one.get("logprob") for one in entries[at].get("top_logprobs") or ()}
    chosen, rival = top.get(entries[at].get("id")), top.get(other[at])
    return isinstance(chosen, float) and isinstance(rival, float) and abs(chosen - rival) < TIE
