"""What a gateway refuses while its server drafts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gateway.conftest import SETTINGS, House

ASK = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_refused_while_the_server_drafts(stream: bool) -> None:
    with House(replace(SETTINGS, served=replace(SETTINGS.served, drafts=True))) as house:
        answer = house.post({"messages": ASK, "logprobs": True, "top_logprobs": 2, "stream": stream})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == "logprobs"
        assert "--spec off" in error["message"]
        assert house.chat("</think>\n\nok")["choices"][0]["message"]["content"] == "ok"
