"""Releases of a model on the Hub: pinned, watched, begun from an id, spread over workers tensor by tensor."""

from __future__ import annotations

import json
import os
import signal
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.pack.layout import Pack
from strata_pack.progress import Silent
from strata_pack.release.init import look_at, release_text
from strata_pack.release.local_executor import InProcess
from strata_pack.release.lock import read_lock
from strata_pack.release.process_pool import ProcessPool, process_pool
from strata_pack.release.release_file import read_release
from strata_pack.release.run import Outcome, open_schedule, run_releases
from strata_pack.release.split_plan import SMALL, joined, without
from strata_pack.release.split_tensors import run_split
from strata_pack.release.status import changes
from strata_pack.release.task import Task
from strata_pack.weights.hub.ranges import RangeFetcher
from tests.hub_repos import Fault
from tests.hub_server import HubServer, folder_files, serve
from tests.pack.tiny_gguf import STOCK, write_tiny
from tests.release.tiny_release import GATES, HEAD, MEASURED, PACKS, made, pack_hashes, run, write_release
from tests.tiny_models import write_model

HUB = HEAD.replace('"tiny.gguf"', '"org/Tiny"')
WEIGHTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return folder_files(write_model("qwen3", tmp_path_factory.mktemp("model") / "Tiny"))


