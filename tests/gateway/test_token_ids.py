"""Token ids: what ordinary tokens spell is text, what the special token says is a tag, and doubt changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from strata_pack.gateway.server.run import make_gateway
from strata_pack.gateway.service import Gateway
from strata_pack.gateway.token_ids import tags_are_tokens
from strata_pack.llama.server import LlamaServer
from strata_pack.parsing import DIALECTS
from tests.gateway.conftest import LOOKUP, SETTINGS, House, events, join_chunks
from tests.gateway.replay import Replay
from tests.smoke.tiny import write_tiny_model

WORDS = ("<", "tool", "_call", ">", "</", "think", "\n", "ok", " ", "<tool", "_call>", "text")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
PIECES = dict(enumerate((*WORDS, *TAGS)))
IDS = {text: token for token, text in PIECES.items()}
BODY = "\n<function=lookup>\n<parameter=q>\ntea\n</parameter>\n</function>\n"
JSON_BODY = '\n{"name": "lookup", "arguments": {"q": "tea"}}\n'
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
TEMPLATE = "{% for m in messages %}" + TURN + "{% endfor %}<|im_start|>assistant\n"


class KnowingHouse(House):
    """A gateway before a server with a vocabulary."""

    def __init__(self, pieces: dict[int, str] | None) -> None:
        super().__init__()
        self.replay.pieces = pieces
        self.replay.props["chat_template"] = TEMPLATE + "{# <tool_call>\n<function= #}"

    async def make(self) -> Gateway:
        url = await self.replay.start()
        return await asyncio.to_thread(make_gateway, url, SETTINGS)

    def read(self, *deltas: str | tuple[str, int], **more: Any) -> dict[str, Any]:
        """Return the reply whose deltas are tokens of the vocabulary, or texts with the id that the server names."""
        pairs = [(delta, IDS.get(delta, 99)) if isinstance(delta, str) else delta for delta in deltas]
        self.replay.script.append(Replay([text for text, _ in pairs], ids=[token for _, token in pairs]))
        body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [LOOKUP], "stream": True, **more}
        answer = self.post(body)
        assert answer.status_code == 200, answer.text
        return join_chunks(events(answer.text))


@pytest.fixture(scope="module")
def knowing() -> Iterator[KnowingHouse]:
    with KnowingHouse({**PIECES, 99: "?"}) as house:
        yield house


def test_the_special_token_opens_a_call(knowing: KnowingHouse) -> None:
    reply = knowing.read("<tool_call>", (BODY, 99), "</tool_call>")
    assert [call["name"] for call in reply["calls"]] == ["lookup"]


def test_a_call_that_ordinary_tokens_spell_is_text(knowing: KnowingHouse) -> None:
    reply = knowing.read("<", "tool", "_call", ">", (JSON_BODY, 99), "</", "tool", "_call", ">", "ok")
    assert (reply["calls"], reply["content"]) == ([], f"<tool_call>{JSON_BODY}</tool_call>ok")


def test_a_tag_spelled_in_two_ordinary_tokens_is_text(knowing: KnowingHouse) -> None:
    assert knowing.read("<tool", "_call>", (JSON_BODY, 99), "ok")["content"] == f"<tool_call>{JSON_BODY}ok"


def test_a_spelled_end_of_the_thinking_is_thinking(knowing: KnowingHouse) -> None:
    reply = knowing.read("<think>", "ok", "</", "think", ">", " ", "text", "</think>", "ok")
    assert (reply["reasoning"], reply["content"]) == ("ok</think> text", "ok")


def test_an_event_of_several_tokens_says_nothing(knowing: KnowingHouse) -> None:
    reply = knowing.read(("<tool_call>", IDS[">"]), (BODY, 99), ("</tool_call>", IDS[">"]))
    assert [call["name"] for call in reply["calls"]] == ["lookup"]


def test_a_grammar_makes_spelled_tags_tags(knowing: KnowingHouse) -> None:
    reply = knowing.read("<", "tool", "_call", ">", (BODY, 99), "</tool_call>", tool_choice="required")
    assert [call["name"] for call in reply["calls"]] == ["lookup"]


def test_a_token_is_asked_for_once(knowing: KnowingHouse) -> None:
    knowing.read("<", "text")
    before = knowing.replay.asked.count("/detokenize")
    knowing.read("<", "text", "<", "text")
    assert knowing.replay.asked.count("/detokenize") == before


def test_a_vocabulary_without_the_tags_spells_them_in_earnest() -> None:
    with KnowingHouse({token: text for token, text in PIECES.items() if text not in TAGS} | {99: "?"}) as house:
        reply = house.read("<", "tool", "_call", ">", (BODY, 99), "</tool_call>")
        assert [call["name"] for call in reply["calls"]] == ["lookup"]


def test_a_server_that_does_not_tell_texts_is_read_by_the_text_alone() -> None:
    with KnowingHouse({**PIECES, 99: "?"}) as house:
        house.replay.pieces = None
        reply = house.read("<", "tool", "_call", ">", (BODY, 99), "</tool_call>")
        assert [call["name"] for call in reply["calls"]] == ["lookup"]


def test_the_server_is_asked_to_write_the_tags_out(knowing: KnowingHouse) -> None:
    knowing.read("ok")
    assert set(TAGS) <= set(knowing.replay.bodies[-1]["preserved_tokens"])


@pytest.mark.slow
def test_the_real_server_names_the_token_of_each_event(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", chat_template="{{ messages[0].content }}")
    with LlamaServer.start(model, context=512, warmup=False, threads=1) as server:
        ask = server.client
        assert tags_are_tokens(DIALECTS["qwen"], ask.tokenize)
        for text in ("<tool_call>", "<"):
            token = ask.tokenize(text, parse_special=True)[-1]
            first, *_ = ask.stream_completion("x", n_predict=2, temperature=0.0, logit_bias=[[token, 100]])
            assert (first.raw["content"], first.raw["tokens"]) == (text, [token])
            answer = httpx.post(f"{server.url}/detokenize", json={"tokens": [token]}, timeout=30).json()
            assert answer["content"] == text
