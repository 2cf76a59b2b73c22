"""Count a finished choice in its request's record, the metrics and the log."""

from __future__ import annotations

import logging

from strata_pack.gateway.generation import Generation
from strata_pack.gateway.metrics import COUNTS, Metrics, RequestRecord
from strata_pack.gateway.reply import Choice
from strata_pack.parsing import Counters

log = logging.getLogger("strata_pack.gateway")


def close_choice(generation: Generation, record: RequestRecord, metrics: Metrics) -> Choice:
    """Add what ``generation`` counted to ``record``; return its choice, still without texts."""
    generation.catch_up()
    outcome, counters = generation.outcome, generation.parser.counters
    counts = {**_counts(counters), "budget_closed": int(outcome.budget_closed)}
    for name in COUNTS:
        if counts[name]:
            setattr(record, name, getattr(record, name) + counts[name])
    for reason, count in counters.rejected_candidates.items():
        record.rejected_candidates[reason] = record.rejected_candidates.get(reason, 0) + count
    usage = outcome.usage
    record.prompt_tokens = max(record.prompt_tokens, usage.prompt)
    record.cached_tokens = max(record.cached_tokens, usage.cached)
    record.tokens_read_again += usage.read_again
    record.completion_tokens += usage.completion
    record.reasoning_tokens += usage.reasoning
    record.tool_calls += generation.calls
    if counters.implicit_ends:
        log.info(
            "[strata] implicit end of thinking: %d tool call(s) written inside the thinking without %s were read as "
            "calls (request %s)",
            counters.implicit_calls,
            generation.dialect.think_close,
            record.id,
        )
        metrics.implicit_end(record, generation.call_names, generation.reasoning_tail)
    for name in counters.suspect_parameters:
        log.warning("[strata] the value of parameter %r holds a tag of a tool call (request %s)", name, record.id)
    extra = {
        **counts,
        "rejected_candidates": dict(counters.rejected_candidates),
        "tokens_read_again": usage.read_again,
        "reasoning_tokens": usage.reasoning,
    }
    return Choice(outcome, counters, extra)


def _counts(counters: Counters) -> dict[str, int]:
    return {
        "implicit_reasoning_ends": counters.implicit_ends,
        "implicit_calls": counters.implicit_calls,
        "stranded_calls": counters.stranded_calls,
        "unfinished_calls": counters.unfinished_calls,
        "undeclared_calls": counters.undeclared_calls,
        "coercion_failures": counters.coercion_failures,
        "dropped_text": counters.dropped_text,
        "suspect_values": counters.suspect_values,
        "ended_inside_thinking": int(counters.ended_inside_thinking),
    }
