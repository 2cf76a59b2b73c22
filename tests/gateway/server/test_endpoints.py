"""Paths and methods, the model's name, and what passes through to llama-server."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from tests.gateway.conftest import House

BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("POST", "/metrics", "GET, HEAD"),
        ("DELETE", "/v1/models/x", "GET, HEAD"),
    ],
)
def test_the_answer_to_a_wrong_method_names_the_right_one(method: str, path: str, allowed: str, house: House) -> None:
    answer = house.http.request(method, house.url + path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
    assert allowed in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models/", "/v1/chat/completions/", "//"])
def test_an_unknown_path_is_a_404(path: str, house: House) -> None:
    request = house.http.build_request("GET", house.url)
    request.url = request.url.copy_with(raw_path=path.encode())
    assert house.http.send(request).status_code == 404


def test_the_404_says_where_the_paths_are(house: House) -> None:
    assert "/openapi.json" in house.get("/v1/nothing").json()["error"]["message"]


def test_a_base_url_without_the_version_works_as_with_llama_server(house: House) -> None:
    house.says("</think>\n\nHi")
    with openai.OpenAI(base_url=house.url, api_key="x") as client:
        assert [one.id for one in client.models.list()] == ["test-model"]
        messages: Any = BODY["messages"]
        assert client.chat.completions.create(model="m", messages=messages).choices[0].message.content == "Hi"


def test_the_tokens_of_a_chat_request_are_counted_as_llama_server_does(house: House) -> None:
    counted = house.post(BODY, "/v1/chat/completions/input_tokens").json()
    assert counted == {"object": "response.input_tokens", "input_tokens": counted["input_tokens"]}
    assert counted["input_tokens"] == house.post(BODY, "/v1/messages/count_tokens").json()["input_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_tokens_of_a_passed_reply_are_counted(stream: bool, fresh_house: House) -> None:
    fresh_house.post({"prompt": "Once", "stream": stream}, "/v1/completions")
    totals = fresh_house.totals()
    assert (totals["prompt_tokens"], totals["cached_tokens"], totals["completion_tokens"]) == (7, 3, 2)


def test_head_is_answered_without_a_body(house: House) -> None:
    answer = house.http.head(house.url + "/health")
    assert answer.status_code == 200
    assert answer.content == b""


def test_openais_client_finds_the_model_by_its_name(house: House) -> None:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key="x") as client:
        assert client.models.retrieve("test-model").id == "test-model"
        with pytest.raises(openai.NotFoundError) as caught:
            client.models.retrieve("other/model")
    assert caught.value.code == "model_not_found"


def test_anthropics_client_finds_the_model_by_its_name(house: House) -> None:
    with anthropic.Anthropic(base_url=house.url, api_key="x") as client:
        (listed,) = client.models.list()
        assert listed == client.models.retrieve("test-model")
        assert listed.display_name == "test-model"
        assert listed.created_at.year > 2000
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.models.retrieve("other")
    assert caught.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]


def test_anthropics_client_learns_the_requests_id(house: House) -> None:
    house.says("Hi")
    with anthropic.Anthropic(base_url=house.url, api_key="x", max_retries=0) as client:
        messages: Any = BODY["messages"]
        reply = client.messages.create(model="m", max_tokens=5, messages=messages)
        assert reply._request_id
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(model="m", max_tokens=-1, messages=messages)
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [1, 2, 3], [[1, 2], [3]]])
def test_every_form_of_a_prompt_passes_to_llama_server(prompt: Any, house: House) -> None:
    assert house.post({"prompt": prompt}, "/v1/completions").json()["choices"][0]["text"] == "passed"


@pytest.mark.parametrize("prompt", [["a"] * 17, [[1]] * 17])
def test_more_prompts_than_choices_are_refused(prompt: Any, house: House) -> None:
    answer = house.post({"prompt": prompt}, "/v1/completions")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
