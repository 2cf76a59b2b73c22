"""Maps each scenario to the function that runs it."""

from __future__ import annotations

from collections.abc import Mapping

from strata_pack.smoke import caching, canary, chat_api, drafting, generation, history, images, loading, perplexity
from strata_pack.smoke.scenario import Play

SCENARIO_FUNCTIONS: Mapping[str, Play] = {
    "canary": canary.find_losses,
    "template-loaded": loading.template_loaded,
    "golden": loading.golden_cases,
    "repair-reasoning": history.repair_history,
    "repair-content": history.repair_history,
    "repair-adjacent": history.repair_history,
    "repair-dropped-thinking": history.repair_history,
    "repair-answer": history.repair_history,
    "repair-shapes": history.repair_shapes,
    "special-tokens": loading.special_tokens,
    "prompt-start": perplexity.prompt_start,
    "perplexity": perplexity.perplexity,
    "stranded-call": generation.stranded_call,
    "mentions": generation.mentioned,
    "round-trip": history.round_trip,
    "prefix-cache": caching.prefix_cache,
    "long-argument": generation.long_argument,
    "parallel": generation.parallel,
    "images": images.images,
    "draft-head": drafting.draft_head,
    "live-calls": chat_api.live_calls,
    "streams": chat_api.streams,
    "required-calls": chat_api.required_calls,
    "forced-calls": chat_api.forced_calls,
    "public-parallel": chat_api.public_parallel,
    "public-history": chat_api.public_history,
}
