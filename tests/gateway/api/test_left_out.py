"""Tools, items, blocks and media that cannot be served are left out or become text, and the request goes on."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.gateway.conftest import LIST_JOBS, House, events

DONE = "</think>\n\nok"
SPAWN = {"type": "function", "name": "spawn", "description": "Start one.", "parameters": {"type": "object"}}
NAMESPACE = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [SPAWN]}
SPAWN_CALL = "</think>\n\n<tool_call>\n<function=agents__spawn>\n</function>\n</tool_call>"
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": {"type": "text"}}
PATCH_CALL = (
    "</think>\n\n<tool_call>\n<function=apply_patch>\n<parameter=input>\n*** Begin\n*** End\n</parameter>\n"
    "</function>\n</tool_call>"
)  # fmt: skip
HOSTED = ("web_search", "web_search_preview", "file_search", "local_shell", "mcp", "computer_use_preview", "new_thing")
PIXEL = "data:image/png;base64,iVBORw0KGgo="


def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **fields}


def responses(*items: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [{"role": "user", "content": "Hi"}, *items], **fields}


def messages(*more: dict[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/messages", {"max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}, *more], **fields}


def served(house: House, asked: tuple[str, dict[str, Any]], text: str = DONE) -> dict[str, Any]:
    """Return the reply to a request whose upstream generates ``text``."""
    house.says(text)
    answer = house.post(asked[1], asked[0])
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


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


# Media

VIEW_CALL = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
IN_RESULTS: list[tuple[str, dict[str, Any]]] = [
    chat(messages=[
        {"role": "user", "content": "Look"},
        {"role": "assistant", "tool_calls": [VIEW_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [
            {"type": "text", "text": "a.png"}, {"type": "image_url", "image_url": {"url": PIXEL}},
        ]},
    ]),
    responses(
        {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_text", "text": "a.png"}, {"type": "input_image", "image_url": PIXEL},
        ]},
    ),
    messages(
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
            {"type": "text", "text": "a.png"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}},
        ]}]},
    ),
]  # fmt: skip


@pytest.mark.parametrize("asked", IN_RESULTS, ids=["chat", "responses", "messages"])
def test_an_image_in_a_tool_result_is_a_line_of_text(asked: tuple[str, dict[str, Any]], house: House) -> None:
    served(house, asked)
    assert "<tool_response>\na.png\n[image: this model cannot see it]\n</tool_response>" in house.prompt
    assert "iVBOR" not in house.prompt


@pytest.mark.parametrize(
    "block",
    [
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {}}]}},
        {"type": "block_of_next_year"},
    ],
)
def test_whatever_a_tool_returns_the_loop_goes_on(block: dict[str, Any], house: House) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [block]}
    served(house, messages(use, {"role": "user", "content": [result]}))
    assert "this model cannot" in house.prompt


def test_a_failed_result_that_is_an_image_alone_says_so(house: House) -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": [{"type": "image", "source": {}}]}
    served(house, messages(use, {"role": "user", "content": [result]}))
    assert "<tool_response>\nError\n[image: this model cannot see it]\n</tool_response>" in house.prompt


def test_tokens_of_a_conversation_with_an_image_are_counted(house: House) -> None:
    path, body = IN_RESULTS[2]
    answer = house.post(body, f"{path}/count_tokens")
    assert answer.json()["input_tokens"] > 0, answer.text


@pytest.mark.parametrize(
    "asked",
    [
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]),
        responses({"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}),
        messages({"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x/"}}]}),
    ],
    ids=["chat", "responses", "messages"],
)
def test_an_image_in_a_users_own_message_is_refused(asked: tuple[str, dict[str, Any]], house: House) -> None:
    answer = house.post(asked[1], asked[0])
    assert answer.status_code == 400
    assert "no projector" in json.dumps(answer.json())


RUN = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}]}
SEEN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "read a.png"}


@pytest.mark.parametrize(
    "more",
    [[RUN, RESULT, SEEN], [RUN, RESULT, {"role": "user", "content": "It is:"}, SEEN], [SEEN, RUN, RESULT]],
    ids=["after a result", "after its announcement", "answered"],
)
def test_an_image_that_the_user_cannot_take_back_is_a_text(more: list[dict[str, Any]], house: House) -> None:
    served(house, chat(messages=[{"role": "user", "content": "Hi"}, *more]))
    assert house.prompt.count("[image: this model cannot see it]") == 1


@pytest.mark.parametrize(
    "more",
    [[SEEN], [RUN, RESULT, {"role": "assistant", "content": "Red."}, SEEN]],
    ids=["first", "after an answer"],
)
def test_an_image_that_the_user_sends_now_is_a_400(more: list[dict[str, Any]], house: House) -> None:
    answer = house.post({"messages": [{"role": "user", "content": "Hi"}, *more]})
    assert answer.status_code == 400
    assert "no projector" in answer.json()["error"]["message"]


BASE64 = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"
NOTE = {"type": "text", "text": "a note"}


@pytest.mark.parametrize(
    "image",
    [
        {"type": "media", "mediaType": "image/png", "data": BASE64},
        {"type": "image-data", "data": BASE64, "mediaType": "image/png"},
        {"type": "file", "mediaType": "image/png", "data": {"type": "data", "data": BASE64}},
        {"type": "file", "mediaType": "image/png", "data": {"type": "url", "url": "https://x/a.png"}},
    ],
    ids=["5", "6", "7", "url"],
)
def test_a_result_that_is_the_json_of_its_parts_becomes_parts(image: dict[str, Any], house: House) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": json.dumps([NOTE, image])}
    served(house, chat(messages=[{"role": "user", "content": "Hi"}, RUN, result]))
    assert "<tool_response>\na note\n[image: this model cannot see it]\n</tool_response>" in house.prompt


@pytest.mark.parametrize(
    "text",
    [
        '[{"mediaType": "image/png"}]',
        '[{"type": "file", "mediaType": "image/png", "data": "not base64!"}]',
        '[{"type": "file", "mediaType": "image/png", "data": "' + BASE64,
        '{"type": "file", "mediaType": "image/png", "data": "' + BASE64 + '"}',
        '[{"type": "text", "text": "\\"mediaType\\""}]',
        '[{"type": "file", "mediaType": "image/png"}, 1]',
    ],
)
def test_a_result_of_other_json_stays_its_text(text: str, house: House) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": text}
    served(house, chat(messages=[{"role": "user", "content": "Hi"}, RUN, result]))
    assert f"<tool_response>\n{text}\n</tool_response>" in house.prompt


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
