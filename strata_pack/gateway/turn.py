"""A request in the form that the gateway uses for all APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ToolChoice = Literal["auto", "none", "required"]


CUSTOM_INPUT = "input"
"""The parameter of the function of a custom tool."""


@dataclass(frozen=True)
class JsonAnswer:
    """The answer must be JSON; ``schema`` ``{}`` allows any object."""

    schema: dict[str, Any]


@dataclass(frozen=True)
class GrammarAnswer:
    """The answer must follow ``grammar`` (GBNF), which the client wrote in its field ``field``."""

    grammar: str
    field: str


AnswerForm = JsonAnswer | GrammarAnswer


@dataclass(frozen=True)
class Origin:
    """The client's declaration of a tool that the model gets as a function of another name or kind."""

    name: str
    namespace: str | None = None
    custom: bool = False


@dataclass(frozen=True)
class Turn:
    """One request.

    ``messages`` in OpenAI's form; ``tools`` OpenAI tool objects, empty for none;
    ``tools_unknown``: the client sent an empty list, so it accepts calls of functions declared elsewhere;
    ``tool_name`` the function that a named ``tool_choice`` demands; ``variables`` the template's, ``effort_field`` the
    request's field of ``reasoning_effort``; ``sampling`` fields of llama-server's ``/completion``;
    ``stop`` applies to all generated text, thinking and calls included; ``top_logprobs`` ``None`` for no log
    probabilities; ``reasoning_budget`` in tokens; ``shows_reasoning`` false: the client wants no thinking in the reply;
    ``timings_per_token`` and ``return_progress``: a stream reports llama-server's timings and the prompt's progress;
    ``origins`` of tools that the client declared in another form; ``left_out`` parts of the
    request that the model does not get ("tool web_search", "item compaction").
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    tools_unknown: bool = False
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool = True
    answer: AnswerForm | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    effort_field: str = "reasoning_effort"
    sampling: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    top_logprobs: int | None = None
    reasoning_budget: int | None = None
    continues: bool = False
    stream: bool = False
    shows_reasoning: bool = True
    timings_per_token: bool = False
    return_progress: bool = False
    origins: Mapping[str, Origin] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    @property
    def parsed_tools(self) -> list[dict[str, Any]] | None:
        """The tools for the output parser: ``None`` if calls are accepted although none are declared."""
        return None if self.tools_unknown and self.tool_choice != "none" else self.callable_tools

    @property
    def callable_tools(self) -> list[dict[str, Any]]:
        """The tools that this turn may call: empty with ``tool_choice`` "none"."""
        return [] if self.tool_choice == "none" else self.tools
