"""Tools, items, blocks and media that cannot be served are left out or become text, and the request goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.gateway.api.bodies import chat, messages, responses, served
from tests.gateway.conftest import LIST_JOBS, House, events

SPAWN = {"type": "function", "name": "spawn", "description": "Start one.", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN]}
SPAWN_CALL = "</think>\n\n<tool_call>\n<function=agents__spawn>\n</function>\n</tool_call>"
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": {"type": "text"}}
PATCH_CALL = (
    "</think>\n\n<tool_call>\n<function=apply_patch>\n<parameter=input>\n*** Begin\n*** End\n</parameter>\n"
    "</function>\n</tool_call>"
)  # fmt: skip
HOSTED = ("web_search", "web_search_preview", "file_search", "local_shell", "mcp", "computer_use_preview", "new_thing")


# Tools


@pytest.mark.parametrize("kind", HOSTED)
@pytest.mark.parametrize("ask", [chat, responses, messages], ids=["chat", "responses", "messages"])
def test_a_tool_that_is_no_function_is_not_shown_and_counted(kind: str, ask: Any, house: House) -> None:
    before = house.totals()["left_out"].get(f"tool {kind}", 0)
    name = "input_schema" if ask is messages else "parameters"
    own = {"name": "list_jobs", name: {"type": "object", "properties": {}}}
    function = LIST_JOBS if ask is chat else own if ask is messages else {"type": "function", **own}
    served(house, ask(tools=[function, {"type": kind, "name": "hosted_thing"}]))
    assert "list_jobs" in house.prompt
    assert "hosted_thing" not in house.prompt
    assert house.totals()["left_out"][f"tool {kind}"] == before + 1


def test_the_fields_of_a_tool_that_is_left_out_may_be_anything(house: House) -> None:
    served(house, responses(tools=[{"type": "mcp", "name": 5, "parameters": "x", "description": []}]))


@pytest.mark.parametrize("field", ["name", "description", "parameters"])
def test_a_wrong_field_of_a_function_is_named(field: str, house: House) -> None:
    path, body = responses(tools=[{"type": "function", "name": "f", field: 5}])
    answer = house.post(body, path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"tools.0.{field}"


def test_what_is_left_out_is_named_once_in_the_log(fresh_house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="strata_pack.gateway"):
        for _ in range(2):
            served(fresh_house, responses(tools=[{"type": "web_search"}]))
    assert [record.getMessage().count("tool web_search") for record in caplog.records].count(1) == 1


def test_words_of_clients_cannot_fill_the_counters(fresh_house: House) -> None:
    for number in range(3):
        tools = [{"type": f"kind_{number}_{one}"} for one in range(60)]
        served(fresh_house, responses(tools=[*tools, {"type": "x" * 1000}, {"type": "ü"}]))
    counted = fresh_house.totals()["left_out"]
    assert len(counted) <= 101
    assert sum(counted.values()) == 3 * 62


def test_a_call_of_a_namespace_comes_back_with_name_and_namespace_apart(house: House) -> None:
    reply = served(house, responses(tools=[NAMESPACE]), SPAWN_CALL)
    call = reply["output"][-1]
    assert (call["type"], call["name"], call["namespace"]) == ("function_call", "spawn", "agents")
    assert "agents: Other agents." in house.prompt


def test_a_call_of_a_namespace_streams_with_name_and_namespace_apart(house: House) -> None:
    path, body = responses(tools=[NAMESPACE], stream=True)
    house.says(SPAWN_CALL)
    sent = events(house.post(body, path).text)
    items = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert (items[-1]["name"], items[-1]["namespace"]) == ("spawn", "agents")


def test_a_call_of_a_namespace_in_the_history_has_its_flat_name(house: House) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "spawn", "namespace": "agents", "arguments": "{}"}
    served(house, responses(call, {"type": "function_call_output", "call_id": "c", "output": "done"}))
    assert "<function=agents__spawn>" in house.prompt


def test_a_namespace_works_in_the_chat_api_too(house: House) -> None:
    call = house.chat(SPAWN_CALL, tools=[NAMESPACE])["choices"][0]["message"]["tool_calls"][0]
    assert call["function"] == {"name": "spawn", "namespace": "agents", "arguments": "{}"}


def test_a_named_choice_reaches_into_a_namespace(house: House) -> None:
    choice = {"type": "function", "namespace": "agents", "name": "spawn"}
    served(house, responses(tools=[NAMESPACE], tool_choice=choice), SPAWN_CALL)


def test_a_custom_tool_is_called_with_one_text(house: House) -> None:
    item = served(house, responses(tools=[PATCH]), PATCH_CALL)["output"][-1]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", "*** Begin\n*** End")


def test_a_custom_tools_input_streams_whole(house: House) -> None:
    path, body = responses(tools=[PATCH], stream=True)
    house.says(PATCH_CALL)
    sent = events(house.post(body, path).text)
    deltas = [event["delta"] for event in sent if event["type"] == "response.custom_tool_call_input.delta"]
    done = [event["input"] for event in sent if event["type"] == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == "*** Begin\n*** End"
    assert done == ["*** Begin\n*** End"]
    assert not [event for event in sent if event["type"].startswith("response.function_call")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_custom_tool_of_the_chat_api_comes_back_as_one(stream: bool, house: House) -> None:
    tools = [{"type": "custom", "custom": {"name": "apply_patch"}}]
    if stream:
        chunks = house.stream(PATCH_CALL, tools=tools)
        deltas = [call for one in chunks for choice in one["choices"] for call in choice["delta"].get("tool_calls", [])]
        assert deltas[0]["type"] == "custom"
        assert "".join(delta["custom"]["input"] for delta in deltas) == "*** Begin\n*** End"
    else:
        (call,) = house.chat(PATCH_CALL, tools=tools)["choices"][0]["message"]["tool_calls"]
        assert call["custom"] == {"name": "apply_patch", "input": "*** Begin\n*** End"}


def test_a_custom_call_in_the_chat_history_reaches_the_model(house: House) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}}
    history = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ]
    served(house, chat(messages=history))
    assert "<function=apply_patch>\n<parameter=input>\n*** Begin\n</parameter>" in house.prompt


@pytest.mark.parametrize(
    ("kind", "name", "word"),
    [
        ("bash_20250124", "bash", "restart"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "insert_text"),
        ("text_editor_20250124", "str_replace_editor", "undo_edit"),
        ("memory_20250818", "memory", "old_path"),
    ],
)
def test_a_tool_that_anthropics_clients_run_is_a_function(kind: str, name: str, word: str, house: House) -> None:
    served(house, messages(tools=[{"type": kind, "name": name}]))
    assert f'"{name}"' in house.prompt
    assert word in house.prompt


# Histories of other servers

FOREIGN_ITEMS: list[tuple[list[dict[str, Any]], str]] = [
    (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "patched"},
        ],
        "patched",
    ),
    (
        [
            {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            {"type": "local_shell_call_output", "call_id": "c", "output": "a.txt"},
        ],
        "a.txt",
    ),
    (
        [
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls -l"]}},
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "b.txt", "stderr": ""}]},
        ],
        "b.txt",
    ),
    ([{"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "green tea"}}], "green tea"),
    (
        [{"type": "mcp_call", "id": "m", "server_label": "git", "name": "log", "arguments": "{}", "output": "abc"}],
        "abc",
    ),
    ([{"type": "code_interpreter_call", "id": "i", "code": "6*7", "outputs": [{"logs": "42"}]}], "42"),
    ([{"type": "image_generation_call", "id": "i", "result": "AAAA"}], "[image: this model cannot see it]"),
    ([{"type": "mcp_list_tools", "id": "l", "tools": []}], ""),
    ([{"type": "compaction", "encrypted_content": "gAAAA"}], ""),
    ([{"type": "something_of_next_year", "payload": {"a": 1}}], ""),
    ([{"type": "item_reference", "id": "rs_unknown"}], ""),
]


@pytest.mark.parametrize(("items", "word"), FOREIGN_ITEMS, ids=[items[0]["type"] for items, _ in FOREIGN_ITEMS])
def test_an_item_of_another_server_is_read_or_passed_over(items: Any, word: str, house: House) -> None:
    served(house, responses(*items))
    assert word in house.prompt
    assert "gAAAA" not in house.prompt


PAGE = {"type": "document", "source": {"type": "text", "data": "Steep for three minutes."}}
FOREIGN_BLOCKS: list[tuple[list[dict[str, Any]], str]] = [
    (
        [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "green tea"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s",
                "content": [{"type": "web_search_result", "title": "Tea", "encrypted_content": "SECRET"}],
            },
            {"type": "text", "text": "Found."},
        ],
        "green tea",
    ),
    (
        [
            {"type": "mcp_tool_use", "id": "m", "name": "log", "server_name": "git", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "abc123"}]},
            {"type": "text", "text": "Found."},
        ],
        "abc123",
    ),
    (
        [
            {
                "type": "web_fetch_tool_result",
                "tool_use_id": "f",
                "content": {"type": "web_fetch_result", "content": PAGE},
            },
            {"type": "text", "text": "Found."},
        ],
        "Steep for three minutes.",
    ),
    ([{"type": "compaction", "content": "What was said."}, {"type": "text", "text": "Found."}], "What was said."),
    ([{"type": "redacted_thinking", "data": "SECRET"}, {"type": "text", "text": "Found."}], "Found."),
    ([{"type": "block_of_next_year", "x": "SECRET"}, {"type": "text", "text": "Found."}], "Found."),
]


@pytest.mark.parametrize(("blocks", "word"), FOREIGN_BLOCKS, ids=[blocks[0]["type"] for blocks, _ in FOREIGN_BLOCKS])
def test_a_block_of_another_server_is_read_or_passed_over(blocks: Any, word: str, house: House) -> None:
    served(house, messages({"role": "assistant", "content": blocks}, {"role": "user", "content": "Go on."}))
    assert word in house.prompt
    assert "Found." in house.prompt
    assert "SECRET" not in house.prompt


HOSTED = {"chat": {"type": "web_search"}, "messages": {"type": "web_search_20250305", "name": "web_search"}}
DEMANDS = {
    "chat, any": ("/v1/chat/completions", HOSTED["chat"], "required"),
    "chat, by its type": ("/v1/chat/completions", HOSTED["chat"], {"type": "web_search"}),
    "responses, any": ("/v1/responses", HOSTED["chat"], "required"),
    "responses, by its type": ("/v1/responses", HOSTED["chat"], {"type": "web_search"}),
    "messages, any": ("/v1/messages", HOSTED["messages"], {"type": "any"}),
    "messages, by its name": ("/v1/messages", HOSTED["messages"], {"type": "tool", "name": "web_search"}),
}


@pytest.mark.parametrize("name", DEMANDS)
def test_a_choice_that_demands_what_was_left_out_demands_nothing(name: str, house: House) -> None:
    path, tool, choice = DEMANDS[name]
    house.says("</think>\n\nok")
    asked = {"input": "x"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "x"}]}
    answer = house.post({**asked, "max_tokens": 50, "tools": [tool], "tool_choice": choice}, path)
    assert answer.status_code == 200, answer.text
    assert "grammar" not in house.replay.bodies[-1]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_choice_of_a_hosted_tool_that_was_not_declared_is_refused(path: str, house: House) -> None:
    asked = {"input": "x"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "x"}]}
    answer = house.post({**asked, "tool_choice": {"type": "web_search"}}, path)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tool_choice.type"
