"""What the gateway uses of uvicorn's insides is there in the uvicorn that is installed."""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from uvicorn.protocols.http import httptools_impl

from strata_pack.gateway.server import protocol

ROOT = Path(__file__).resolve().parents[3]
CYCLE = re.compile(r"cycle\.([a-z_]+)")


@pytest.mark.parametrize("name", protocol.USED)
def test_uvicorn_has_what_is_used_of_it(name: str) -> None:
    assert re.search(rf"self\.(?:flow\.)?{name}\b|def {name}\b", inspect.getsource(httptools_impl))


def test_what_is_used_of_a_cycle_is_in_the_list() -> None:
    assert set(CYCLE.findall(inspect.getsource(protocol))) <= set(protocol.USED)


def test_the_bound_of_uvicorn_ends_with_the_version_that_was_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (bound,) = [SpecifierSet(one.removeprefix("uvicorn")) for one in extras["serve"] if one.startswith("uvicorn")]
    installed = version("uvicorn")
    major, minor, *_ = installed.split(".")
    assert installed in bound
    assert f"{major}.{int(minor) + 1}.0" not in bound
