"""What the server reports of a reply, apart from its text: token counts, timings, and the progress of the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strata_pack.gateway.outcome import GenerationOutcome
from strata_pack.gateway.turn import Turn


class Reported:
    """Adds up the reports of a reply's completions in ``outcome``.

    ``wanted``: whether the client asked for reports while the reply is generated.
    """

    def __init__(self, turn: Turn, outcome: GenerationOutcome) -> None:
        self.wanted = turn.timings_per_token or turn.return_progress
        self._timings_wanted = turn.timings_per_token
        self._outcome = outcome
        self._spent = 0
        """Tokens of the running completion."""
        self._measured = False
        self._earlier: dict[str, Any] | None = None
        """The timings of the completions before the running one."""
        self._fresh: dict[str, Any] = {}

    def begin(self) -> None:
        """Begin the next completion."""
        self._spent = 0
        self._earlier = self._outcome.timings

    def count(self, predicted: int) -> int:
        """Count the completion's tokens so far; return the number of new ones."""
        fresh, self._spent = predicted - self._spent, predicted
        self._outcome.usage.completion += fresh
        return fresh

    def count_batch(self, batch: list[dict[str, Any]]) -> int:
        """Count the tokens of a stream's next events; return the number of new ones."""
        last, usage = batch[-1], self._outcome.usage
        if not usage.prompt:
            usage.prompt = _count(last, "tokens_evaluated")
        return self.count(_count(last, "tokens_predicted", self._spent + len(batch)))

    def read(self, batch: Iterable[Mapping[str, Any]]) -> None:
        """Note the timings and the progress of a stream's next events, if the client asked for them."""
        for event in batch:
            timings, progress = event.get("timings"), event.get("prompt_progress")
            if isinstance(progress, dict):
                self._fresh["prompt_progress"] = progress
            if self._timings_wanted and isinstance(timings, dict):
                self._fresh["timings"] = _joined(self._earlier, timings)

    @property
    def progressed(self) -> bool:
        """Whether progress was noted that ``take`` has not returned."""
        return "prompt_progress" in self._fresh

    def take(self) -> dict[str, Any]:
        """Return the fields, as llama-server names them, noted since the last call."""
        taken, self._fresh = self._fresh, {}
        return taken

    def end(self, last: Mapping[str, Any]) -> None:
        """Add the prompt's counts and the timings of a completion's last event."""
        usage, timings = self._outcome.usage, last.get("timings")
        timings = timings if isinstance(timings, dict) else {}
        if not self._measured:
            self._measured = True
            usage.prompt = _count(last, "tokens_evaluated", usage.prompt)
            usage.cached = _count(timings, "cache_n")
        usage.read_again += _count(timings, "prompt_n")
        if timings:
            self._outcome.timings = _joined(self._earlier, timings)


def _joined(earlier: Mapping[str, Any] | None, timings: dict[str, Any]) -> dict[str, Any]:
    """Return the timings of all completions: of the prompt, the first one's cached tokens count."""
    if earlier is None:
        return timings
    joined = {**timings, "cache_n": earlier.get("cache_n", 0)}
    for name in ("draft_n", "draft_n_accepted"):
        if name in earlier or name in timings:
            joined[name] = earlier.get(name, 0) + timings.get(name, 0)
    for kind in ("prompt", "predicted"):
        count, milliseconds = (earlier.get(f"{kind}_{of}", 0) + timings.get(f"{kind}_{of}", 0) for of in ("n", "ms"))
        joined[f"{kind}_n"], joined[f"{kind}_ms"] = count, milliseconds
        joined[f"{kind}_per_token_ms"] = milliseconds / count if count else 0.0
        joined[f"{kind}_per_second"] = 1000 * count / milliseconds if milliseconds else 0.0
    return joined


def _count(fields: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return a token count from the server; ``default`` if it is missing."""
    value = fields.get(name)
    return value if isinstance(value, int) else default
