"""The real clients of the two APIs, and one agent framework, against the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.gateway.conftest import IMPLICIT, LIST_JOBS, LOOKUP, House

ASK: list[Any] = [{"role": "user", "content": "Which jobs run?"}]
CALL = "Look.\n</think>\n\n<tool_call>\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n</tool_call>"
ANSWER = "I know.\n</think>\n\nTwo jobs run."


@pytest.fixture
def client(house: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def claude(house: House) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=house.url, api_key="none", max_retries=0) as made:
        yield made


def test_openai_gets_the_call_that_was_written_inside_the_thinking(client: openai.OpenAI, house: House) -> None:
    house.says(IMPLICIT)
    reply = client.chat.completions.create(model="m", messages=ASK, tools=[LIST_JOBS])  # type: ignore[list-item]
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.tool_calls is not None
    assert reply.choices[0].message.tool_calls[0].function.name == "list_jobs"  # type: ignore[union-attr]
    assert reply.choices[0].message.reasoning_content == "Go.\n\n"  # type: ignore[attr-defined]
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None


def test_openai_runs_a_tools_loop_to_the_final_answer(client: openai.OpenAI, house: House) -> None:
    house.says(IMPLICIT)
    house.says(CALL)
    house.says(ANSWER)
    messages: list[Any] = list(ASK)
    results = {"list_jobs": "[1, 2]", "lookup": "leaves"}
    for _ in range(5):
        message = (
            client.chat.completions.create(model="m", messages=messages, tools=[LIST_JOBS, LOOKUP]).choices[0].message
        )  # type: ignore[list-item]
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            name = call.function.name  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": results[name]})
    assert messages[-1]["content"] == "Two jobs run."
    assert "</think>\n\n<tool_call>\n<function=list_jobs>" in house.prompt
    assert "<tool_response>\nleaves\n</tool_response>" in house.prompt


def test_openai_streams(client: openai.OpenAI, house: House) -> None:
    house.says(f"Hm.\n</think>\n\nText.\n{CALL.split('</think>')[1].strip()}")
    with client.chat.completions.stream(model="m", messages=ASK, tools=[LOOKUP]) as stream:  # type: ignore[list-item]
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert message.content == "Text."
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"q": "tea"}


def test_openai_streams_usage(client: openai.OpenAI, house: House) -> None:
    house.says(ANSWER)
    chunks = list(
        client.chat.completions.create(model="m", messages=ASK, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 5
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Two jobs run."


def test_openai_async_runs_several_at_once(house: House) -> None:
    async def main() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
            replies = await asyncio.gather(*(client.chat.completions.create(model="m", messages=ASK) for _ in range(6)))
            return [reply.choices[0].message.content for reply in replies]

    for _ in range(6):
        house.says(ANSWER)
    assert asyncio.run(main()) == ["Two jobs run."] * 6


def test_openai_parses_structured_output(client: openai.OpenAI, house: House) -> None:
    class Jobs(BaseModel):
        count: int

    house.says("Hm.\n</think>")
    house.says('{"count": 2}')
    reply = client.chat.completions.parse(model="m", messages=ASK, response_format=Jobs)
    assert reply.choices[0].message.parsed == Jobs(count=2)
    assert house.replay.bodies[-1]["json_schema"]["properties"]["count"]["type"] == "integer"


def test_openai_knows_our_errors(client: openai.OpenAI, house: House) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages="x")  # type: ignore[arg-type]
    assert caught.value.param == "messages"
    house.says("x", error={"code": 503, "message": "Loading model"}, status=503)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=ASK)


def test_openai_retries_what_is_worth_it(house: House) -> None:
    house.says("x", error={"code": 503, "message": "Loading model"}, status=503)
    house.says(ANSWER)
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=1) as client:
        reply = client.chat.completions.create(model="m", messages=ASK, extra_headers={"x-should": "retry"})
    assert reply.choices[0].message.content == "Two jobs run."


def test_openai_lists_the_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["test-model"]


def test_openai_responses_whole_and_streamed(client: openai.OpenAI, house: House) -> None:
    tools: list[Any] = [{"type": "function", **LIST_JOBS["function"], "strict": False}]
    house.says(IMPLICIT)
    reply = client.responses.create(model="m", input="Jobs?", tools=tools)
    assert [item.type for item in reply.output] == ["reasoning", "function_call"]
    items: list[Any] = [{"role": "user", "content": "Jobs?"}, *(item.model_dump() for item in reply.output)]
    items.append({"type": "function_call_output", "call_id": reply.output[1].call_id, "output": "[1, 2]"})  # type: ignore[union-attr]
    house.says(ANSWER)
    with client.responses.stream(model="m", input=items, tools=tools) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "Two jobs run."
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


RESULTS = {"list_jobs": "[1, 2]", "lookup": "leaves"}
SECRET: Any = {"include": ["reasoning.encrypted_content"], "store": False}


def responses_loop(client: openai.OpenAI, *, streamed: bool, reduced: bool) -> str:
    """Run a tools loop as agents do it; ``reduced``: of the thinking only the encrypted content goes back."""
    tools: list[Any] = [{"type": "function", **tool["function"], "strict": False} for tool in (LIST_JOBS, LOOKUP)]
    items: list[Any] = [{"role": "user", "content": "Jobs?"}]
    for _ in range(5):
        body: dict[str, Any] = {"model": "m", "input": items, "tools": tools, **(SECRET if reduced else {})}
        if streamed:
            with client.responses.stream(**body) as stream:
                reply: Any = stream.get_final_response()
        else:
            reply = client.responses.create(**body)
        output = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in reply.output]
        for item in output:
            if reduced and item["type"] == "reasoning":
                del item["content"]
        items += output
        calls = [item for item in output if item["type"] == "function_call"]
        if not calls:
            return str(reply.output_text)
        items += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": RESULTS[call["name"]]}
            for call in calls
        ]
    return "no answer"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_openai_responses_keep_the_thinking_over_several_turns(
    streamed: bool, reduced: bool, client: openai.OpenAI, house: House
) -> None:
    for text in (IMPLICIT, CALL, ANSWER):
        house.says(text)
    assert responses_loop(client, streamed=streamed, reduced=reduced) == "Two jobs run."
    assert "<think>\nGo.\n</think>\n\n<tool_call>\n<function=list_jobs>" in house.prompt
    assert "<think>\nLook.\n</think>\n\n<tool_call>\n<function=lookup>" in house.prompt
    assert "<tool_response>\nleaves\n</tool_response>" in house.prompt


class Query(BaseModel):
    q: str


def test_openai_responses_parse_the_arguments_of_a_strict_tool(client: openai.OpenAI, house: House) -> None:
    tool: Any = openai.pydantic_function_tool(Query, name="lookup")
    house.says(CALL)
    reply = client.responses.parse(model="m", input="Jobs?", tools=[tool])
    assert reply.output[-1].parsed_arguments == Query(q="tea")  # type: ignore[union-attr]
    assert reply.tools[0].strict is True  # type: ignore[union-attr]
    house.says(CALL)
    with client.responses.stream(model="m", input="Jobs?", tools=[tool]) as stream:
        final = stream.get_final_response()
    assert final.output[-1].parsed_arguments == Query(q="tea")  # type: ignore[union-attr]


def test_openai_responses_parse_structured_output(client: openai.OpenAI, house: House) -> None:
    house.says("Hm.\n</think>")
    house.says('{"q": "tea"}')
    reply = client.responses.parse(model="m", input="Jobs?", text_format=Query)
    assert reply.output_parsed == Query(q="tea")
    assert reply.text is not None
    assert reply.text.format is not None
    assert reply.text.format.type == "json_schema"


def test_openai_responses_stream_never_completes_a_cut_call(client: openai.OpenAI, house: House) -> None:
    tools: list[Any] = [{"type": "function", **LOOKUP["function"], "strict": False}]
    house.says(["</think>\n\n", "<tool_call>\n<function=lookup>\n<parameter=q>\n", "tea and ", "cake and more", "x"])
    with client.responses.stream(model="m", input="Jobs?", tools=tools, max_output_tokens=4) as stream:
        kinds = {event.type for event in stream}
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" not in kinds
    assert "response.incomplete" in kinds
    assert "response.completed" not in kinds


async def agents_answer(model: Any, *, streamed: bool) -> str:
    """Return what an agent with one tool answers in the end."""
    from pydantic_ai import Agent

    def list_jobs() -> str:
        """List the jobs."""
        return "[1, 2]"

    agent = Agent(model, tools=[list_jobs])
    if not streamed:
        return str((await agent.run("Which jobs run?")).output)
    async with agent.run_stream("Which jobs run?") as run:
        return str(await run.get_output())


def assert_thinking_comes_back(house: House, answering: Coroutine[Any, Any, str]) -> None:
    """Let the agent call its tool and answer; its second prompt must hold the thinking of the first turn, once."""
    house.says(IMPLICIT)
    house.says(ANSWER)
    assert asyncio.run(answering) == "Two jobs run."
    assert SECOND_TURN in house.prompt
    assert house.prompt.count("Go.") == 1
    assert house.prompt.count("<|im_start|>user\nWhich jobs run?<|im_end|>") == 1


@pytest.mark.parametrize("streamed", [False, True])
def test_a_pydantic_ai_agent_on_openai_responses_sends_thinking_back_as_thinking(streamed: bool, house: House) -> None:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
            model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
            return await agents_answer(model, streamed=streamed)

    assert_thinking_comes_back(house, main())


def test_anthropic_whole_and_streamed_with_a_tools_loop(claude: anthropic.Anthropic, house: House) -> None:
    tools: list[Any] = [{"name": "list_jobs", "input_schema": {"type": "object", "properties": {}}}]
    house.says(IMPLICIT)
    reply = claude.messages.create(model="m", max_tokens=500, messages=ASK, tools=tools)
    assert [block.type for block in reply.content] == ["thinking", "tool_use"]
    assert reply.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": reply.content[1].id, "content": "[1, 2]"}  # type: ignore[union-attr]
    messages: list[Any] = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
        {"role": "user", "content": [result]},
    ]
    house.says(ANSWER)
    with claude.messages.stream(model="m", max_tokens=500, messages=messages, tools=tools) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "Two jobs run."
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.usage.output_tokens > 3


def test_anthropic_streams_the_input_of_a_tool(claude: anthropic.Anthropic, house: House) -> None:
    tools: list[Any] = [{"name": "lookup", "input_schema": LOOKUP["function"]["parameters"]}]
    house.says(CALL)
    with claude.messages.stream(model="m", max_tokens=500, messages=ASK, tools=tools) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input == {"q": "tea"}  # type: ignore[union-attr]


def test_anthropic_counts_tokens_and_knows_our_errors(claude: anthropic.Anthropic) -> None:
    assert claude.messages.count_tokens(model="m", messages=ASK).input_tokens > 20
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="m", max_tokens=0, messages=ASK)


def test_a_pydantic_ai_agent_reaches_its_answer_after_an_implicit_end(house: House) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    asked: list[str] = []

    def list_jobs() -> str:
        """List the jobs."""
        asked.append("list_jobs")
        return "[1, 2]"

    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
            model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))
            agent = Agent(model, tools=[list_jobs])
            return str((await agent.run("Which jobs run?")).output)

    house.says(IMPLICIT)
    house.says(ANSWER)
    assert asyncio.run(main()) == "Two jobs run."
    assert asked == ["list_jobs"]
    assert "</think>\n\n<tool_call>\n<function=list_jobs>" in house.prompt


SECOND_TURN = (
    "<|im_start|>assistant\n<think>\nGo.\n</think>\n\n<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("streamed", [False, True])
def test_anthropic_keeps_the_thinking_of_a_call_in_the_history(
    streamed: bool, claude: anthropic.Anthropic, house: House
) -> None:
    tools: list[Any] = [{"name": "list_jobs", "input_schema": {"type": "object", "properties": {}}}]
    more: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": tools}
    house.says(IMPLICIT)
    reply: anthropic.types.Message
    if streamed:
        with claude.messages.stream(messages=ASK, **more) as stream:
            reply = stream.get_final_message()
    else:
        reply = claude.messages.create(messages=ASK, **more)
    thinking, call = reply.content
    assert thinking.type == "thinking"
    assert thinking.signature
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "[1, 2]"}  # type: ignore[union-attr]
    house.says(ANSWER)
    claude.messages.create(
        messages=[*ASK, {"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}],  # type: ignore[list-item]
        **more,
    )
    assert SECOND_TURN in house.prompt


@pytest.mark.parametrize("streamed", [False, True])
def test_a_pydantic_ai_agent_on_anthropics_api_sends_thinking_back_as_thinking(streamed: bool, house: House) -> None:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async def main() -> str:
        async with anthropic.AsyncAnthropic(base_url=house.url, api_key="none", max_retries=0) as client:
            model = AnthropicModel("m", provider=AnthropicProvider(anthropic_client=client))
            return await agents_answer(model, streamed=streamed)

    assert_thinking_comes_back(house, main())
