"""Outcomes of completions and of replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True)
class Ending:
    """How one completion ended: llama-server's ``stop_type`` ("eos", "word", "limit"), or by the gateway: "budget",
    "call"."""

    kind: str
    stop_text: str = ""


@dataclass
class Usage:
    """Tokens of one reply. ``read_again``: prompt tokens that were not in the server's cache."""

    prompt: int = 0
    cached: int = 0
    read_again: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass
class GenerationOutcome:
    """How a reply ended. ``finish_reason`` is OpenAI's; ``stop_text`` the client's stop string that ended it;
    ``timings`` are llama-server's, of all completions, if it sent them."""

    finish_reason: FinishReason = "stop"
    stop_text: str | None = None
    budget_closed: bool = False
    usage: Usage = field(default_factory=Usage)
    timings: dict[str, Any] | None = None
