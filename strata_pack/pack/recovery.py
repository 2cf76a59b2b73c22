"""Manages the state of template installations: journal, backups for rollback, recovery after an interruption.

Everything that opens a pack calls ``recover``, so this module imports little.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata_pack.errors import BadInput, EnvironmentFailure
from strata_pack.files import disk_errors, fsync_dir, write_atomic
from strata_pack.locks import hold_folder, holds_folder
from strata_pack.pack.journal import BACKUP, JOURNAL, STAGED, UNDO, Journal, read_journal
from strata_pack.pack.paths import MODEL_DIR, STATE_DIR
from strata_pack.progress import Progress
from strata_pack.weights.gguf.file import shard_paths

WAIT_SECONDS = 10.0
"""Seconds to wait for another installation in the same folder."""


def state_folder(path: Path) -> tuple[Path, Path]:
    """Return (root, state folder) of the pack folder or first GGUF file ``path``."""
    path = path.absolute()
    return (path, path / STATE_DIR) if path.is_dir() else (path.parent, path.with_name(path.name + STATE_DIR))


@contextmanager
def locked_folder(root: Path) -> Iterator[None]:
    """Lock ``root`` for one installation; ``EnvironmentFailure`` if another one holds it for ``WAIT_SECONDS``."""
    problem = "another installation is running in this folder"
    with hold_folder(root, EnvironmentFailure(problem, where=root, remedy="wait for it to end"), WAIT_SECONDS):
        yield


def recover(path: Path) -> str | None:
    """Complete an interrupted installation or rollback of ``path``; return what was done, ``None`` if nothing.

    Cheap if there is nothing to do. Does nothing inside an installation of the same thread. Raises ``BadInput`` if
    another program has changed a file in between.
    """
    path = path.resolve()
    if not path.is_dir() and not (path.is_file() and path.suffix == ".gguf"):
        return None
    with contextlib.suppress(BadInput):
        path = path if path.is_dir() else shard_paths(path)[0]
    root, state_dir = state_folder(path)
    if holds_folder(root):
        return None
    if not any((state_dir / name).is_file() for name in (JOURNAL, UNDO)) and not _leftovers(path, state_dir):
        return None
    done = None
    with locked_folder(root):
        if (state_dir / JOURNAL).is_file():
            journal = read_allowed(state_dir / JOURNAL, path)
            journal.apply(root)
            _remove_temporary(root, journal)
            _keep_backup(state_dir)
            done = f"completed an interrupted installation of the template {str(journal.after['sha256'])[:12]}"
        elif (state_dir / UNDO).is_file():
            journal = read_allowed(state_dir / UNDO, path).inverted()
            journal.apply(root)
            _remove_temporary(root, journal)
            _finish_undo(state_dir)
            done = f"completed an interrupted rollback to the template {str(journal.after['sha256'])[:12]}"
        for leftover in _leftovers(path, state_dir):
            leftover.unlink(missing_ok=True)
        _tidy(state_dir)
    return done


def _leftovers(path: Path, state_dir: Path) -> list[Path]:
    """Return the files left by an installation of ``path`` that was killed before its journal was written."""
    folder, name = (path / MODEL_DIR, "*") if path.is_dir() else (path.parent, glob.escape(path.name))
    return [*folder.glob(STAGED.format(name) + "*"), *state_dir.glob(".*.tmp")]


def _remove_temporary(root: Path, journal: Journal) -> None:
    """Remove the temporary files (``files.atomic_writer``) of the journal's own steps, and no others."""
    for step in journal.steps:
        path = root / step.target
        for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
            leftover.unlink()


def carry_out(root: Path, state_dir: Path, journal: Journal, progress: Progress) -> None:
    """Write the journal, make the changes, keep the journal for rollback. On failure, all changes are undone."""
    journal.stage(root, progress)
    try:
        with disk_errors(state_dir):
            state_dir.mkdir(exist_ok=True)
        write_atomic(state_dir / JOURNAL, journal.dump())
    except BaseException:
        journal.discard(root)
        _tidy(state_dir)
        raise
    try:
        journal.apply(root)
    except BaseException:
        journal.inverted().apply(root)
        journal.discard(root)
        (state_dir / JOURNAL).unlink()
        _tidy(state_dir)
        raise
    _keep_backup(state_dir)


def roll_back(root: Path, state_dir: Path, backup: Path, back: Journal, progress: Progress) -> None:
    """Apply ``back``, the inverted journal ``backup``.

    Raises ``BadInput``, before any change, if a file is not in the state that the installation left.
    """
    back.check_pending(root)
    back.stage(root, progress)
    os.rename(backup, state_dir / UNDO)
    fsync_dir(state_dir)
    back.apply(root)
    _finish_undo(state_dir)


def _keep_backup(state_dir: Path) -> None:
    backups = backups_in(state_dir)
    number = int(backups[-1].name.rpartition("-")[2]) + 1 if backups else 1
    os.rename(state_dir / JOURNAL, state_dir / BACKUP.format(number))
    fsync_dir(state_dir)


def _finish_undo(state_dir: Path) -> None:
    (state_dir / UNDO).unlink()
    fsync_dir(state_dir)
    _tidy(state_dir)


def _tidy(state_dir: Path) -> None:
    """Remove the folder if it is empty."""
    with contextlib.suppress(OSError):
        state_dir.rmdir()
        fsync_dir(state_dir.parent)


def backups_in(state_dir: Path) -> list[Path]:
    """Return the journals that can be rolled back, the latest last."""
    return sorted(state_dir.glob(BACKUP.replace("{:04d}", "[0-9]*")))


def read_allowed(journal_path: Path, path: Path) -> Journal:
    """Read a journal; a journal next to a GGUF may only change the files of that model."""
    journal = read_journal(journal_path)
    if not path.is_dir():
        allowed = {file.name for file in shard_paths(path)}
        if foreign := next((step.target for step in journal.steps if step.target not in allowed), None):
            raise BadInput(f"would change {foreign!r}, which is not a file of this model", where=journal_path)
    return journal
