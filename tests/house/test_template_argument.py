"""One name means one template for every command: a shipped id counts before what lies in the working directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.gateway.server.run import gateway_template
from strata_pack.pack.golden_target import golden_targets, template_source
from strata_pack.pack.template.choice import choose_template
from strata_pack.pack.template.source import load_template
from strata_pack.smoke.target import open_target
from tests.pack.tiny_gguf import write_tiny

ID = "qwen3.8-flash-next"
OTHER = "{% for message in messages %}{{ message.content }}{% endfor %}"


def of_smoke(name: str) -> str | None:
    return open_target(write_tiny(Path("model.gguf")), template=name).template


RESOLVERS: dict[str, Callable[[str], str | None]] = {
    "lint, prefix, repair": lambda name: load_template(name).text,
    "golden add": template_source,
    "golden check": lambda name: golden_targets(name, Path("cases.json"))[0].source,
    "build, install": lambda name: choose_template(name, None, None).text,
    "serve": lambda name: gateway_template(name, "").source,
    "smoke": of_smoke,
}


@pytest.fixture(autouse=True)
def _folder_with_a_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(ID).write_text(OTHER)
    Path("cases.json").write_text("[]")


@pytest.mark.parametrize("command", RESOLVERS)
def test_an_id_is_the_shipped_template(command: str) -> None:
    assert RESOLVERS[command](ID) == load_shipped(ID).source


@pytest.mark.parametrize("command", RESOLVERS)
def test_a_path_is_the_file(command: str) -> None:
    assert RESOLVERS[command](f"./{ID}") == OTHER
