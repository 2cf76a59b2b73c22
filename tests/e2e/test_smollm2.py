"""Real weights through every command: SmolLM2-135M-Instruct becomes a pack and is proved."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import openai
import pytest

from tests.e2e.command import run, run_installed
from tests.gateway.server.served import Served

pytestmark = pytest.mark.xdist_group("smollm2")

TEMPLATE = "qwen3.8-flash-next"


@pytest.fixture(scope="module")
def pack(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "SmolLM2-Q4_K_M"
    done = run_installed(
        "build", smollm2, "--quant", "Q4_K_M", "--template", TEMPLATE, "--allow-requantize", "--out", out
    )
    assert done.code == 0, done.err
    return out


def test_build_says_what_it_built(pack: Path) -> None:
    assert (pack / "model/SmolLM2-135M-Instruct-Q4_K_M.gguf").stat().st_size > 90e6


def test_verify_passes(pack: Path) -> None:
    done = run("verify", pack, "--json")
    assert (done.code, done.json["status"]) == (0, "passed")


def test_inspect_names_template_and_types(pack: Path) -> None:
    done = run("inspect", pack, "--json")
    found = done.json
    assert (done.code, found["template_id"], found["template_status"]) == (0, TEMPLATE, "repaired")
    assert {share["type"] for share in found["types"]} >= {"Q4_K", "F32"}
    assert 4 < found["bits_per_weight"] < 7


def test_inspect_reads_the_source_too(smollm2: Path) -> None:
    found = run("inspect", smollm2, "--json").json
    assert (found["kind"], found["architecture"], found["template_id"]) == ("gguf", "llama", None)


def test_template_status_of_the_pack_is_repaired(pack: Path) -> None:
    done = run("template", "status", pack)
    assert (done.code, "repaired" in done.out) == (0, True)


def test_the_golden_cases_render_alike_on_the_real_server(pack: Path) -> None:
    done = run("golden", "check", pack, "--engine", "jinja2", "--engine", "llama.cpp", "--json")
    assert (done.code, done.json["ok"]) == (0, True), done.err
    assert {engine["name"] for engine in done.json["targets"][0]["engines"]} == {"jinja2", "llama.cpp"}


def test_smoke_passes_what_a_pack_is_for(pack: Path) -> None:
    only = ("template-loaded", "repair-reasoning", "repair-content", "stranded-call")
    done = run("smoke", pack, "--json", *(word for name in only for word in ("--only", name)))
    assert (done.code, done.json["status"]) == (0, "passed"), done.out[-3000:] + done.err


def test_serve_answers_an_openai_client_with_the_pack(pack: Path) -> None:
    served = Served(str(pack), "--context", "2048")
    try:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        reply = client.chat.completions.create(
            model=client.models.list().data[0].id, messages=[{"role": "user", "content": "Hi"}], max_tokens=4
        )
    finally:
        served.process.send_signal(signal.SIGTERM)
        served.process.communicate(timeout=60)
    assert served.facts["template"] == {"id": TEMPLATE, "status": "repaired"}
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 4
    assert served.process.returncode == 143


def test_requantizing_must_be_allowed(smollm2: Path, tmp_path: Path) -> None:
    done = run("build", smollm2, "--template", TEMPLATE, "--out", tmp_path / "p")
    assert done.code == 2
    assert "--allow-requantize" in done.err
    assert not (tmp_path / "p").exists()


def test_parse_reads_generated_text_from_stdin() -> None:
    text = "I need the list.\n\n<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>"
    done = run("parse", stdin=text)
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (done.code, events[-1]["kind"], events[-1]["name"]) == (0, "tool_call", "list_jobs")


def test_runtime_list_names_the_embedded_server() -> None:
    done = run("runtime", "list", "--json")
    assert done.code == 0
    assert "xllamacpp" in done.out
