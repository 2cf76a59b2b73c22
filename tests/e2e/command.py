"""Runs the command line as a user would: in this process, which has its imports already, or as installed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from strata_pack.cli.app import app

COMMAND = Path(sys.executable).with_name("strata-pack")


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*arguments: str | Path, stdin: str | None = None, cwd: Path | None = None, **environment: str) -> Done:
    """Run the command with ``arguments`` in this process; an exception that no command may raise is raised here."""
    with contextlib.chdir(cwd or Path.cwd()):
        result = CliRunner().invoke(app, list(map(str, arguments)), input=stdin, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def run_installed(*arguments: str | Path, **environment: str) -> Done:
    """Run the installed ``strata-pack`` with ``arguments`` to its end."""
    done = subprocess.run(
        [str(COMMAND), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=170,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
