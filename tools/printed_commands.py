"""Runs the commands that a page prints and puts what they print under them.

``python tools/printed_commands.py docs/commands.md`` rewrites the page's ``console`` blocks, in an empty folder that
has the checkout's ``.cache`` (weights of the tests) and in which ``strata-pack`` is its own. Output that ends in
``...`` keeps its length. A command that serves runs on until the page ends; the address that it prints stands for the
one on the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
URL = re.compile(r"http://127\.0\.0\.1:\d+")
SECONDS = 900
READERS_OWN = ("strata-pack release run",)
"""Beginnings of commands on files that the page does not make; they stay as they are."""


@dataclass(frozen=True)
class Printed:
    """One command of a page, with the lines that the page shows under it."""

    command: str
    lines: tuple[str, ...]


def printed(block: str) -> Iterator[Printed]:
    """Yield the commands of a block (its text between the fences)."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield Printed(command, tuple(lines))


@dataclass
class Session:
    """A folder and an environment in which commands run one after the other. Use as a context manager."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    served: list[subprocess.Popen[str]] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "packs").mkdir(parents=True, exist_ok=True)
        (self.folder / ".cache").symlink_to(ROOT / ".cache")
        bin_folder = Path(sys.executable).parent
        self.environment |= {
            **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")},
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "STRATA_CACHE": str(self.folder / "cache"),
            "HF_HUB_CACHE": str(self.folder / "hub"),
        }

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.served:
            process.terminate()
        for process in self.served:
            process.communicate(timeout=60)

    def run(self, shown: Printed) -> list[str]:
        """Run a command and return what it prints on stdout, with the page's addresses; raise if it fails."""
        command = shown.command
        for on_page, real in self.addresses.items():
            command = command.replace(on_page, real)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environment[name] = value
            return []
        if command.endswith("&") or command.startswith("strata-pack serve "):
            return [self._serve(re.sub(r"--port \d+", "--port 0", command.rstrip("& ")), shown)]
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"$ {command}\nexit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return [self._as_on_page(line.rstrip()) for line in done.stdout.splitlines()]

    def _serve(self, command: str, shown: Printed) -> str:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.served.append(process)
        assert process.stdout is not None
        line = process.stdout.readline().rstrip()
        on_page, real = URL.search(" ".join(shown.lines)), URL.search(line)
        if on_page is None or real is None:
            raise SystemExit(f"$ {command}\nprints no address: {line!r}")
        self.addresses[on_page[0]] = real[0]
        return self._as_on_page(line)

    def _as_on_page(self, line: str) -> str:
        for on_page, real in self.addresses.items():
            line = line.replace(real, on_page)
        return line


def shortened(lines: list[str], shown: tuple[str, ...]) -> list[str]:
    """Return ``lines`` cut where the page cuts: before its last line ``...``."""
    if shown and shown[-1] == "...":
        return [*lines[: len(shown) - 1], "..."]
    return lines


def rewritten(text: str, session: Session) -> str:
    """Return the page with what its commands print now."""

    def again(block: re.Match[str]) -> str:
        if next(printed(block[1])).command.startswith(READERS_OWN):
            return block[0]
        parts = []
        for shown in printed(block[1]):
            lines = shortened(session.run(shown), shown.lines)
            parts += [f"$ {shown.command}", *lines]
        return "```console\n" + "\n".join(parts) + "\n```"

    return BLOCK.sub(again, text)


def main() -> None:
    """Rewrite the pages that are named."""
    for name in sys.argv[1:]:
        page = Path(name)
        with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
            page.write_text(rewritten(page.read_text(encoding="utf-8"), session), encoding="utf-8")


if __name__ == "__main__":
    main()
