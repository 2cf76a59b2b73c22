"""Killed at every step, an installation leaves the old template or the new one, and a model that llama.cpp loads."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.errors import BadInput
from strata_pack.llama.logits_native import LogitsModel
from strata_pack.pack import journal as template_install_journal
from strata_pack.pack.journal import Journal, JournalStep, Move, Patch, Put, Rewrite, read_journal
from strata_pack.pack.layout import Pack, gguf_template
from strata_pack.pack.paths import STATE_DIR, is_pack
from strata_pack.pack.recovery import recover
from strata_pack.pack.template.install import install_template, rollback_template
from strata_pack.pack.template.status import template_status
from strata_pack.weights.gguf.edit import PAD_KEY, pad_value
from strata_pack.weights.gguf.file import open_shards
from tests.conftest import ROOT
from tests.pack.tiny_gguf import write_shards, write_tiny
from tests.pack.tiny_pack import check_listed, hashes, write_pack

LONG = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{# " + "long " * 60 + "#}"
HUGE = LONG + "{# " + "huge " * 20_000 + "#}"


def _plain(folder: Path) -> str:
    folder.mkdir()
    return write_tiny(folder / "m.gguf").name


def _padded(folder: Path) -> str:
    folder.mkdir()
    return write_tiny(folder / "m.gguf", extra={PAD_KEY: pad_value(4000)}).name


def _shards(folder: Path) -> str:
    folder.mkdir()
    return write_shards(folder, (7, 5))[0].name


def _pack(folder: Path) -> str:
    return write_pack(folder / "pack", config={"chat_template": "old"}).name


def _tight_pack(folder: Path) -> str:
    return write_pack(folder / "pack", reserve=0).name


def _split_pack(folder: Path) -> str:
    return write_pack(folder / "pack", shards=(7, 5)).name


SCENARIOS: dict[str, tuple[Callable[[Path], str], str, int]] = {
    "gguf in place": (_padded, LONG, 10),
    "gguf copied": (_plain, LONG, 12),
    "first of two shards copied": (_shards, LONG, 12),
    "pack in place": (_pack, LONG, 20),
    "pack gets a first shard": (_tight_pack, LONG, 20),
    "pack of two gets a third": (_split_pack, HUGE, 20),
}
"""Name: what is made, the template installed, and the fewest steps that must have been killed."""


def run_faults(action: str, pristine: Path, work: Path, name: str, template: Path) -> int:
    """Return how many steps were killed; ``work/<n>`` is what the n-th left."""
    work.mkdir()
    command = [sys.executable, "-m", "tests.pack.faults", action, str(pristine), str(work), name, str(template)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def model_of(target: Path) -> Path:
    return Pack.open(target).model_files[0] if is_pack(target) else target


def weights_and_logits(target: Path) -> tuple[dict[str, bytes], object]:
    path = model_of(target)
    weights = {t.name: bytes(file.tensor_bytes(t)) for file in open_shards(path) for t in file.tensors}
    with LogitsModel(path, context=16, threads=1) as model:
        return weights, model.logits([4, 5, 6], 0)


def check_one_of(
    folder: Path, name: str, states: list[dict[str, str]], expected: tuple[dict[str, bytes], object], loaded: set[int]
) -> int:
    """Recover, then fail unless the folder is exactly one of ``states``, loads, and computes the same; return which.

    ``loaded`` are the states that were loaded before: the same bytes compute the same.
    """
    target = folder / name
    recover(target)
    found = hashes(folder)
    assert found in states
    if states.index(found) in loaded:
        return states.index(found)
    loaded.add(states.index(found))
    weights, logits = weights_and_logits(target)
    assert weights == expected[0]
    assert np.array_equal(logits, expected[1])  # type: ignore[arg-type]
    if is_pack(target):
        check_listed(target)
    return states.index(found)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of installations wait for every fsync otherwise."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    return tmp_path / "template.jinja"


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("action", ["install", "rollback", "recover"])
def test_killed_at_any_step_it_is_old_or_new(tmp_path: Path, template: Path, scenario: str, action: str) -> None:
    make, text, fewest = SCENARIOS[scenario]
    template.write_text(text)
    pristine = tmp_path / "pristine"
    name = make(pristine)
    expected = weights_and_logits(pristine / name)
    old = hashes(pristine)
    shutil.copytree(pristine, tmp_path / "new")
    install_template(tmp_path / "new" / name, str(template), force=True, engines=[Jinja2Engine()])
    new = hashes(tmp_path / "new")
    states = [old, new]
    if action == "rollback":
        pristine, states = tmp_path / "new", [new, old]
    elif action == "recover":
        # As if the first installation had been killed when nothing but the journal was written.
        state = next(path for path in (tmp_path / "new").rglob(f"*{STATE_DIR}"))
        place = pristine / state.relative_to(tmp_path / "new")
        place.mkdir()
        shutil.copy(state / "backup-0001", place / "journal")
    killed = run_faults(action, pristine, tmp_path / "work", name, template)
    assert killed >= (fewest if action == "install" else 3)
    loaded: set[int] = set()
    for step in range(1, killed + 2):
        check_one_of(tmp_path / "work" / str(step), name, states, expected, loaded)
    assert loaded == ({1} if action == "recover" else {0, 1})


def test_a_torn_write_leaves_bytes_that_recovery_accepts_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "f"
    patch = Patch("f", 8, 2, b"abcd", b"wxyz")
    for middle, sound in ((b"abcd", True), (b"wxcd", True), (b"abyz", True), (b"wxQd", False)):
        path.write_bytes(b"..".join((b"", middle, b"")))
        if sound:
            assert patch.pending(tmp_path)
        else:
            with pytest.raises(Exception, match="changed by another program"):
                patch.pending(tmp_path)


STEPS = (
    Patch("a", 9, 2, b"\x00x", b"\xffy"),
    Put("b", None, b"new"),
    Put("b", b"old", None),
    Move("a", "c/d"),
    Rewrite("a", 10, 20, b"old", b"newer"),
)


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    journal = Journal({"sha256": None}, {"sha256": "é"}, STEPS)
    (tmp_path / "journal").write_bytes(journal.dump())
    assert read_journal(tmp_path / "journal") == journal
    assert journal.inverted().inverted() == journal


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a\0b"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_journal_that_names_a_file_outside_is_refused(tmp_path: Path, step: JournalStep, path: str) -> None:
    evil = {"old": path} if isinstance(step, Move) else {"path": path}
    (tmp_path / "journal").write_bytes(Journal({}, {}, (dataclasses.replace(step, **evil),)).dump())  # type: ignore[type-var]
    with pytest.raises(BadInput, match="outside the folder"):
        read_journal(tmp_path / "journal")


def test_a_journal_that_goes_through_a_link_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    with pytest.raises(BadInput, match="is a link"):
        Put("link/file", None, b"evil").apply(root)
    assert not list(outside.iterdir())


def test_the_journal_is_on_the_disk_before_the_first_byte_changes(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template.write_text(LONG)
    name = _padded(tmp_path / "target")
    calls: list[str] = []

    def record(call: str) -> None:
        real = getattr(os, call)

        def wrapper(*args: object, **kwargs: object) -> object:
            calls.append(call if call != "fsync" else f"fsync {Path(os.readlink(f'/proc/self/fd/{args[0]}')).name}")
            return real(*args, **kwargs)

        monkeypatch.setattr(os, call, wrapper)

    for call in ("fsync", "pwrite", "replace", "rename"):
        record(call)
    install_template(tmp_path / "target" / name, str(template), force=True, engines=[Jinja2Engine()])
    first = calls.index("pwrite")
    assert [call.split(".")[0] for call in calls[:first]][-3:] == ["fsync ", "replace", "fsync m"]
    assert calls[first + 1] == "fsync m.gguf" or calls[first + 1] == "pwrite"
    assert calls[-2:] == ["rename", f"fsync m.gguf{STATE_DIR}"]


def test_a_step_that_fails_takes_everything_back(
    tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template.write_text(LONG)
    root = tmp_path / "target" / _pack(tmp_path / "target")
    before = hashes(root)
    real = template_install_journal.write_atomic
    calls = 0

    def failing(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(5, "Input/output error")
        real(path, data)

    monkeypatch.setattr(template_install_journal, "write_atomic", failing)
    with pytest.raises(OSError, match="Input/output"):
        install_template(root, str(template), force=True, engines=[Jinja2Engine()])
    assert calls > 3
    assert hashes(root) == before
    assert not (root / STATE_DIR).exists()


def test_status_reports_an_installation_that_it_finished(tmp_path: Path, template: Path) -> None:
    template.write_text(LONG)
    root = tmp_path / "target" / _pack(tmp_path / "target")
    install_template(root, str(template), force=True, engines=[Jinja2Engine()])
    new = hashes(root)
    shutil.copy(root / STATE_DIR / "backup-0001", tmp_path / "journal")
    rollback_template(root)
    (root / STATE_DIR).mkdir()
    shutil.copy(tmp_path / "journal", root / STATE_DIR / "journal")
    found = template_status(root)
    assert found.recovered is not None
    assert "completed an interrupted installation" in found.notes[0]
    assert hashes(root) == new


def test_reading_the_template_of_a_plain_gguf_finishes_the_installation_first(tmp_path: Path, template: Path) -> None:
    template.write_text(LONG)
    folder = tmp_path / "target"
    path = folder / _padded(folder)
    old = path.read_bytes()
    install_template(path, str(template), force=True, engines=[Jinja2Engine()])
    state = path.with_name(path.name + STATE_DIR)
    (state / "backup-0001").rename(state / "journal")
    path.write_bytes(old)
    assert gguf_template(path) == LONG


def test_the_temporary_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    path = folder / _padded(folder)
    other = folder / ".m.gguf.abc.tmp"
    other.write_bytes(b"a model that is being written")
    recover(path)
    assert other.is_file()


def test_recovery_refuses_a_gguf_that_was_replaced_in_between(tmp_path: Path, template: Path) -> None:
    template.write_text(LONG)
    folder = tmp_path / "target"
    path = folder / _padded(folder)
    install_template(path, str(template), force=True, engines=[Jinja2Engine()])
    state = path.with_name(path.name + STATE_DIR)
    (state / "backup-0001").rename(state / "journal")
    path.write_bytes(b"GGUF" + bytes(9999))
    data = path.read_bytes()
    with pytest.raises(Exception, match="changed by another program"):
        recover(path)
    assert path.read_bytes() == data
