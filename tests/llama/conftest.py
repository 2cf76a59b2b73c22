"""A tiny model with random weights, and one real server of it for the tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_pack.llama.server import LlamaServer
from tests.smoke.tiny import write_tiny_model

TEMPLATE = (
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with LlamaServer.start(tiny, context=2048, parallel=2, warmup=False, threads=1, log_path=log) as running:
        yield running
