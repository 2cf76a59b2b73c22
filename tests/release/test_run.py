"""Running a release: what is made, what is found again, and which change redoes what."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from strata_pack.chat.library import load_shipped
from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import sha256_file
from strata_pack.pack.verification import verify
from strata_pack.progress import Silent
from strata_pack.release.local_executor import InProcess
from strata_pack.release.lock import read_lock
from strata_pack.release.release_file import read_release
from strata_pack.release.run import open_schedule, run_releases
from strata_pack.release.versions import Versions, installed_versions
from tests.pack.tiny_gguf import metadata, tensors, write_file
from tests.release.tiny_release import (
    GATES,
    HEAD,
    MEASURED,
    PACKS,
    STOCK,
    TEXT,
    copied,
    made,
    pack_hashes,
    run,
    run_again,
    write_release,
)
from tests.smoke.tiny import write_tiny_model

NAMES = ("Tiny-Q8_0", "Tiny-Q4_0")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished release with an importance matrix, golden cases and divergence."""
    file = write_release(tmp_path_factory.mktemp("release") / "first", HEAD + MEASURED + PACKS + GATES)
    assert run(file).exit_code == 0
    return file


def test_every_pack_verifies(finished: Path) -> None:
    assert all(verify(finished.parent / "packs" / name).ok for name in NAMES)


def test_a_second_run_makes_nothing(finished: Path, tmp_path: Path) -> None:
    assert run_again(copied(finished, tmp_path / "copy")) == set()


def test_a_release_in_another_folder_is_the_same(finished: Path, tmp_path: Path) -> None:
    other = write_release(tmp_path / "other", finished.read_text())
    run(other)
    assert pack_hashes(other) == pack_hashes(finished)


def test_the_lock_names_the_source_by_its_hash_and_the_packs_files(finished: Path) -> None:
    lock = read_lock(finished.with_suffix(".lock"))
    assert lock is not None
    assert lock["source"]["files"][0]["sha256"] == sha256_file(finished.parent / "tiny.gguf")
    files = {file["path"]: file["sha256"] for file in lock["packs"]["Tiny-Q8_0"]["files"]}
    assert files == {path: sha256_file(finished.parent / "packs/Tiny-Q8_0" / path) for path in files}


def test_the_lock_holds_no_path_of_this_machine(finished: Path) -> None:
    assert str(finished.parent) not in finished.with_suffix(".lock").read_text()


def each(*kinds: str) -> set[str]:
    return {f"{kind}:{name}" for kind in kinds for name in NAMES}


