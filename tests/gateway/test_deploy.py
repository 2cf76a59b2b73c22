"""The files in ``deploy/``: each is started where the tools are at hand, else checked by its own linter."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from strata_pack.cli.serve import app as serve_app

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "strata-pack.service"


def tool(name: str) -> str:
    """Return the path of a program; the test is skipped by its name where it is missing."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}")
    return found


def checked(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def known_options() -> set[str]:
    from typer.main import get_command

    return {
        name for parameter in get_command(serve_app).params for name in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize("file", ["Containerfile", "compose.yaml", "strata-pack.service"])
def test_every_option_in_a_file_is_one_of_serve(file: str) -> None:
    lines = (DEPLOY / file).read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if line.startswith(("ENTRYPOINT", "CMD", "ExecStart", "    command")))
    assert set(re.findall(r"--[a-z-]+", text)) <= known_options()


def test_the_services_share_the_port_of_the_image() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    (port,) = compose["services"]["gateway"]["ports"]
    assert port == "127.0.0.1:8080:8080"
    assert "EXPOSE 8080" in (DEPLOY / "Containerfile").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_unit_is_one_that_systemd_takes() -> None:
    checked(tool("systemd-analyze"), "verify", "--man=no", str(UNIT))


@pytest.mark.slow
def test_the_container_file_passes_its_linter() -> None:
    checked(tool("hadolint"), str(DEPLOY / "Containerfile"))


@pytest.mark.slow
def test_the_compose_file_is_one_of_the_specification() -> None:
    checked(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_image_is_built_and_says_its_version() -> None:
    docker = tool("docker")
    if subprocess.run([docker, "info"], capture_output=True, timeout=120).returncode:
        pytest.skip("no docker daemon answers")
    image = "strata-pack-test"
    subprocess.run(
        [docker, "build", "-q", "-t", image, "-f", str(DEPLOY / "Containerfile"), str(ROOT)], check=True, timeout=1500
    )
    checked(docker, "run", "--rm", "--entrypoint", "strata-pack", image, "--version")
