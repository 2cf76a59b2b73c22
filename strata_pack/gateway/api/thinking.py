"""Thinking options (effort, budget, visibility) under the field names of all supported APIs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from strata_pack.gateway.api.fields import Body, Budget, Effort
from strata_pack.gateway.failures import bad_request

RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Template variables that ``chat_template_kwargs`` may not set, because they have own fields."""

NO_EFFORT = "none"


class Reasoning(Body):
    """``reasoning`` of the Responses API, and of OpenRouter's Chat API (all but ``summary``)."""

    effort: Effort | None = None
    summary: str | None = None
    max_tokens: Budget = None
    enabled: bool | None = None
    exclude: bool | None = None


class Switch(Body):
    """``thinking`` of the makers of DeepSeek, GLM and Kimi."""

    type: str
    budget_tokens: Budget = None


SWITCHES = {"enabled": True, "disabled": False}


class ThinkingFields(Body):
    """The fields of a request about thinking. ``think`` is Ollama's, ``include_reasoning`` vLLM's and OpenRouter's."""

    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    thinking: Switch | None = None
    think: bool | Effort | None = None
    include_reasoning: bool | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_budget: Budget = None
    thinking_budget: Budget = None


@dataclass(frozen=True)
class ThinkingWish:
    """The fields of ``Turn`` derived from ``ThinkingFields``."""

    variables: dict[str, Any]
    effort_field: str
    budget: int | None
    shown: bool


THINKING_NAMES = frozenset(ThinkingFields.model_fields)
NO_EFFORT_FIELD = "chat_template_kwargs.reasoning_effort"
NO_WISH = ThinkingWish({}, NO_EFFORT_FIELD, None, shown=True)


def wanted_thinking(request: ThinkingFields) -> ThinkingWish:
    """Return the thinking options of ``request``; if two fields contradict, the one that switches thinking off wins."""
    if not request.model_fields_set & THINKING_NAMES:
        return NO_WISH
    reasoning = request.reasoning or Reasoning()
    efforts = {
        "reasoning_effort": request.reasoning_effort,
        "reasoning.effort": reasoning.effort,
        "think": request.think if isinstance(request.think, str) else None,
    }
    field, effort = next(((field, one) for field, one in efforts.items() if one), ("", None))
    switches = (
        request.enable_thinking,
        request.think if isinstance(request.think, bool) else None,
        reasoning.enabled,
        SWITCHES.get(request.thinking.type) if request.thinking else None,
    )
    given = [switch for switch in switches if switch is not None]
    budgets = (
        request.reasoning_budget,
        request.thinking_budget,
        reasoning.max_tokens,
        request.thinking.budget_tokens if request.thinking else None,
    )
    return ThinkingWish(
        variables=template_variables(request.chat_template_kwargs, effort, all(given) if given else None),
        effort_field=field or NO_EFFORT_FIELD,
        budget=next((budget for budget in budgets if budget is not None), None),
        shown=request.include_reasoning is not False and not reasoning.exclude,
    )


def template_variables(
    kwargs: dict[str, Any] | None, effort: str | None, enable_thinking: bool | None
) -> dict[str, Any]:
    """Return the template's variables; effort "none" means no thinking, as in OpenAI's API.

    Any other effort is passed to the template; ``prompt.py`` finds the nearest one that the template accepts.
    """
    for name in kwargs or {}:
        if name in RESERVED:
            raise bad_request(
                f"chat_template_kwargs.{name}: cannot be set here, because the request has a field for it",
                f"chat_template_kwargs.{name}",
            )
    variables = dict(kwargs or {})
    if effort == NO_EFFORT:
        variables["enable_thinking"] = False
    elif effort is not None:
        variables["reasoning_effort"] = effort
    if enable_thinking is not None:
        variables["enable_thinking"] = enable_thinking
    return variables