def edit(pattern: str, text: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        before = file.read_text()
        after = re.sub(pattern, text, before, count=1, flags=re.DOTALL)
        assert after != before
        file.write_text(after)

    return change


def rewrite(name: str, text: str) -> Callable[[Path], None]:
    return lambda file: (file.parent / name).write_text(text) and None


def other_weights(file: Path) -> None:
    write_file(file.parent / "tiny.gguf", metadata(STOCK), tensors(seed=1))


def touch_source(file: Path) -> None:
    os.utime(file.parent / "tiny.gguf")


def damage(name: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with (file.parent / "packs" / name).open("r+b") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.write(b"\x55")

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda file: (file.parent / "packs" / name).unlink()


PACK_AND_AFTER = each("pack", "provenance", "verify", "golden", "kl", "gates")
NEW = {f"{kind}:Tiny-F16" for kind in ("pack", "provenance", "verify", "golden", "kl", "gates")}
Q4 = {f"{kind}:Tiny-Q4_0" for kind in ("pack", "provenance", "verify", "golden", "kl", "gates")}

CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "a comment": (edit(r"\Z", "# a comment\n"), set()),
    "a touched source": (touch_source, {"fetch"}),
    "other weights": (other_weights, {"fetch", "imatrix", "logits", "report"} | PACK_AND_AFTER),
    "another template": (rewrite("template.jinja", STOCK + "{# new #}"), {"report"} | PACK_AND_AFTER),
    "another golden case": (
        rewrite("golden.json", json.dumps([{"name": "two", "messages": [], "expected": ""}])),
        {"report"} | PACK_AND_AFTER,
    ),
    "another calibration text": (rewrite("calibration.txt", TEXT[::-1]), {"imatrix", "report"} | Q4),
    "fewer chunks' context": (edit("context = 64", "context = 48"), {"imatrix", "report"} | Q4),
    "one pack more": (edit(r"\[\[pack\]\]", '[[pack]]\nquant = "F16"\n[[pack]]'), NEW | {"report"}),
    "one pack less": (edit(r'\[\[pack\]\]\nquant = "Q4_0"\n', ""), {"report"}),
    "another limit": (edit("kl_mean = 5.0", "kl_mean = 6.0"), {"report"} | each("gates")),
    "another text to measure on": (
        rewrite("measured.txt", TEXT[::-1]),
        {"logits", "report"} | each("kl", "gates"),
    ),
    "no golden gate": (edit(r"kl_mean", "golden = false\nkl_mean"), {"report"} | each("gates")),
    "a damaged pack": (damage("Tiny-Q8_0/model/Tiny-Q8_0.gguf"), {"pack:Tiny-Q8_0"}),
    "a lost page": (remove("report.html"), {"report"}),
    "a lost importance matrix": (remove(".release/imatrix.gguf"), {"imatrix"}),
    "a place to publish": (edit(r"\Z", '\n[publish]\nto = "published"\n'), {"card"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_redoes_what_depends_on_it(change: str, finished: Path, tmp_path: Path) -> None:
    apply, expected = CHANGES[change]
    file = copied(finished, tmp_path / "copy")
    apply(file)
    assert run_again(file) == expected
    assert run_again(file) == set()


FACTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "another version of the tool": (
        {"tool": "0"},
        {"report"} | each("pack", "provenance", "verify", "golden"),
    ),
    "other kernels": ({"kernels": "others 1"}, each("pack")),
    "another engine": ({"engines": {"jinja2": "0"}}, each("pack", "golden")),
    "another llama.cpp to serve": ({"runtime": "mine"}, set()),
}


@pytest.mark.parametrize("change", FACTS)
def test_another_installation_redoes_what_depends_on_it(change: str, finished: Path, tmp_path: Path) -> None:
    changed, expected = FACTS[change]
    file = copied(finished, tmp_path / "copy")
    versions: Versions = replace(installed_versions(), **changed)
    outcome = run_releases([open_schedule(read_release(file), versions=versions)], InProcess(Silent(), threads=1))
    assert made(outcome.schedules[0]) == expected


def test_a_pack_that_fails_its_gate_is_built_and_reported(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HEAD + PACKS + GATES.replace("5.0", "0.0"))
    outcome = run(file)
    assert outcome.held_back == ["Tiny-Q8_0", "Tiny-Q4_0"]
    assert outcome.exit_code == 1
    assert verify(tmp_path / "r/packs/Tiny-Q4_0").ok
    report = json.loads((tmp_path / "r/packs/report.json").read_bytes())
    failed = [check["id"] for check in report["checks"] if check["status"] == "failed"]
    assert failed == ["Tiny-Q8_0/kl", "Tiny-Q4_0/kl"]


def test_a_node_that_fails_stops_only_what_needs_it(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r")
    (tmp_path / "r/packs/Tiny-Q8_0").mkdir(parents=True)
    (tmp_path / "r/packs/Tiny-Q8_0/mine.txt").write_text("not the release's")
    outcome = run(file)
    (schedule,) = outcome.schedules
    assert set(schedule.failures) == {"pack:Tiny-Q8_0"}
    assert schedule.states["verify:Tiny-Q8_0"] == "skipped"
    assert schedule.states["gates:Tiny-Q4_0"] == "made"
    assert outcome.exit_code == 2
    assert (tmp_path / "r/packs/Tiny-Q8_0/mine.txt").is_file()


def test_a_failed_node_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r")
    (tmp_path / "r/packs/Tiny-Q8_0").mkdir(parents=True)
    (tmp_path / "r/packs/Tiny-Q8_0/mine.txt").write_text("not the release's")
    run(file)
    (tmp_path / "r/packs/Tiny-Q8_0/mine.txt").unlink()
    assert "pack:Tiny-Q8_0" in run_again(file)


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r")
    schedule = open_schedule(read_release(file))
    refused: list[str] = []

    class Curious(InProcess):
        def submit(self, task: Any, avoid: str | None = None) -> None:
            with pytest.raises(EnvironmentFailure, match="another run has this release") as error:
                run(file)
            refused.append(str(error.value))
            super().submit(task, avoid)

    run_releases([schedule], Curious(Silent(), threads=1))
    assert refused
    assert schedule.ended


def test_releases_share_one_run(tmp_path: Path) -> None:
    files = [write_release(tmp_path / name, (HEAD + PACKS).replace("Tiny", name)) for name in ("One", "Two")]
    outcome = run_releases([open_schedule(read_release(file)) for file in files], InProcess(Silent(), threads=1))
    assert outcome.exit_code == 0
    assert verify(tmp_path / "Two/packs/Two-Q4_0").ok


def test_weights_are_those_of_a_build(finished: Path, tmp_path: Path) -> None:
    from strata_pack.pack.build import build_pack
    from strata_pack.pack.request import BuildRequest
    from strata_pack.weights.quantize.recipes import make_recipe

    folder = finished.parent
    request = BuildRequest(
        str(folder / "tiny.gguf"),
        tmp_path / "Tiny-Q8_0",
        make_recipe("Q8_0"),
        template=str(folder / "template.jinja"),
        golden=folder / "golden.json",
        name="Tiny-Q8_0",
    )
    built = build_pack(request).path
    for name in ("manifest.json", "model/Tiny-Q8_0.gguf"):
        assert (built / name).read_bytes() == (folder / "packs/Tiny-Q8_0" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_real_server_judges_scenarios_and_calls(tmp_path: Path) -> None:
    text = """
[release]
name = "Chat"
source = "tiny.gguf"
template = "qwen3.8-flash-next"
[[pack]]
quant = "Q8_0"
[gates]
smoke = true
calls = 0.5
calls_tasks = 1
"""
    file = write_release(tmp_path, text)
    write_tiny_model(tmp_path / "tiny.gguf", chat_template=load_shipped("qwen3.8-flash-next").source)
    outcome = run(file)
    judged = outcome.schedules[0].found["gates:Chat-Q8_0"]["data"]["gates"]
    assert {row["gate"]: row["status"] for row in judged} == dict.fromkeys(
        ("verify", "golden", "smoke", "calls"), "passed"
    )
    checks = json.loads((tmp_path / "packs/report.json").read_bytes())["checks"]
    links = [path for check in checks for path in check.get("links", {}).values()]
    assert len(links) == 4
    assert all((tmp_path / "packs" / path).is_file() for path in links)


def test_numbers_in_results_are_plain(finished: Path) -> None:
    """A result is JSON that any worker reads: no numpy number is in it."""
    for path in (finished.parent / "packs/.release/results").rglob("*.json"):
        assert not isinstance(json.loads(path.read_bytes())["seconds"], np.generic)


class Elsewhere(InProcess):
    """A worker that has neither the key nor the token."""

    def submit(self, task: Any, avoid: str | None = None) -> None:
        assert task.kind != "publish"
        super().submit(task, avoid)


def test_the_card_can_be_read_before_it_is_published(tmp_path: Path) -> None:
    file = write_release(tmp_path / "r", HEAD + PACKS + '[publish]\nto = "published"\n')
    assert {"card", "provenance:Tiny-Q8_0"} <= run_again(file)
    card = (tmp_path / "r/packs/cards/published/README.md").read_bytes()
    release = replace(read_release(file), accept_licence=True)
    schedule = open_schedule(release, wanted=lambda _node: True)
    assert run_releases([schedule], Elsewhere(Silent(), threads=1)).exit_code == 0
    assert (tmp_path / "r/published/README.md").read_bytes() == card


DAMAGE = {
    "JSON of another kind": b"[]",
    "a result without its digest": b'{"node": "fetch", "key": "x"}',
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_result_is_made_again(finished: Path, tmp_path: Path, kind: str) -> None:
    file = copied(finished, tmp_path / "r")
    wanted = pack_hashes(file)
    for result in (file.parent / "packs/.release/results").glob("*/*.json"):
        result.write_bytes(DAMAGE[kind])
    assert "pack:Tiny-Q8_0" in run_again(file)
    assert pack_hashes(file) == wanted


def test_a_result_whose_data_was_changed_is_made_again(finished: Path, tmp_path: Path) -> None:
    file = copied(finished, tmp_path / "r")
    (place,) = (file.parent / "packs/.release/results/gates@Tiny-Q8_0").glob("*.json")
    place.write_text(place.read_text().replace('"passed"', '"failed"'))
    assert run_again(file) == {"gates:Tiny-Q8_0"}


LOCKS: dict[str, Any] = {
    "a source that is none": {"source": 5},
    "a file without its size": {"source": {"files": [{"path": "x"}]}},
    "a commit that is a number": {"source": {"commit": 5}},
    "a pack that is a number": {"packs": {"Tiny-Q8_0": 5}},
}


@pytest.mark.parametrize("kind", LOCKS)
def test_a_damaged_lock_file_is_named_by_its_place(finished: Path, tmp_path: Path, kind: str) -> None:
    file = copied(finished, tmp_path / "r")
    lock = json.loads(file.with_suffix(".lock").read_text())
    for key, value in LOCKS[kind].items():
        lock[key] = {**lock[key], **value} if isinstance(value, dict) else value
    file.with_suffix(".lock").write_text(json.dumps(lock))
    with pytest.raises(BadInput, match=r"release\.lock: is no lock file of a release \(.*restore it, or remove it"):
        open_schedule(read_release(file))


def test_a_lock_file_that_is_a_link_stays_one(finished: Path, tmp_path: Path) -> None:
    file = copied(finished, tmp_path / "r")
    lock = file.with_suffix(".lock")
    lock.rename(tmp_path / "kept.lock")
    lock.symlink_to(tmp_path / "kept.lock")
    os.utime(file.parent / "tiny.gguf")
    run_again(file)
    assert lock.is_symlink()


@pytest.mark.parametrize(("flag", "node"), [("true", None), ("false", "recipe:Tiny-fit-6bpw")])
def test_a_search_for_a_size_follows_the_releases_word_on_quantizing_twice(
    tmp_path: Path, flag: str, node: str | None
) -> None:
    file = write_release(tmp_path / "twice", f'{HEAD}allow_requantize = {flag}\n[[pack]]\nfit = "6bpw"\n')
    write_file(tmp_path / "twice" / "tiny.gguf", metadata(STOCK), tensors(), GGMLQuantizationType.Q8_0)
    (schedule,) = run(file).schedules
    assert next(iter(schedule.failures), None) == node
