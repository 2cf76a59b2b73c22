"""A file that changes while it is read is noticed, also when its size and its time are put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from strata_pack.errors import BadInput
from strata_pack.weights.input_files import InputFiles


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def _touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def _replaced(path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(path.read_bytes())
    os.replace(fresh, path)


def _written_with_its_time_put_back(path: Path) -> None:
    before = path.stat()
    path.write_bytes(b"other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _removed(path: Path) -> None:
    path.unlink()


CHANGES = {
    "longer": (_longer, r"had 5 bytes and has 6 now"),
    "touched": (_touched, "was written to"),
    "replaced by the same bytes": (_replaced, "replaced by another file"),
    "written, its time put back": (_written_with_its_time_put_back, "was written to"),
    "removed": (_removed, "was removed"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"bytes")
    os.utime(path, ns=(10**18, 10**18))
    return path


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(file: Path, name: str) -> None:
    change, words = CHANGES[name]
    inputs = InputFiles.of([file])
    _wait_for_the_clock(file)
    change(file)
    with pytest.raises(BadInput, match=words) as caught:
        inputs.check_unchanged()
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("change", [_longer, _touched, _written_with_its_time_put_back])
def test_a_changed_file_has_another_fingerprint(file: Path, change: Callable[[Path], None]) -> None:
    before = InputFiles.of([file]).fingerprint()
    _wait_for_the_clock(file)
    change(file)
    assert InputFiles.of([file]).fingerprint() != before


def test_a_file_that_is_read_has_not_changed(file: Path) -> None:
    inputs = InputFiles.of([file])
    file.read_bytes()
    inputs.check_unchanged()


@pytest.mark.parametrize(
    "change", [lambda file: os.link(file, f"{file}.link"), lambda file: os.chmod(file, 0o400)], ids=["link", "mode"]
)
def test_a_new_link_or_mode_is_no_change(file: Path, change: Callable[[Path], None]) -> None:
    inputs = InputFiles.of([file])
    _wait_for_the_clock(file)
    change(file)
    inputs.check_unchanged()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        InputFiles.of([tmp_path / "none"])


def _wait_for_the_clock(file: Path) -> None:
    """Let the file system's clock, which is coarse, move on from the last change of ``file``."""
    probe = file.with_suffix(".probe")
    while True:
        probe.write_bytes(b"")
        if probe.stat().st_ctime_ns > file.stat().st_ctime_ns:
            return
