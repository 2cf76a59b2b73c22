"""Other builds of llama-server: a good model passes, and what a build does differently is named with its number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strata_pack.chat.library import load_shipped
from strata_pack.errors import EnvironmentFailure
from strata_pack.llama.answers import Completion, Props
from strata_pack.llama.install import install_vulkan
from strata_pack.llama.runtimes import Runtime, find_binary
from strata_pack.report import Report
from strata_pack.smoke.builds import build_name
from strata_pack.smoke.run import SmokeOptions, run_smoke
from tests.smoke.conftest import TEMPLATE
from tests.smoke.other_build import write_server
from tests.smoke.tiny import write_tiny_model

pytestmark = pytest.mark.xdist_group("tiny-smoke")


def _play(runtime: Runtime | None, tmp_path: Path) -> Report:
    model = write_tiny_model(tmp_path / "m.gguf", chat_template=load_shipped(TEMPLATE).source)
    return run_smoke(model, options=SmokeOptions(runtime=runtime, threads=1, log_dir=tmp_path))


def _wrong(report: Report) -> list[tuple[str, str]]:
    return [(check.id, check.detail) for check in report.checks if check.status in ("failed", "error")]


def test_the_embedded_build_is_named_with_its_number(whole):
    number = whole.facts["llama.cpp"].split()[0]
    assert number.startswith("b")
    assert int(number[1:]) > 11_000


@pytest.mark.parametrize(
    ("build", "name"),
    [
        ("b11434-7e4c0a9", "b11434-7e4c0a9"),
        ("b0-unknown", "a build without a known number"),
        ("b1-571d0d5", "a build without a known number"),
    ],
)
def test_a_binary_is_named_as_it_calls_itself(build, name):
    runtime = Runtime("llama-server", "binary", path=Path("llama-server"))
    assert build_name(runtime, Props.from_dict({"build_info": build})) == name


def test_an_installed_binary_has_the_number_of_its_release():
    details = {"llama_cpp": "b10068"}
    runtime = Runtime("vulkan-b10068", "binary", "vulkan", Path("llama-server"), "the Python package x 1", details)
    assert build_name(runtime, Props.from_dict({"build_info": "b1-571d0d5"})) == "b10068 (the Python package x 1)"


def test_a_build_that_counts_no_cached_tokens_is_read_all_the_same():
    raw = {"content": "", "stop": True, "tokens_evaluated": 90, "timings": {"prompt_n": 20}}
    assert Completion.from_dict(raw).timings.cache_n == 70


def test_a_binary_in_the_current_folder_is_found_by_its_bare_name(tmp_path, monkeypatch):
    write_server(tmp_path / "llama-server", tmp_path)
    monkeypatch.chdir(tmp_path)
    found = find_binary(Path("./llama-server"))
    assert found is not None
    assert found.path == tmp_path / "llama-server"


def test_a_binary_for_another_processor_is_reported(tmp_path, tiny):
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nkill -ILL $$\n")
    binary.chmod(0o755)
    runtime = Runtime("llama-server", "binary", path=binary)
    report = run_smoke(tiny, options=SmokeOptions(runtime=runtime, only=("canary",), log_dir=tmp_path))
    assert report.exit_code == 3
    assert "built for a processor with instructions that this one lacks" in report.checks[0].detail


@pytest.mark.slow
@pytest.mark.registry
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["2026.9.11063", "2026.7.9873", "2026.4.8929"])
def test_a_good_model_passes_on_an_older_build(version, tmp_path):
    packages = tmp_path / "packages"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
    done = subprocess.run([*command, f"xllamacpp=={version}"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"xllamacpp {version} cannot be fetched from the package index")
    report = _play(find_binary(write_server(tmp_path / "llama-server", packages)), tmp_path)
    assert _wrong(report) == []


@pytest.mark.slow
@pytest.mark.registry
@pytest.mark.timeout(1200)
def test_a_good_model_passes_on_the_prebuilt_vulkan_server(tmp_path, monkeypatch):
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path / "cache"))
    try:
        runtime = install_vulkan()
    except EnvironmentFailure as error:
        pytest.skip(f"no prebuilt Vulkan server can be had here ({error})")
    report = _play(runtime, tmp_path)
    assert _wrong(report) == []
    number = runtime.details["llama_cpp"]
    assert report.facts["llama.cpp"].startswith(number)
    (known,) = [check.detail for check in report.checks if check.id == "template-loaded/capabilities"]
    assert known.startswith(f"a known difference of {number}")
