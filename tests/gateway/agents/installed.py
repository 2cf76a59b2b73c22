"""Agents from the registry of npm, each in a folder of its own that is kept between runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from strata_pack.resources import cache_dir
from tests.gateway.agents.table import PLATFORM, Agent

NODE = "22.23.3"
INSTALL_SECONDS = 900


def command_of(agent: Agent) -> list[str]:
    """Return the command that runs ``agent``, installed first if need be; skips the test where that cannot be."""
    program = str(modules_of(agent.package, agent.version, agent.name) / agent.program)
    return [node(), program] if agent.is_script else [program]


def node() -> str:
    """Return the Node that runs the agents that are scripts."""
    package = f"node-{PLATFORM}"
    return str(modules_of(package, NODE, "Node") / package / "bin/node")


def modules_of(package: str, version: str, name: str, **more: str) -> Path:
    """Return the node_modules with a package, and ``more`` of it, installed; skips the test where that cannot be."""
    root = Path(os.environ.get("STRATA_TEST_AGENTS") or cache_dir() / "test-agents")
    folder = root / f"{package.replace('/', '+')}-{version}"
    if (folder / "node_modules" / package).is_dir():
        return folder / "node_modules"
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"{name}: npm is missing")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": {package: version, **more}}))
    done = subprocess.run(
        [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if done.returncode or not (folder / "node_modules" / package).is_dir():
        shutil.rmtree(folder)
        pytest.skip(f"{name}: {package} {version} cannot be installed ({done.stderr.strip()[-200:]})")
    return folder / "node_modules"
