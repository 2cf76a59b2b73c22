"""Putting folders in place: atomic, also over an older one."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.errors import EnvironmentFailure
from strata_pack.pack import atomic_replace


def folder(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_new_folder_takes_the_free_name(tmp_path: Path) -> None:
    atomic_replace.put(folder(tmp_path / "new", "n"), tmp_path / "out")
    assert (tmp_path / "out/file").read_text() == "n"
    assert not (tmp_path / "new").exists()


def test_an_older_folder_is_exchanged(tmp_path: Path) -> None:
    folder(tmp_path / "out", "old")
    atomic_replace.put(folder(tmp_path / "new", "n"), tmp_path / "out")
    assert ((tmp_path / "out/file").read_text(), (tmp_path / "new/file").read_text()) == ("n", "old")


def test_without_exchange_two_renames_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_replace.sys, "platform", "elsewhere")
    folder(tmp_path / "out", "old")
    atomic_replace.put(folder(tmp_path / "new", "n"), tmp_path / "out")
    assert ((tmp_path / "out/file").read_text(), (tmp_path / "new/file").read_text()) == ("n", "old")


def test_exchange_with_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        atomic_replace.exchange(folder(tmp_path / "a", "a"), tmp_path / "b")


def test_a_second_holder_of_the_lock_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    refused = pytest.raises(EnvironmentFailure, match="another process is working")
    with atomic_replace.locked(path, "this pack"), refused, atomic_replace.locked(path, "this pack"):
        pass


def test_the_lock_is_free_again_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with atomic_replace.locked(path, "this pack"):
        pass
    with atomic_replace.locked(path, "this pack"):
        assert path.exists()
