"""``--json``: every command prints one object on stdout, with ``ok``, whether it succeeds or fails.

``FAILING`` and ``WORKING`` are compared with the command tree, so a new command needs a row in both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strata_pack.errors import MEANINGS
from tests.cli.test_every_command import ALL
from tests.e2e.command import Done, run
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.pack.tiny_pack import write_pack
from tests.tiny_models import write_model
from tests.weights.quantize.models import DENSE, write_imatrix

FAILING = {
    "build": "no/such/folder/here --out pack",
    "fetch": "./nowhere --out weights",
    "convert": "nowhere --out model.gguf",
    "imatrix collect": "nowhere.gguf",
    "imatrix show": "nowhere.gguf",
    "quantize": "nowhere.gguf out.gguf",
    "release init": "nowhere.gguf",
    "release plan": "nowhere.toml",
    "release run": "nowhere.toml",
    "release status": "nowhere.toml",
    "release publish": "nowhere.toml",
    "keygen": "--out folder",
    "sign": "nowhere --key key.pem",
    "publish": "nowhere --to release",
    "export": "abacus nowhere --out folder",
    "prove": "nowhere",
    "verify": "nowhere",
    "rebuild": "nowhere",
    "smoke": "nowhere.gguf",
    "compare": "nowhere.gguf --against model.gguf",
    "calls": "",
    "inspect": "nowhere.gguf",
    "template repair": "nowhere.jinja",
    "template lint": "nowhere.jinja",
    "template check": "./nowhere",
    "template diff": "nowhere.jinja other.jinja",
    "template prefix": "nowhere.jinja",
    "template install": "nowhere.gguf",
    "template rollback": "nowhere.gguf",
    "template list": None,
    "template show": "no-such-template",
    "template status": "nowhere.jinja",
    "golden check": "nowhere.jinja",
    "golden list": "nowhere.jinja",
    "golden add": "suite.json nowhere.json --name one -t mine.jinja",
    "golden update": "nowhere.jinja",
    "serve": "nowhere.gguf",
    "parse": "nowhere.txt",
    "replay": "nowhere.jsonl",
    "runtime list": None,
    "runtime check": "no-such-runtime",
    "runtime install": "--backend vulkan",
    "runtime build": "--backend metal",
    "runtime use": "no-such-runtime",
    "runtime auto": None,
    "env": None,
    "cache list": None,
    "cache clean": "no-such-entry",
}
"""Arguments that cannot work, in a folder with the files of ``place``; ``None``: the command takes none."""

WORKING = {
    "build": "model.gguf --quant F16 --template keep --out built",
    "convert": "checkpoint --out model-bf16.gguf --dry-run",
    "imatrix show": "imatrix.gguf",
    "quantize": "model.gguf new.gguf --quant Q8_0",
    "release init": "model.gguf",
    "keygen": "",
    "publish": "pack --to release --dry-run",
    "export": "llama-swap pack --out folder",
    "prove": "pack --dry-run",
    "verify": "built",
    "inspect": "model.gguf",
    "template repair": "qwen3.8-flash-next",
    "template lint": "qwen3.8-flash-next",
    "template check": "pack",
    "template diff": "mine.jinja mine.jinja",
    "template prefix": "qwen3.8-flash-next --mode kept",
    "template install": "pack --template mine.jinja --force",
    "template rollback": "installed --yes",
    "template list": "",
    "template show": "qwen3.8-flash-next",
    "template status": "pack",
    "golden check": "mine.jinja --golden suite.json",
    "golden list": "mine.jinja --golden suite.json",
    "golden add": "suite.json talk.json --name two -t mine.jinja --yes",
    "golden update": "mine.jinja --golden suite.json --yes",
    "parse": "reply.txt",
    "replay": "replies.jsonl",
    "runtime list": "",
    "runtime auto": "",
    "env": "",
    "cache list": "",
    "cache clean": "--yes",
}
"""Arguments that work there in a moment."""

ELSEWHERE = {
    "fetch": "tests/weights/hub",
    "imatrix collect": "tests/weights/imatrix",
    "release plan": "tests/release",
    "release run": "tests/release",
    "release status": "tests/release",
    "release publish": "tests/release",
    "sign": "tests/publish",
    "rebuild": "tests/pack",
    "smoke": "tests/smoke",
    "compare": "tests/compare",
    "calls": "tests/compare",
    "serve": "tests/gateway",
    "runtime check": "tests/llama",
    "runtime install": "tests/llama",
    "runtime build": "tests/llama",
    "runtime use": "tests/llama",
}
"""Commands that need a server, a network or minutes, and where they succeed."""

MINE = "{% for m in messages %}{{ m.content }}{% endfor %}"
TALK = [{"role": "user", "content": "a"}]
REPLY = {"model": "m", "message": {"reasoning_content": "Ready.", "content": "a"}, "finish_reason": "stop"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a pack, templates, cases and logs."""
    root = tmp_path_factory.mktemp("place")
    write_tiny(root / "model.gguf")
    write_pack(root / "pack", STOCK)
    write_pack(root / "installed", STOCK)
    write_model("qwen3", root / "checkpoint")
    write_imatrix(root / "imatrix.gguf", DENSE)
    (root / "folder").mkdir()
    (root / "mine.jinja").write_text(MINE)
    (root / "talk.json").write_text(json.dumps(TALK))
    (root / "suite.json").write_text(json.dumps([{"name": "one", "messages": TALK, "expected": "a"}]))
    (root / "reply.txt").write_text("<think>a</think>b")
    (root / "replies.jsonl").write_text(json.dumps(REPLY) + "\n")
    build = "build model.gguf --quant F16 --template keep --out built"
    assert run(*build.split(), cwd=root).code == 0
    assert run("template", "install", "installed", "--template", "mine.jinja", "--force", cwd=root).code == 0
    return root


def call(words: str, arguments: str, place: Path) -> tuple[Done, Any]:
    done = run(*words.split(), *arguments.split(), "--json", cwd=place)
    return done, json.loads(done.out)


def test_every_command_has_its_rows() -> None:
    names = {" ".join(words) for words in ALL}
    assert set(FAILING) == names
    assert set(WORKING) | set(ELSEWHERE) == names
    assert not set(WORKING) & set(ELSEWHERE)


@pytest.mark.parametrize("words", [words for words, arguments in FAILING.items() if arguments is not None])
def test_a_failure_is_one_object_with_the_meaning_of_its_code(words: str, place: Path) -> None:
    done, told = call(words, FAILING[words] or "", place)
    assert done.code != 0
    assert (told["ok"], told["exit_code"], told["meaning"]) == (False, done.code, MEANINGS[done.code])
    assert told["error"] in done.err


@pytest.mark.parametrize("words", WORKING)
def test_a_success_is_one_object_with_paths_as_they_were_given(words: str, place: Path) -> None:
    done, told = call(words, WORKING[words], place)
    assert (done.code, told["ok"]) == (0, True), done.err
    assert str(place) not in done.out + done.err
