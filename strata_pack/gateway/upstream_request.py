"""Convert a turn to an upstream request: prompt, grammar of the answer, and parser of the output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from strata_pack.gateway.engine import RunningModel
from strata_pack.gateway.generation import Generation
from strata_pack.gateway.grammar.gbnf import answer_constraint, call_grammar
from strata_pack.gateway.offload import offload, weight
from strata_pack.gateway.prompt import Prompt
from strata_pack.gateway.turn import GrammarAnswer, Turn
from strata_pack.parsing import ImplicitEnd, OutputParser


@dataclass(frozen=True)
class UpstreamRequest:
    """The request to ``engine``, the same for all choices of a turn.

    ``constraint``: fields of ``/completion`` (grammar or schema) that apply to the answer.
    """

    turn: Turn
    prompt: Prompt
    constraint: dict[str, Any]
    engine: RunningModel

    @property
    def left_out(self) -> tuple[str, ...]:
        """Parts of the request that the model does not get."""
        return (*self.turn.left_out, *self.prompt.left_out)


async def prepare_request(turn: Turn, engine: RunningModel) -> UpstreamRequest:
    """Return the upstream request of ``turn``. Raises ``ApiError`` 400 if it is impossible."""
    constraint = await _constraint(turn, engine)
    return UpstreamRequest(turn, await engine.prompts.build(turn), constraint, engine)


async def _constraint(turn: Turn, engine: RunningModel) -> dict[str, Any]:
    if turn.tool_choice == "required":
        tools = [tool for tool in turn.tools if turn.tool_name in (None, tool["function"]["name"])]
        form: Literal["xml", "json"] = "json" if engine.call_format == "json" else "xml"

        def grammar() -> str:
            return call_grammar(tools, form, parallel=turn.parallel_tool_calls, dialect=engine.dialect)

        return {"grammar": await offload(weight(tools), grammar)}
    if isinstance(turn.answer, GrammarAnswer):
        return {"grammar": turn.answer.grammar}
    if turn.answer is None:
        return {}
    schema = turn.answer.schema
    return await offload(weight(schema), lambda: answer_constraint(schema))


def new_generation(request: UpstreamRequest, index: int, implicit_end: ImplicitEnd) -> Generation:
    """Return the generation of choice ``index``."""
    turn, prompt, engine = request.turn, request.prompt, request.engine
    spent = prompt.thinking and turn.reasoning_budget == 0
    if spent:
        prompt = prompt.then(prompt.think_close)

    def make_parser() -> OutputParser:
        return OutputParser(
            thinking=prompt.thinking,
            tools=turn.parsed_tools,
            stream_tools=turn.stream,
            implicit_end=implicit_end,
            call_format=engine.call_format,
            dialect=engine.dialect,
        )

    generation = Generation(
        turn if turn.seed is None else replace(turn, seed=(turn.seed + index) % (1 << 32)),
        prompt,
        make_parser,
        upstream=engine.upstream,
        prompts=engine.prompts,
        constraint=request.constraint,
        pieces=engine.pieces,
    )
    generation.outcome.budget_closed = spent
    return generation
