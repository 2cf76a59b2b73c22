"""The parser's cases before a real llama.cpp server, which a grammar makes write each text, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from strata_pack.gateway.server.run import make_gateway
from strata_pack.llama.server import LlamaServer
from strata_pack.weights.gguf.file import MetaValue
from tests.gateway.conftest import REAL_SETTINGS, House, RealHouse, cases
from tests.gateway.test_parser_cases import whole_reply
from tests.gateway.test_real_server import forced
from tests.pack.tiny_gguf import write_tiny

pytestmark = pytest.mark.xdist_group("real-parser-cases")

CONTEXT = 8192
CASES = [case for case in cases("parsing/cases.jsonl") if "\0" not in case["input"]]
"""A grammar of llama.cpp's cannot hold the character NUL, which is in one case."""
SOME = [
    pytest.param(case, id=case["id"], marks=[] if number % 3 == 0 else pytest.mark.slow)
    for number, case in enumerate(CASES)
]
"""Every third one in the fast suite, where ``test_parser_cases`` has all of them with a replayed server."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    extra = {"llama.context_length": MetaValue.uint32(CONTEXT)}
    model = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", extra=extra)
    with LlamaServer.start(model, context=CONTEXT, parallel=1, warmup=False, threads=1) as server:
        gateway = make_gateway(server.url, REAL_SETTINGS, template="qwen3.8-flash-next")
        with RealHouse(gateway) as house:
            yield house


@pytest.mark.parametrize("case", SOME)
def test_a_parser_case_holds_on_the_real_server(case: dict[str, Any], real: House) -> None:
    # A token of this model is a byte.
    limit = {"max_tokens": len(case["input"].encode())} if case["finish"] == "length" else {}
    fields = {"tools": case["tools"], "enable_thinking": case["thinking"], **limit, **case.get("request", {})}
    answer = forced(real, case["input"], **fields)
    assert answer.status_code == 200, answer.text
    reply = whole_reply(answer.json())
    assert {name: reply[name] for name in ("reasoning", "content", "calls")} == case["expect"]
