"""Runs an installation again and again and kills it with SIGKILL at its 1st, 2nd, 3rd ... step, until one gets through.

``python -m tests.pack.faults ACTION PRISTINE WORK NAME TEMPLATE``: copies the folder PRISTINE to WORK/<n>, forks, and
in the child carries out ACTION (install, rollback, recover) on WORK/<n>/NAME with every call that changes the disk
counted. The child dies before its n-th call; a write dies once more when half of it is on the disk. Prints how many
died.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strata_pack.chat.engines.engines import Jinja2Engine
from strata_pack.pack.recovery import recover
from strata_pack.pack.template.install import install_template, rollback_template

COUNTED = ("fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate", "chmod")
TORN = ("pwrite", "copy_file_range")
LIMIT = 200


def forked(work: Callable[[], object]) -> int:
    """Run ``work`` in a child and return its wait status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def arm(deadly: int) -> None:
    """Make the ``deadly``-th counted call of this process its last."""
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return steps == deadly

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if step():
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapper

    def torn_pwrite(fd: int, data: bytes, offset: int) -> int:
        if step():
            os.kill(os.getpid(), signal.SIGKILL)
        if step():
            pwrite(fd, data[: len(data) // 2], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        return pwrite(fd, data, offset)

    def torn_copy(source: int, target: int, count: int, start: int, to: int) -> int:
        if step():
            copy(source, target, count // 2, start, to)
            os.kill(os.getpid(), signal.SIGKILL)
        return copy(source, target, count, start, to)

    pwrite, copy = os.pwrite, os.copy_file_range
    os.pwrite, os.copy_file_range = torn_pwrite, torn_copy  # type: ignore[assignment]
    for name in COUNTED:
        setattr(os, name, counted(getattr(os, name)))


def act(action: str, target: Path, template: str) -> None:
    if action == "install":
        install_template(target, template, force=True, engines=[Jinja2Engine()])
    elif action == "rollback":
        rollback_template(target)
    else:
        recover(target)


def main() -> None:
    action, pristine, work, name, template = sys.argv[1:]
    # Once here, so that what is imported at need is there for all children.
    shutil.copytree(pristine, Path(work) / "whole")
    act(action, Path(work) / "whole" / name, template)
    for deadly in range(1, LIMIT):
        folder = Path(work) / str(deadly)
        shutil.copytree(pristine, folder)
        child = os.fork()
        if child == 0:
            arm(deadly)
            act(action, folder / name, template)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(deadly - 1)
            return
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise SystemExit(f"step {deadly}: the child ended with status {status}")
    raise SystemExit(f"not done after {LIMIT} steps")


if __name__ == "__main__":
    main()
