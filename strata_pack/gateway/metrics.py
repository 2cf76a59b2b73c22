"""Metrics: totals since the start, and the last 200 requests, newest first.

One ``RequestRecord`` per request is added up when the request ends in any way; nothing here runs per token.
"""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

HISTORY = 200
IMPLICIT_TEXTS = 20
IMPLICIT_TEXT_LIMIT = 4000
REJECTIONS = ("mid_line", "indented", "fenced", "quoted", "no_function")

MAX_KINDS = 100
KIND = re.compile(r"(?:tool|item|block|media) [a-z0-9_.-]{1,48}", re.IGNORECASE)
OTHER_KIND = "other"

COUNTS = (
    "implicit_reasoning_ends",
    "implicit_calls",
    "stranded_calls",
    "unfinished_calls",
    "undeclared_calls",
    "coercion_failures",
    "dropped_text",
    "suspect_values",
    "ended_inside_thinking",
    "budget_closed",
)
"""The numeric counters of a reply, by public name."""

TOKENS = ("prompt_tokens", "cached_tokens", "tokens_read_again", "completion_tokens", "reasoning_tokens")
COUNTED = (*COUNTS, *TOKENS)


@dataclass
class RequestRecord:
    """One request. Times are seconds; ``tokens_read_again`` are prompt tokens that were not in the server's cache.

    ``outcome`` is ``running``, ``ok``, ``cancelled`` or the kind of the error.
    """

    id: str
    api: str
    stream: bool = False
    client: str = ""
    model: str = ""
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.monotonic)
    outcome: str = "running"
    finish_reason: str | None = None
    duration: float | None = None
    queued: float = 0.0
    time_to_first_token: float | None = None
    tool_calls: int = 0
    implicit_reasoning_ends: int = 0
    implicit_calls: int = 0
    stranded_calls: int = 0
    unfinished_calls: int = 0
    undeclared_calls: int = 0
    coercion_failures: int = 0
    dropped_text: int = 0
    suspect_values: int = 0
    ended_inside_thinking: int = 0
    budget_closed: int = 0
    rejected_candidates: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens_read_again: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def first_token(self, prompt_tokens: int = 0) -> None:
        """Record the time of the first token and the prompt's length, once."""
        if self.time_to_first_token is None:
            self.time_to_first_token = time.monotonic() - self.began
            self.prompt_tokens = prompt_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return the record in the form of ``/metrics``."""
        shown = asdict(self)
        del shown["began"], shown["client"]
        if shown["duration"] is None:
            shown["duration"] = time.monotonic() - self.began
        return shown


@dataclass(frozen=True)
class ImplicitEndSample:
    """An implicit end of the thinking with the end of its text, for the metrics page."""

    request_id: str
    at: float
    calls: tuple[str, ...]
    text: str


class Metrics:
    """All counters of one gateway. Used by one event loop; no locks."""

    def __init__(self) -> None:
        self.started = time.time()
        # By identity: a client may use the same request id twice at a time.
        self.running: dict[int, RequestRecord] = {}
        self.ends: deque[ImplicitEndSample] = deque(maxlen=IMPLICIT_TEXTS)
        self._history: deque[RequestRecord] = deque(maxlen=HISTORY)
        self._counts: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._apis: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self.durations = Histogram((0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600))
        self.first_tokens = Histogram((0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60))

    def start(self, record: RequestRecord) -> None:
        """Add a running request."""
        self.running[id(record)] = record

    def end(self, record: RequestRecord, outcome: str) -> None:
        """Add up ``record``, which ended as ``outcome``: "ok", "cancelled" or the kind of an error. Once."""
        if self.running.pop(id(record), None) is None:
            return
        record.outcome = outcome
        record.duration = time.monotonic() - record.began
        self._history.appendleft(record)
        self._apis[record.api] += 1
        self._counts["requests"] += 1
        self._counts["tool_calls"] += record.tool_calls
        if outcome == "cancelled":
            self._counts["cancelled"] += 1
        elif outcome != "ok":
            self._errors[outcome] += 1
        for name in COUNTED:
            if count := getattr(record, name):
                self._counts[name] += count
        self._rejected.update(record.rejected_candidates)
        self.durations.observe(record.duration)
        if record.time_to_first_token is not None:
            self.first_tokens.observe(record.time_to_first_token)

    def refused(self, kind: str) -> None:
        """Count a request that was refused before it was parsed (no key, not found, malformed)."""
        self._errors[kind] += 1

    def left_out(self, kinds: Iterable[str]) -> list[str]:
        """Count parts of a request that the model did not get; return the kinds that are new."""
        new: list[str] = []
        for kind in kinds:
            known = kind in self._left_out
            if not known and (len(self._left_out) >= MAX_KINDS or not KIND.fullmatch(kind)):
                kind = OTHER_KIND  # the words come from clients, and each one is kept for ever
                known = kind in self._left_out
            if not known:
                new.append(kind)
            self._left_out[kind] += 1
        return new

    def implicit_end(self, record: RequestRecord, calls: list[str], reasoning: str) -> None:
        """Keep a sample of the end of a thinking with calls in it."""
        self.ends.appendleft(ImplicitEndSample(record.id, time.time(), tuple(calls), reasoning[-IMPLICIT_TEXT_LIMIT:]))

    def totals(self) -> dict[str, Any]:
        """Return the totals since the start."""
        names = ("requests", "tool_calls", *COUNTS, "cancelled", *TOKENS)
        return {
            **{name: self._counts[name] for name in names},
            "rejected_candidates": {reason: self._rejected[reason] for reason in REJECTIONS},
            "left_out": dict(sorted(self._left_out.items())),
            "errors": dict(sorted(self._errors.items())),
            "requests_by_api": dict(sorted(self._apis.items())),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the body of ``GET /metrics``: ``totals``, and ``requests`` newest first, running ones included."""
        running = sorted(self.running.values(), key=lambda record: record.began, reverse=True)
        return {
            "totals": self.totals(),
            "running": len(running),
            "requests": [record.to_dict() for record in (*running, *self._history)][:HISTORY],
        }


class Histogram:
    """Counts of observations up to each bound (seconds), as in Prometheus."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count ``value``."""
        self.sum += value
        for index, bound in enumerate(self._bounds):
            if value <= bound:
                self._counts[index] += 1
                return
        self._counts[-1] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return (upper bound, cumulative count) pairs, ending with ``+Inf``."""
        total = 0
        pairs: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs
