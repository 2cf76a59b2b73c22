"""Images through the gateway before a real llama.cpp server with a tiny random tower."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from strata_pack.gateway.server.run import make_gateway
from strata_pack.llama.server import LlamaServer
from strata_pack.pack.build import build_pack
from tests.gateway.conftest import REAL_SETTINGS, House, RealHouse, sent_prompts
from tests.gateway.images import SVG, base64_of, data_url, encoded, picture
from tests.gateway.server.served import Served
from tests.gateway.test_control_tokens import ATTACKS
from tests.gateway.vision.seeing import CALL, anthropic_messages, block, chat, chat_image, user, with_image
from tests.pack.test_projector import request
from tests.seeing_model import seeing_files, write_seeing

pytestmark = pytest.mark.xdist_group("real-images")

RED, GREEN = encoded(picture(64, 64)), encoded(picture(64, 64, (0, 250, 0)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return seeing_files(tmp_path_factory.mktemp("eyes"))


@pytest.fixture(scope="module")
def server(files: tuple[Path, Path]) -> Iterator[LlamaServer]:
    with LlamaServer.start(files[0], projector=files[1], context=4096, threads=2) as started:
        yield started


@pytest.fixture(scope="module")
def real(server: LlamaServer) -> Iterator[House]:
    with RealHouse(make_gateway(server.url, REAL_SETTINGS)) as house:
        yield house


def asked(real: House, *parts: Any, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 5, "enable_thinking": False}
    answer = real.post({**chat(user(*parts))[1], **body, **fields})
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def likeliest(reply: dict[str, Any]) -> list[float]:
    (entry,) = reply["choices"][0]["logprobs"]["content"]
    return [one["logprob"] for one in entry["top_logprobs"]]


def test_different_images_give_different_logits_and_the_same_the_same(real: House) -> None:
    red, green, again = (likeliest(asked(real, "What is this?", chat_image(one))) for one in (RED, GREEN, RED))
    assert max(abs(a - b) for a, b in zip(red, green, strict=True)) > 1e-3
    assert red == pytest.approx(again, abs=1e-4)


def test_an_image_in_a_tool_result_is_seen(real: House) -> None:
    def seen(image: bytes) -> list[float]:
        result = {
            "role": "tool",
            "tool_call_id": "c",
            "content": [{"type": "text", "text": "a.png"}, chat_image(image)],
        }
        history = [user("Look"), {"role": "assistant", "tool_calls": [CALL]}, result]
        return likeliest(asked(real, messages=history))

    assert max(abs(a - b) for a, b in zip(seen(RED), seen(GREEN), strict=True)) > 1e-3


@pytest.mark.parametrize("size", [(64, 64), (32, 32), (1, 1), (300, 60)])
def test_the_count_of_a_prompt_is_what_the_server_reads(size: tuple[int, int], real: House) -> None:
    path, body = anthropic_messages(user("What is this?", block(encoded(picture(*size)))))
    used = real.post({**body, "max_tokens": 1}, path).json()["usage"]
    counted = real.post(body, f"{path}/count_tokens").json()["input_tokens"]
    assert counted == used["input_tokens"] + used["cache_read_input_tokens"] + used["cache_creation_input_tokens"]


def test_a_prompt_with_an_image_is_cached(real: House) -> None:
    words = "A long and steady question. " * 10
    asked(real, words, chat_image(RED))
    used = asked(real, words, chat_image(RED))["usage"]
    assert used["prompt_tokens_details"]["cached_tokens"] > used["prompt_tokens"] - 10


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_opens_no_turn_to_the_real_tokenizer(name: str, server: LlamaServer, real: House) -> None:
    with sent_prompts(real) as sent:
        assert real.post({**with_image(ATTACKS[name]), "max_tokens": 1}).status_code == 200
    text = sent[0]["prompt_string"]
    control = {server.client.tokenize(token)[0]: token for token in ("<|im_start|>", "<|im_end|>", "<|vision_start|>")}
    tokens = [token for token in server.client.tokenize(text) if token in control]
    turns = sum(1 for message in ATTACKS[name]["messages"] if message["role"] != "system") + 3
    found = [control[token] for token in tokens]
    assert (found.count("<|im_start|>"), found.count("<|im_end|>")) == (turns, turns - 1)
    assert len(found) == 2 * turns - 1


def test_a_bad_image_is_a_400_and_the_server_goes_on(real: House) -> None:
    for image in (SVG, encoded()[:-30], b"", b"x" * 100):
        assert real.post(chat(user("x", chat_image(image)))[1]).status_code == 400
    assert likeliest(asked(real, chat_image(RED)))


def test_an_image_that_fills_the_context_is_a_prompt_that_is_too_long(real: House) -> None:
    answer = real.post(chat(user("x", chat_image(encoded(picture(2000, 2000)))))[1])
    assert answer.status_code == 400
    assert re.search("prompt has .* tokens", answer.json()["error"]["message"])


def test_serve_sees_with_the_projector_that_is_named(files: tuple[Path, Path]) -> None:
    served = Served(str(files[0]), "--mmproj", str(files[1]), "--template", "qwen3.8-flash-next", "--context", "512")
    try:
        parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": data_url(RED)}}]
        answer = served.post(messages=[{"role": "user", "content": parts}])
        assert answer.status_code == 200, answer.text
        with_address = [{"type": "image_url", "image_url": {"url": "https://127.0.0.1/a.png"}}]
        refused = served.post(messages=[{"role": "user", "content": with_address}])
        assert "--fetch-images" in refused.json()["error"]["message"]
    finally:
        served.process.terminate()
        served.process.communicate(timeout=30)


@pytest.mark.slow
def test_flash_next_is_served_with_eyes_or_with_its_draft_head(tmp_path: Path) -> None:
    build_pack(request(write_seeing(tmp_path / "Tiny-Flash", "flash"), tmp_path / "pack"))
    common = ("--template", "qwen3.8-flash-next", "--context", "1024", "--spec", "mtp")
    for more, status in (((), 200), (("--no-mmproj",), 400)):
        served = Served(str(tmp_path / "pack"), *common, *more)
        try:
            messages = [user("x", chat_image(RED))]
            assert served.post(messages=messages).status_code == status
            assert served.post(messages=[user("Go on")], max_tokens=16).status_code == 200
        finally:
            served.process.terminate()
            said = served.process.communicate(timeout=30)[1]
        assert ("cannot draft and see images" in said) is (not more)


def test_the_server_itself_would_open_a_turn_for_a_user(server: LlamaServer) -> None:
    # Why the gateway changes the text: llama-server parses control tokens wherever they stand in such a prompt.
    marker = server.client.props().raw["media_marker"]

    def size(text: str) -> int:
        prompt = {"prompt_string": text + marker, "multimodal_data": [base64_of(RED)]}
        answer = httpx.post(f"{server.url}/completion", json={"prompt": prompt, "n_predict": 0}, timeout=60)
        evaluated: int = json.loads(answer.text)["tokens_evaluated"]
        return evaluated

    assert size("<|im_start|>") == size("x")
    assert size("<\u200b|im_start|>") > size("x") + 5
