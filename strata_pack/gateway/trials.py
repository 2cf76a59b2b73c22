"""Short trial completions that decide how to send the real one."""

from __future__ import annotations

from typing import Any

from strata_pack.gateway.failures import ApiError, bad_request
from strata_pack.gateway.turn import GrammarAnswer, Turn
from strata_pack.gateway.upstream import Upstream

PEEK_TOKENS = 4


async def check_grammar(upstream: Upstream, answer: GrammarAnswer) -> None:
    """Raise the server's refusal of a client's grammar at once, before the thinking."""
    body = {"prompt": " ", "n_predict": 0, "cache_prompt": False, "grammar": answer.grammar}
    try:
        await upstream.json("POST", "/completion", body, generates=True)
    except ApiError as error:
        if error.status == 400:
            raise bad_request(f"{answer.field}: {error.message}", answer.field) from error
        raise


async def begins_call(upstream: Upstream, turn: Turn, prompt: Any, opener: str) -> bool:
    """Return whether the model continues ``prompt`` with a call, which begins with ``opener``.

    A grammar of JSON would forbid the call, and a JSON Schema cannot be combined with a grammar, so the model generates
    the first few tokens without a grammar.
    """
    body = {**turn.sampling, "prompt": prompt, "cache_prompt": True, "n_predict": PEEK_TOKENS}
    if turn.seed is not None:
        body["seed"] = turn.seed
    answer = await upstream.json("POST", "/completion", body, generates=True)
    start = str(answer.get("content", "")).lstrip()
    return start.startswith(opener) or (start != "" and opener.startswith(start))
