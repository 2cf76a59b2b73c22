"""Short completions whose text nobody gets: they find out how the one that counts has to be asked for."""

from __future__ import annotations

from typing import Any

from strata_pack.gateway.failures import ApiError, bad_request
from strata_pack.gateway.turn import GrammarAnswer, Turn
from strata_pack.gateway.upstream import Upstream

PEEK_TOKENS = 4


async def check_grammar(upstream: Upstream, answer: GrammarAnswer) -> None:
    """Raise the server's refusal of a client's grammar, before the thinking that it would come after."""
    body = {"prompt": " ", "n_predict": 0, "cache_prompt": False, "grammar": answer.grammar}
    try:
        await upstream.json("POST", "/completion", body, generates=True)
    except ApiError as error:
        if error.status == 400:
            raise bad_request(f"{answer.field}: {error.message}", answer.field) from error
        raise


async def begins_call(upstream: Upstream, turn: Turn, prompt: Any, opener: str) -> bool:
    """Return whether the model goes on from ``prompt`` with a call, which begins with ``opener``.

    A grammar of JSON would forbid the call, and a JSON Schema cannot be joined to a grammar: so the model is asked for
    the first few tokens without one.
    """
    body = {**turn.sampling, "prompt": prompt, "cache_prompt": True, "n_predict": PEEK_TOKENS}
    if turn.seed is not None:
        body["seed"] = turn.seed
    answer = await upstream.json("POST", "/completion", body, generates=True)
    start = str(answer.get("content", "")).lstrip()
    return start.startswith(opener) or (start != "" and opener.startswith(start))