@pytest.fixture
def hub(checkpoint: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with serve({"org/Tiny": checkpoint}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def split(file: Path) -> Outcome:
    return run_split(open_schedule(read_release(file)), InProcess(Silent(), threads=1), Silent())


def test_a_pack_of_a_hub_source_names_repository_and_commit(hub: HubServer, tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    assert run(file).exit_code == 0
    source = Pack.open(tmp_path / "r/packs/Tiny-Q8_0").manifest["source"]
    assert (source["kind"], source["repo"]) == ("hub", "org/Tiny")
    assert source["commit"] == hub.repos["org/Tiny"].commits[-1][0]


def test_a_source_that_moved_is_built_as_it_was_pinned(
    hub: HubServer, checkpoint: dict[str, bytes], tmp_path: Path
) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    run(file)
    hub.repo("org/Tiny", {**checkpoint, "chat_template.jinja": b"another {{ messages }}"})
    hub.hits.clear()
    assert made(run(file).schedules[0]) == set()
    assert hub.hits == []


def test_update_takes_the_commit_of_now(hub: HubServer, checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    run(file)
    commit = hub.repo("org/Tiny", {**checkpoint, "README.md": b"new"}).commits[-1][0]
    outcome = run_releases([open_schedule(read_release(file), update=True)], InProcess(Silent(), threads=1))
    lock = read_lock(file.with_suffix(".lock"))
    assert lock is not None
    assert lock["source"]["commit"] == commit
    assert "pack:Tiny-Q8_0" in made(outcome.schedules[0])


@pytest.mark.usefixtures("hub")
def test_status_finds_nothing_where_nothing_moved(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    run(file)
    assert changes(read_release(file), read_lock(file.with_suffix(".lock"))) == []


def test_status_finds_a_moved_source_and_another_template(
    hub: HubServer, checkpoint: dict[str, bytes], tmp_path: Path
) -> None:
    hub.repo("org/Tiny", {**checkpoint, "chat_template.jinja": b"{{ messages }}"})
    file = write_release(tmp_path / "r", HUB + PACKS)
    run(file)
    hub.repo("org/Tiny", {**checkpoint, "chat_template.jinja": b"{{ messages[0] }}"})
    found = changes(read_release(file), read_lock(file.with_suffix(".lock")))
    assert [change.what for change in found] == ["source", "template"]
    assert "no large file changed" in found[0].sentence


def test_the_template_in_a_gguf_is_not_missed_beside_it(hub: HubServer, tmp_path: Path) -> None:
    gguf = write_tiny(tmp_path / "t.gguf", STOCK).read_bytes()
    hub.repo("org/Tiny", {"Tiny.gguf": gguf, "README.md": b"old"})
    file = write_release(tmp_path / "r", HUB + PACKS)
    run(file)
    hub.repo("org/Tiny", {"Tiny.gguf": gguf, "README.md": b"new"})
    found = changes(read_release(file), read_lock(file.with_suffix(".lock")))
    assert [change.what for change in found] == ["source"]


def test_status_finds_published_files_that_are_others(hub: HubServer, tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS + '[publish]\nrepo = "me/Tiny-GGUF"\n')
    run(file)

    def told() -> list[str]:
        return [change.sentence for change in changes(read_release(file), read_lock(file.with_suffix(".lock")))]

    assert told() == ["me/Tiny-GGUF is not there yet"]
    right = folder_files(tmp_path / "r/packs")
    hub.repo("me/Tiny-GGUF", right)
    assert told() == []
    model, manifest = "Tiny-Q8_0/model/Tiny-Q8_0.gguf", "Tiny-Q8_0/manifest.json"
    wrong = {**right, model: right[model][:-1] + b"x", manifest: right[manifest][:-1] + b" "}
    hub.repo("me/Tiny-GGUF", {name: data for name, data in wrong.items() if name != "Tiny-Q4_0/manifest.json"})
    assert told() == [
        f"{model} in me/Tiny-GGUF is not the one in the lock file",
        f"{manifest} in me/Tiny-GGUF is not the one in the lock file",
        "me/Tiny-GGUF lacks Tiny-Q4_0/manifest.json",
    ]


@pytest.mark.usefixtures("hub")
def test_a_hub_that_cannot_be_reached_is_one_of_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    run(file)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = changes(read_release(file), read_lock(file.with_suffix(".lock")))
    assert [change.what for change in found] == ["unknown"]


def test_init_writes_a_file_that_is_read(hub: HubServer, checkpoint: dict[str, bytes], tmp_path: Path) -> None:
    card = b"---\nlicense: apache-2.0\n---\n# Tiny\n"
    hub.repo("org/Tiny", {**checkpoint, "README.md": card})
    looked = look_at("org/Tiny")
    text = release_text("org/Tiny", looked)
    assert looked.weights == sum(len(checkpoint[name]) for name in WEIGHTS)
    assert "licence: apache-2.0" in text
    assert tomllib.loads(text)["release"]["source"] == "org/Tiny"
    (tmp_path / "release.toml").write_text(text)
    assert [pack.quant for pack in read_release(tmp_path / "release.toml").packs] == ["Q8_0", "Q4_K_M"]


def test_init_of_a_gguf_names_the_release_without_its_format(hub: HubServer, tmp_path: Path) -> None:
    hub.repo("org/Tiny-GGUF", {"Tiny.gguf": write_tiny(tmp_path / "t.gguf").read_bytes()})
    text = release_text("org/Tiny-GGUF", look_at("org/Tiny-GGUF"))
    assert tomllib.loads(text)["release"]["name"] == "Tiny"
    assert "the one in the GGUF" in text


def test_the_words_of_a_card_become_no_lines_of_the_file(hub: HubServer, checkpoint: dict[str, bytes]) -> None:
    card = b'---\nlicense: other\nlicense_name: "x\\n[publish]\\nrepo = 1"\n---\n'
    hub.repo("org/Tiny", {**checkpoint, "README.md": card})
    assert "publish" not in tomllib.loads(release_text("org/Tiny", look_at("org/Tiny")))


MALFORMED = ("date: 2026-99-99", "x: " + "[" * 5000, "license: [[x]]", "x: &x mit\nlicense: *x", "x: !!bool maybe")


@pytest.mark.parametrize("head", MALFORMED)
def test_a_card_with_a_malformed_head_names_no_licence(head: str, hub: HubServer, checkpoint: dict[str, bytes]) -> None:
    hub.repo("org/Tiny", {**checkpoint, "README.md": f"---\n{head}\n---\n".encode()})
    assert look_at("org/Tiny").licence is None


def test_init_fetches_no_weights(hub: HubServer) -> None:
    look_at("org/Tiny")
    assert [hub.bytes_sent(name) for name in WEIGHTS] == [0, 0]


@pytest.fixture(scope="module")
def whole(checkpoint: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the model on the Hub that was made the ordinary way."""
    with serve({"org/Tiny": checkpoint}) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", running.endpoint)
        file = write_release(tmp_path_factory.mktemp("whole"), HUB + PACKS)
        assert run(file).exit_code == 0
    return file


def sent(hub: HubServer, names: Iterable[str], wanted: int) -> list[int]:
    """Return the bytes that left of each file, as soon as ``wanted`` are logged: that is after a client has them."""
    deadline = time.monotonic() + 20
    while sum(map(hub.bytes_sent, names)) < wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return list(map(hub.bytes_sent, names))


@pytest.mark.usefixtures("hub")
def test_split_tensors_gives_the_same_packs(whole: Path, tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    assert split(file).exit_code == 0
    assert pack_hashes(file) == pack_hashes(whole)


def test_split_tensors_fetches_every_weight_byte_once(
    hub: HubServer, checkpoint: dict[str, bytes], tmp_path: Path
) -> None:
    split(write_release(tmp_path / "r", HUB + PACKS))
    wanted = [len(checkpoint[name]) for name in WEIGHTS]
    assert sent(hub, WEIGHTS, sum(wanted)) == wanted


@pytest.mark.usefixtures("hub")
def test_a_run_after_a_split_one_finds_everything_made(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HUB + PACKS)
    split(file)
    assert made(run(file).schedules[0]) == set()


def test_broken_connections_are_retried(hub: HubServer, whole: Path, tmp_path: Path) -> None:
    hub.fail(WEIGHTS[0], Fault(times=3), Fault(break_after=1000, times=2), Fault(status=500), Fault(wrong_range=True))
    file = write_release(tmp_path / "r", HUB + PACKS)
    assert split(file).exit_code == 0
    assert pack_hashes(file) == pack_hashes(whole)


@pytest.mark.usefixtures("hub")
def test_a_range_of_wrong_bytes_is_found_and_fetched_anew(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, wrong = RangeFetcher.fetch, [True]

    def changed(self: RangeFetcher, name: str, start: int, stop: int, descriptor: int) -> None:
        fetch(self, name, start, stop, descriptor)
        if stop - start > SMALL and wrong:
            wrong.clear()
            (low,) = os.pread(descriptor, 1, start)
            os.pwrite(descriptor, bytes([low ^ 1]), start)

    monkeypatch.setattr(RangeFetcher, "fetch", changed)
    file = write_release(tmp_path / "r", HUB + PACKS)
    assert split(file).exit_code == 0
    assert not wrong
    assert pack_hashes(file) == pack_hashes(whole)


def test_a_server_without_ranges_is_refused_by_name(hub: HubServer, tmp_path: Path) -> None:
    hub.fail(WEIGHTS[0], Fault(ignore_range=True, times=-1))
    with pytest.raises(EnvironmentFailure, match="does not serve ranges"):
        split(write_release(tmp_path / "r", HUB + PACKS))


def test_a_gguf_source_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="no safetensors checkpoint"):
        split(write_release(tmp_path / "r"))


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
def test_packs_that_need_a_matrix_are_split_after_it(tmp_path: Path) -> None:
    text = HUB + MEASURED + PACKS + GATES
    ordinary = write_release(tmp_path / "ordinary", text)
    run(ordinary)
    file = write_release(tmp_path / "split", text)
    with process_pool(2, Silent()) as executor:
        assert run_split(open_schedule(read_release(file)), executor, Silent()).exit_code == 0
    assert pack_hashes(file) == pack_hashes(ordinary)
    results = tmp_path / "split/packs/.release/results"
    assert json.loads(next((results / "tensor@0").glob("*.json")).read_bytes())["data"]["tensors"] >= 1


def test_ranges_are_joined_and_cut() -> None:
    assert joined([(5, 9), (0, 3), (3, 5), (20, 21)]) == [(0, 9), (20, 21)]
    assert without([(0, 10), (20, 30)], [(2, 4), (8, 25)]) == [(0, 2), (4, 8), (25, 30)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_600_mb_travel_once_to_two_workers_one_of_which_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.convert import make_checkpoint

    make_checkpoint(tmp_path / "model/Tiny", "qwen3", 600)
    files = folder_files(tmp_path / "model/Tiny")
    weights = {name: len(data) for name, data in files.items() if name.endswith(".safetensors")}
    with serve({"org/Tiny": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        ordinary = write_release(tmp_path / "ordinary", HUB + PACKS)
        assert run(ordinary).exit_code == 0
        hub.hits.clear()
        file = write_release(tmp_path / "undisturbed", HUB + PACKS)
        with process_pool(2, Silent()) as executor:
            assert run_split(open_schedule(read_release(file)), executor, Silent()).exit_code == 0
        assert sent(hub, list(weights), sum(weights.values())) == list(weights.values())
        assert pack_hashes(file) == pack_hashes(ordinary)
        hub.hits.clear()
        file = write_release(tmp_path / "killed", HUB + PACKS)
        executor = KilledOnce(2, Silent())
        assert run_split(open_schedule(read_release(file)), executor, Silent()).exit_code == 0
        executor.close()
        assert pack_hashes(file) == pack_hashes(ordinary)
        largest = 4160 * 1024 * 2
        assert sum(weights.values()) <= sum(hub.bytes_sent(name) for name in weights)
        assert sum(hub.bytes_sent(name) for name in weights) <= sum(weights.values()) + largest


class KilledOnce(ProcessPool):
    """Kills the worker that gets the tenth tensor, when it has it."""

    tensors = 0

    def submit(self, task: Task, avoid: str | None = None) -> None:
        super().submit(task, avoid)
        self.tensors += task.kind == "tensor"
        if self.tensors == 10:
            self.tensors += 1
            os.kill(self.pids[-1], signal.SIGKILL)
