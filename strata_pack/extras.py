"""Builds the exact command that installs a missing optional package into the environment of this tool.

pip, uv and pipx record the origin of a distribution (``direct_url.json``, PEP 610) and the installer's name.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from strata_pack.errors import EnvironmentFailure

NAME = "strata-pack"

Extra = Literal["serve", "engines", "zstd", "sign", "dask", "otel"]


def need(package: str, extra: Extra, what: str) -> None:
    """Raise ``EnvironmentFailure`` if ``package`` is not installed.

    ``what`` names the feature that needs it, ``extra`` the extra that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise missing(package, extra, what)


def missing(package: str, extra: Extra, what: str) -> EnvironmentFailure:
    """Return the failure whose message says what needs ``package`` and how to install it."""
    return EnvironmentFailure(f"{what} needs the package {package}", remedy=f"run: {install_command(extra)}")


def install_command(extra: Extra) -> str:
    """Return the shell command that adds ``extra`` to the running installation."""
    try:
        installed: Distribution | None = distribution(NAME)
    except PackageNotFoundError:
        installed = None
    return command_for(installed, extra, Path(sys.prefix), Path(sys.executable))


def command_for(installed: Distribution | None, extra: Extra, prefix: Path, python: Path) -> str:
    """Return the command for the distribution ``installed`` (None: not installed) in the environment ``prefix``."""
    requirement = _requirement(installed, extra)
    if (prefix / "uv-receipt.toml").exists():
        return shlex.join(["uv", "tool", "install", "--force", *requirement])
    if (prefix / "pipx_metadata.json").exists():
        return shlex.join(["pipx", "install", "--force", *requirement])
    by = (installed.read_text("INSTALLER") or "").strip() if installed else ""
    if by == "uv":
        return shlex.join(["uv", "pip", "install", "--python", str(python), *requirement])
    return shlex.join([str(python), "-m", "pip", "install", *requirement])


def _requirement(installed: Distribution | None, extra: Extra) -> list[str]:
    """Return an installer's arguments: a requirement from the index, a folder (editable or not), an archive or a
    repository."""
    if installed is None:
        return ["--editable", f"{Path(__file__).resolve().parents[1]}[{extra}]"]
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        origin = {}
    url = origin.get("url", "")
    if "dir_info" in origin and url.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        folder = f"{unquote(urlsplit(url).path)}[{extra}]"
        return ["--editable", folder] if origin["dir_info"].get("editable") else [folder]
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        revision = vcs.get("requested_revision") or vcs.get("commit_id")
        return [f"{NAME}[{extra}] @ {vcs.get('vcs', 'git')}+{url}" + (f"@{revision}" if revision else "")]
    return [f"{NAME}[{extra}] @ {url}" if url else f"{NAME}[{extra}]"]
