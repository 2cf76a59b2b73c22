"""Every bad input of a user: one sentence on stderr, the right exit code, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import COMMAND, Done, run, run_installed
from tests.hub_repos import Fault
from tests.hub_server import HubServer
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.pack.tiny_pack import hashes
from tests.tiny_models import write_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", STOCK)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def build(source: str | Path, out: Path, *more: str, endpoint: str = "http://127.0.0.1:9") -> Done:
    flags = ("--quant", "Q8_0", "--template", "keep", "--out", out, *more)
    return run("build", source, *flags, HF_ENDPOINT=endpoint, HF_HUB_CACHE=str(out.parent / "hf"))


def sentence(done: Done) -> str:
    """Return the error, which must be one line without a traceback."""
    assert "Traceback" not in done.err
    lines = [line for line in done.err.splitlines() if line.startswith("strata-pack: ")]
    assert len(lines) == 1, done.err
    return lines[0]


def test_a_missing_file_is_wrong_use(tmp_path: Path) -> None:
    done = build("missing.gguf", tmp_path / "p")
    assert (done.code, "missing.gguf" in sentence(done)) == (2, True)


def test_a_missing_repository_is_named(hub: HubServer, tmp_path: Path) -> None:
    done = build("nobody/nothing", tmp_path / "p", endpoint=hub.endpoint)
    assert (done.code, "nobody/nothing" in sentence(done)) == (2, True)


def test_a_hub_that_does_not_answer_is_the_environment(tmp_path: Path) -> None:
    done = build("org/model", tmp_path / "p")
    assert (done.code, "org/model" in sentence(done) or "127.0.0.1:9" in sentence(done)) == (3, True)


def test_a_truncated_file_is_refused(tiny: Path, tmp_path: Path) -> None:
    tiny.write_bytes(tiny.read_bytes()[:30_000])
    done = build(tiny, tmp_path / "p")
    assert (done.code, "truncated" in sentence(done)) == (2, True)
    assert not (tmp_path / "p").exists()


def test_an_unknown_preset_lists_the_presets(tiny: Path, tmp_path: Path) -> None:
    done = build(tiny, tmp_path / "p", "--quant", "Q4_NOPE")
    assert (done.code, "Q4_K_M" in sentence(done)) == (2, True)


def test_a_pack_in_the_way_needs_force(tiny: Path, tmp_path: Path) -> None:
    assert build(tiny, tmp_path / "p").code == 0
    assert build(tiny, tmp_path / "p").code == 0  # the same pack is there already
    done = build(tiny, tmp_path / "p", "--name", "other")
    assert (done.code, "--force" in sentence(done)) == (2, True)


def test_a_missing_option_is_wrong_use(tiny: Path) -> None:
    assert run_installed("build", tiny).code == 2


@pytest.mark.parametrize("command", ["inspect", "verify", "smoke"])
def test_a_missing_target_is_wrong_use(command: str, tmp_path: Path) -> None:
    done = run(command, tmp_path / "nothing")
    assert (done.code, "nothing" in sentence(done)) == (2, True)


def test_a_template_that_is_not_there_is_wrong_use() -> None:
    assert run("template", "show", "nonesuch").code == 2


def test_a_server_that_cannot_load_the_model_shows_its_log(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_X.weight"))
    done = run_installed("smoke", broken, "--template", "qwen3.8-flash-next")
    assert done.code == 1  # the template's end of turn is not the tiny model's, which is judged without a server
    assert "attn_q" in done.err + done.out


ATTESTATIONS = ("provenance.json", "sbom.cdx.json")
"""They name the source, as the manifest does."""


def test_a_hub_build_gives_the_pack_of_the_local_file(hub: HubServer, tiny: Path, tmp_path: Path) -> None:
    hub.repo("org/tiny", {"tiny.gguf": tiny.read_bytes(), "README.md": b"# tiny\n"})
    assert build("org/tiny", tmp_path / "hub", endpoint=hub.endpoint).code == 0
    assert build(tiny, tmp_path / "local").code == 0
    first, second = hashes(tmp_path / "hub"), hashes(tmp_path / "local")
    assert {name for name in first if first[name] != second.get(name)} == {"manifest.json", *ATTESTATIONS}


def test_the_manifest_of_a_hub_build_pins_the_commit(hub: HubServer, tiny: Path, tmp_path: Path) -> None:
    commit = hub.repo("org/tiny").commit({"tiny.gguf": tiny.read_bytes()})
    source = build("org/tiny", tmp_path / "p", "--json", endpoint=hub.endpoint).json["manifest"]["source"]
    assert (source["repo"], source["commit"], source["kind"]) == ("org/tiny", commit, "hub")


def test_an_architecture_that_cannot_be_converted_is_refused_before_its_weights_travel(
    hub: HubServer, tmp_path: Path
) -> None:
    folder = write_model("qwen3", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["GrokForCausalLM"]}))
    hub.repo("org/grok", {path.name: path.read_bytes() for path in folder.iterdir()})
    done = build("org/grok", tmp_path / "p", "--template", "qwen3.8-flash-next", endpoint=hub.endpoint)
    assert (done.code, "GrokForCausalLM" in sentence(done)) == (2, True)
    assert not [hit for hit in hub.body_hits() if hit.path.endswith(".safetensors")]


def test_a_checkpoint_on_the_hub_becomes_a_pack(hub: HubServer, tmp_path: Path) -> None:
    folder = write_model("qwen3", tmp_path / "model")
    hub.repo("org/Tiny-Qwen3", {path.name: path.read_bytes() for path in folder.iterdir()})
    done = build("org/Tiny-Qwen3", tmp_path / "p", "--template", "qwen3.8-flash-next", endpoint=hub.endpoint)
    assert done.code == 0, done.err
    assert (tmp_path / "p/model/Tiny-Qwen3-Q8_0.gguf").is_file()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_download_goes_on_where_it_was(
    hub: HubServer, tiny: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    body = tiny.read_bytes()
    hub.repo("org/tiny", {"tiny.gguf": body})
    hub.fail("tiny.gguf", Fault(rate=20_000))
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(tmp_path / "hf")}
    command = [COMMAND, "build", "org/tiny", "--quant", "Q8_0", "--template", "keep", "--out", tmp_path / "p"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not any(path.stat().st_size for path in tmp_path.glob("p.partial/source/tiny/*/parts/*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(stop)
        _, err = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[stop]
    assert "Traceback" not in err
    assert not (tmp_path / "p").exists()
    assert build("org/tiny", tmp_path / "p", endpoint=hub.endpoint).code == 0
    assert hub.body_hits("tiny.gguf")[-1].range is not None
    assert not (tmp_path / "p.partial").exists()
