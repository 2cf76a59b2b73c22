"""What really travels: chunks of a real model to a real Xet store, and a publisher that is killed by the system."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strata_pack.files import sha256_file
from strata_pack.pack.build import build_pack
from strata_pack.pack.request import BuildRequest
from strata_pack.publish.publishing import PublishOptions, publish
from strata_pack.publish.update import update_templates
from strata_pack.weights.quantize.recipes import make_recipe
from tests.hub_server import HubServer
from tests.hub_uploads import GITATTRIBUTES

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")

MOST = 0.0002
"""The share of a published model of 98 MB that a newer template may add to a store of chunks: 20 kB."""

OPTIONS = PublishOptions(accept_licence=True)


def stored(folder: Path, part: str = "xorbs") -> int:
    """Return the bytes of chunks ("xorbs") in a local Xet store, or of the lists of a file's chunks ("shards")."""
    return sum(path.stat().st_size for path in (folder / "xet/xorbs" / part).rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_newer_template_adds_kilobytes_to_a_store_of_chunks(smollm2: Path, hub: HubServer, tmp_path: Path) -> None:
    pack = build_pack(BuildRequest(str(smollm2), tmp_path / "SmolLM2", make_recipe("COPY"), template="keep")).path

    def body(sha256: str) -> bytes:
        return next(p for p in pack.rglob("*") if p.is_file() and sha256_file(p) == sha256).read_bytes()

    store = tmp_path / "store"
    store.mkdir()
    hub.uploads.xet, hub.uploads.bring = store, body
    publish([pack], "me/SmolLM2", options=OPTIONS)
    size = next((pack / "model").glob("*.gguf")).stat().st_size
    first, lists = stored(store), stored(store, "shards")
    assert hub.uploads.sent == 0
    assert first > 0.5 * size
    template = (pack / "tokenizer/chat_template.jinja").read_text()
    (tmp_path / "new.jinja").write_text(template + "{# newer #}")
    done = publish(update_templates([pack], "me/SmolLM2", str(tmp_path / "new.jinja")), "me/SmolLM2", options=OPTIONS)
    assert {change.path.rpartition("/")[2] for change in done.changes if change.kind == "replace"} >= {
        "chat_template.jinja",
        "manifest.json",
    }
    added = stored(store) - first
    listed = stored(store, "shards") - lists
    print(f"{added} new bytes of chunks for a model of {size}: {added / size:.4%}; {listed} of lists")
    assert 0 < added <= MOST * size


@pytest.mark.slow
def test_a_publisher_that_is_killed_at_any_request_is_run_again(packs: list[Path], hub: HubServer) -> None:
    command = [sys.executable, "-m", "strata_pack", "publish", str(packs[0]), "me/killed"]
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "token"}
    at = 0
    while True:
        hub.repos.clear()
        hub.uploads.requests.clear()
        hub.uploads.bodies.clear()
        running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)

        def kill(method: str, path: str, process: subprocess.Popen[bytes] = running, number: int = at) -> None:  # noqa: ARG001
            if len(hub.uploads.requests) == number + 1:
                process.send_signal(signal.SIGKILL)
                process.wait()

        hub.uploads.watch = kill
        running.communicate()
        hub.uploads.watch = None
        if running.returncode == 0:
            break
        assert running.returncode == -signal.SIGKILL
        seen = hub.repos["me/killed"].commits if "me/killed" in hub.repos else []
        assert len(seen) < 2 or f"{packs[0].name}/manifest.json" in seen[-1][1]
        publish(packs[:1], "me/killed")
        assert hub.repos["me/killed"].commits[0][1] == {".gitattributes": GITATTRIBUTES}
        assert len(hub.repos["me/killed"].commits) == 2
        at += 1
    assert at >= 6
