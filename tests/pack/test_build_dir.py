"""The partial folder: what a stopped build leaves, and what the next one makes of it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

import pytest

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.pack.build_dir import BuildDir, check_target, open_build_dir
from tests.pack.tiny_pack import write_pack

KEY = {"source": "a"}
INPUTS = {"template": "1"}


def fill(place: BuildDir) -> None:
    place.pack.mkdir()
    (place.pack / "manifest.json").write_text("{}")
    place.journal.mkdir()
    place.source.mkdir()


def test_the_same_inputs_find_the_work_of_the_last_build(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p") as place:
        place.begin(KEY, INPUTS)
        fill(place)
    with open_build_dir(tmp_path / "p") as place:
        assert place.begin(KEY, INPUTS)
        assert place.pack.exists()


def test_other_inputs_start_anew_but_keep_what_was_fetched(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p") as place:
        place.begin(KEY, INPUTS)
        fill(place)
        assert not place.begin(KEY, {"template": "2"})
        assert (place.pack.exists(), place.journal.exists(), place.source.exists()) == (False, False, True)


def test_install_leaves_only_the_pack(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p") as place:
        place.begin(KEY, INPUTS)
        fill(place)
        place.install(place.pack)
        place.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    assert (tmp_path / "p/manifest.json").exists()


def test_a_build_stopped_after_the_install_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_build_dir(tmp_path / "p") as place:
        place.begin(KEY, INPUTS)
        fill(place)
        monkeypatch.setattr(BuildDir, "remove", lambda _self: None)
        place.install(place.pack)
        assert place.installed(KEY) is not None


def test_nothing_is_installed_before_the_install(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p") as place:
        place.begin(KEY, INPUTS)
        assert place.installed(KEY) is None


def test_an_unused_workplace_vanishes(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_journal_starts_anew(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p") as place:
        (place.root / "build.json").write_text('{"key": ')
        assert not place.begin(KEY, INPUTS)


def test_a_pack_in_the_way_is_refused_without_force(tmp_path: Path) -> None:
    write_pack(tmp_path / "p")
    with pytest.raises(WrongUse, match=r"holds a pack already.*--force"):
        check_target(tmp_path / "p", force=False)


def test_force_allows_to_replace_a_pack(tmp_path: Path) -> None:
    write_pack(tmp_path / "p")
    assert check_target(tmp_path / "p", force=True) == []
    assert (tmp_path / "p/manifest.json").exists()


@pytest.mark.parametrize("content", ["{}", '{"name": "a web page"}', "[", ""])
def test_a_folder_with_a_manifest_of_something_else_is_never_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(WrongUse, match="other files in it"):
        check_target(tmp_path, force=True)


def test_a_folder_that_no_build_made_is_not_built_in(tmp_path: Path) -> None:
    (tmp_path / "p.partial/thesis").mkdir(parents=True)
    with pytest.raises(WrongUse, match="would remove thesis"), open_build_dir(tmp_path / "p"):
        pass
    assert (tmp_path / "p.partial/thesis").is_dir()


def test_a_partial_folder_that_is_a_link_is_not_built_in(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "p.partial").symlink_to("mine")
    with pytest.raises(WrongUse, match="in the way"), open_build_dir(tmp_path / "p"):
        pass
    assert (tmp_path / "p.partial").is_symlink()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_with_other_things_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "thesis.txt").write_text("!")
    with pytest.raises(WrongUse, match="other files in it"):
        check_target(tmp_path, force=force)


def test_a_link_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(WrongUse, match="not a folder"):
        check_target(tmp_path / "link", force=True)


def test_a_second_build_leaves_the_folder_of_the_first_alone(tmp_path: Path) -> None:
    with open_build_dir(tmp_path / "p") as place:
        with pytest.raises(EnvironmentFailure, match="another process is working"), open_build_dir(tmp_path / "p"):
            pass
        assert place.root.is_dir()


def test_a_lock_on_a_file_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def late(file: IO[str], how: int) -> None:
        (tmp_path / "p.partial/lock").unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(EnvironmentFailure, match="another process is working"), open_build_dir(tmp_path / "p"):
        pass


def test_a_lock_that_comes_while_the_folder_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rmdir = Path.rmdir

    def late(folder: Path) -> None:
        (folder / "lock").touch()
        rmdir(folder)

    with open_build_dir(tmp_path / "p") as place:
        monkeypatch.setattr(Path, "rmdir", late)
        place.remove()
        assert (place.root / "lock").exists()


@pytest.mark.parametrize("out", ["/", "x/.."])
def test_a_folder_without_a_name_is_refused(out: str) -> None:
    with pytest.raises(WrongUse, match="cannot be a pack's folder"), open_build_dir(Path(out)):
        pass
