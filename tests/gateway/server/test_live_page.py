"""The live page in a real headless Chromium."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest

from tests.conftest import asked_urls
from tests.gateway.conftest import IMPLICIT, LIST_JOBS, SETTINGS, House

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

WAIT = 20.0


@pytest.fixture(scope="module")
def open_house() -> Iterator[House]:
    with House() as house:
        house.chat(IMPLICIT.replace("Go.", "<b>Go</b> & see."), tools=[LIST_JOBS])
        house.chat("Hm.\n</think>\n\nHello")
        yield house


@pytest.fixture(scope="module")
def locked_house() -> Iterator[House]:
    with House(replace(SETTINGS, api_keys=("right",))) as house:
        yield house


def text_of(browser: Any, selector: str) -> str:
    return str(browser.find_element("css selector", selector).text)


def wait_for(browser: Any, script: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, WAIT, 0.05).until(lambda driver: driver.execute_script(f"return {script}"))


@pytest.fixture
def page(browser: Any, open_house: House) -> Any:
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(open_house.url)
    wait_for(browser, "!document.getElementById('main').hidden")
    return browser


def test_it_shows_model_template_counters_and_requests(page: Any) -> None:
    assert text_of(page, "#model") == "test-model"
    assert text_of(page, "#state") == "ready"
    assert not page.find_element("id", "login").is_displayed()
    assert "qwen3.8-flash-next" in text_of(page, "#facts")
    cards = text_of(page, "#totals")
    assert "implicit ends\n1" in cards
    assert "requests\n2" in cards
    rows = page.find_elements("css selector", "#requests tr")
    assert len(rows) == 2
    assert "ok" in rows[0].text


def test_the_text_before_an_implicit_end_is_shown_as_text(page: Any) -> None:
    page.find_element("css selector", "#ends summary").click()
    assert text_of(page, "#ends pre") == "<b>Go</b> & see."


def test_the_console_is_silent_and_nothing_is_asked_elsewhere(page: Any, open_house: House) -> None:
    assert page.get_log("browser") == []
    assert asked_urls(page) == {f"{open_house.url}/", f"{open_house.url}/v1/live"}


def test_a_running_request_appears_by_itself(page: Any, open_house: House) -> None:
    open_house.says(["word "] * 400, delay=0.02)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with httpx.stream("POST", open_house.url + "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        wait_for(page, "document.getElementById('requests').textContent.includes('running')")


def test_an_upstream_that_dies_is_seen(browser: Any) -> None:
    with House() as house:
        browser.get(house.url)
        wait_for(browser, "document.getElementById('state').textContent === 'ready'")
        house.call(house.replay.stop())
        wait_for(browser, "document.getElementById('state').textContent === 'llama.cpp is away'")
    wait_for(browser, "document.getElementById('state').textContent === 'gateway is away'")


def test_with_keys_nothing_is_shown_before_the_right_one(browser: Any, locked_house: House) -> None:
    browser.get(locked_house.url)
    wait_for(browser, "!document.getElementById('login').hidden")
    assert browser.find_element("id", "main").is_displayed() is False
    assert "test-model" not in browser.page_source
    field = browser.find_element("id", "key")
    field.send_keys("wrong")
    field.submit()
    wait_for(browser, "document.getElementById('state').textContent === 'key needed'")
    field.clear()
    field.send_keys("right")
    field.submit()
    wait_for(browser, "!document.getElementById('main').hidden")
    assert text_of(browser, "#model") == "test-model"


def test_its_policy_runs_no_other_script(page: Any) -> None:
    page.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.injected = 1'; document.body.append(s)"
    )
    assert page.execute_script("return window.injected") is None


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script axe-core, which knows the rules of accessibility, from the package index of npm."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: it fetches axe-core")
    done = subprocess.run([npm, "pack", "--silent", "axe-core@4"], cwd=folder, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("axe-core cannot be fetched")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode("utf-8")


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Any, axe: str, scheme: str) -> None:
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    page.find_element("css selector", "#ends summary").click()
    page.execute_script(axe)
    found = page.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    wrong = [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found["violations"]]
    assert (wrong, len(found["passes"]) > 10) == ([], True)
