"""What prefix stability predicts is what a real llama.cpp server reads again."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.chat.prefix.measure import check_prefix
from strata_pack.chat.prefix.report import ModeName
from strata_pack.chat.prefix.session import bundled_session
from strata_pack.chat.render.template import ChatTemplate
from strata_pack.llama.server import LlamaServer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("prefix-server"), pytest.mark.timeout(600)]

BOUNDARY_TOKENS = 3
"""A cut in the middle of a text may fall inside a token, and a server reads at least the last token again."""


@pytest.mark.parametrize("mode", ["kept", "stripped"])
def test_a_server_reads_as_many_tokens_as_predicted(mode: ModeName, smollm2: Path) -> None:
    template = ChatTemplate(load_shipped("qwen3.8-flash-next").source)
    with LlamaServer.start(smollm2, context=4096) as server:
        run = check_prefix(template, bundled_session(), [mode], server.client.tokenize).run(mode)
        for step in run.steps[:4]:
            server.client.completion(step.cached, n_predict=1, cache_prompt=True)
            timings = server.client.completion(step.following, n_predict=1, cache_prompt=True).timings
            assert step.fresh_tokens is not None
            assert step.again_tokens is not None
            predicted = step.fresh_tokens + step.again_tokens
            assert abs(timings.prompt_n - predicted) <= BOUNDARY_TOKENS, f"turn {step.turn}"
