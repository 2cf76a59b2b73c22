"""The files in ``deploy/``: each is started where the tools are at hand, else checked by its own linter."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest
import yaml

from strata_pack.cli.serve import app as serve_app
from tests.pack.tiny_pack import write_pack

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "Containerfile"
UNIT = DEPLOY / "strata-pack.service"
IMAGE = "localhost/strata-pack-test"
BASE = re.compile(r"^FROM (\S+)", re.MULTILINE)


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


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


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


class Docker:
    """Builds and runs the image with a Docker daemon."""

    def __init__(self) -> None:
        self.program = tool("docker")
        if subprocess.run([self.program, "info"], capture_output=True, timeout=120).returncode:
            pytest.skip("no docker daemon answers")

    def build(self) -> None:
        command = [self.program, "build", "-q", "--network", "host", "-t", IMAGE, "-f", str(FILE), str(ROOT)]
        subprocess.run(command, check=True, timeout=1500)

    def serving(self, mounts: dict[Path, str]) -> list[str]:
        """Return the command that runs the image's own entry point and arguments on the host's network."""
        volumes = [part for path, target in mounts.items() for part in ("-v", f"{path}:{target}:ro")]
        return [self.program, "run", "--rm", "--network", "host", *volumes, IMAGE]


class Buildah:
    """Builds and runs the image without a daemon, in a changed root; works where containers cannot be nested."""

    def __init__(self) -> None:
        self.program = tool("buildah")
        base = BASE.search(FILE.read_text(encoding="utf-8"))
        assert base is not None
        if subprocess.run([self.program, "pull", "--policy", "missing", base[1]], capture_output=True).returncode:
            pytest.skip(f"the base image {base[1]} cannot be had")

    def build(self) -> None:
        command = [self.program, "build", "--isolation", "chroot", "--network", "host", "-t", IMAGE]
        subprocess.run([*command, "-f", str(FILE), str(ROOT)], check=True, timeout=1500)

    def serving(self, mounts: dict[Path, str]) -> list[str]:
        """Return the command that runs the image's own entry point and arguments on the host's network."""
        made = subprocess.run([self.program, "from", IMAGE], check=True, capture_output=True, text=True)
        described = subprocess.run([self.program, "inspect", "--type", "image", IMAGE], check=True, capture_output=True)
        config = json.loads(described.stdout)["OCIv1"]["config"]
        volumes = [part for path, target in mounts.items() for part in ("-v", f"{path}:{target}:ro")]
        command = [
            self.program,
            "run",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--user",
            config["User"],
            *volumes,
        ]
        return [*command, made.stdout.strip(), "--", *config["Entrypoint"], *config["Cmd"]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", [Docker, Buildah])
def test_the_image_is_built_and_serves_a_pack(engine: type[Docker] | type[Buildah], tmp_path: Path) -> None:
    chosen = engine()
    chosen.build()
    write_pack(tmp_path / "packs/model")
    (tmp_path / "keys").write_text("a-key-of-the-test\n", encoding="ascii")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    url = "http://127.0.0.1:8080"
    with subprocess.Popen(
        chosen.serving({tmp_path / "packs": "/packs", tmp_path / "keys": "/run/secrets/keys"})
    ) as process:
        try:
            while not answers(url + "/health"):
                assert process.poll() is None, "the gateway ended"
                time.sleep(0.5)
            assert httpx.post(url + "/v1/chat/completions", json=body).status_code == 401
            reply = httpx.post(
                url + "/v1/chat/completions", json=body, headers={"x-api-key": "a-key-of-the-test"}, timeout=120
            )
        finally:
            process.terminate()
    assert reply.json()["choices"][0]["finish_reason"] == "length"
