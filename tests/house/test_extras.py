"""A missing optional package is named with the command that brings it from where the tool was installed."""

from __future__ import annotations

import ast
import json
import tomllib
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any, get_args

import pytest

from strata_pack.errors import EnvironmentFailure
from strata_pack.extras import Extra, command_for, need
from tests.conftest import ROOT
from tests.house.imports import trees

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHON = Path("/env/bin/python")


def installed(folder: Path, origin: dict[str, Any] | None, by: str = "pip") -> PathDistribution:
    folder = folder / "strata_pack-1.dist-info"
    folder.mkdir()
    (folder / "INSTALLER").write_text(f"{by}\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    return PathDistribution(folder)


GIT = {"url": "https://host/x.git", "vcs_info": {"vcs": "git", "requested_revision": "v1", "commit_id": "f" * 40}}


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "'strata-pack[serve]'"),
        ({"url": "file:///src/my%20pack", "dir_info": {"editable": True}}, "--editable '/src/my pack[serve]'"),
        ({"url": "file:///src/pack", "dir_info": {}}, "'/src/pack[serve]'"),
        ({"url": "file:///w/strata_pack.whl", "archive_info": {}}, "'strata-pack[serve] @ file:///w/strata_pack.whl'"),
        (GIT, "'strata-pack[serve] @ git+https://host/x.git@v1'"),
    ],
    ids=["index", "editable", "folder", "wheel", "git"],
)
def test_the_command_installs_from_the_same_place(tmp_path: Path, origin: dict[str, Any] | None, wanted: str) -> None:
    command = command_for(installed(tmp_path, origin), "serve", tmp_path, PYTHON)
    assert command == f"/env/bin/python -m pip install {wanted}"


@pytest.mark.parametrize(
    ("by", "mark", "start"),
    [
        ("uv", None, "uv pip install --python /env/bin/python "),
        ("uv", "uv-receipt.toml", "uv tool install --force "),
        ("pip", "pipx_metadata.json", "pipx install --force "),
    ],
)
def test_the_command_is_of_the_program_that_installed(tmp_path: Path, by: str, mark: str | None, start: str) -> None:
    if mark:
        (tmp_path / mark).touch()
    command = command_for(installed(tmp_path, None, by), "engines", tmp_path, PYTHON)
    assert command == f"{start}'strata-pack[engines]'"


def test_a_checkout_that_is_not_installed_is_installed_from_its_folder(tmp_path: Path) -> None:
    command = command_for(None, "sign", tmp_path, PYTHON)
    assert command == f"/env/bin/python -m pip install --editable '{ROOT}[sign]'"


def test_what_is_missing_and_what_needs_it_are_named() -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"^the engine x needs the package no_such_package; run: .*\[engines\]"
    ):
        need("no_such_package", "engines", "the engine x")


def test_every_extra_that_a_message_names_exists() -> None:
    assert set(get_args(Extra)) <= set(PROJECT["optional-dependencies"])


def test_the_extra_all_holds_every_extra_that_a_command_can_need() -> None:
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"strata-pack[{','.join(get_args(Extra))}]"


def test_no_message_spells_an_installation_by_hand() -> None:
    spelled = [
        f"{name}:{node.lineno}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "strata-pack[" in node.value
    ]
    assert spelled == []
