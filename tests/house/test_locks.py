"""Locks: one holder at a time, and nobody waits for itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata_pack.errors import EnvironmentFailure
from strata_pack.locks import hold_folder, holds_folder, lock_file

BUSY = EnvironmentFailure("somebody is at work")


def test_a_second_holder_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch()
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    lock_file(first, BUSY)
    with pytest.raises(EnvironmentFailure, match="somebody is at work"):
        lock_file(second, BUSY, 0.1)
    os.close(first)
    lock_file(second, BUSY)
    os.close(second)


def test_a_folder_that_is_held_is_known_by_every_spelling(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert not holds_folder(tmp_path)
    with hold_folder(tmp_path / "link", BUSY):
        assert holds_folder(tmp_path)
        assert not holds_folder(tmp_path.parent)
    assert not holds_folder(tmp_path)
