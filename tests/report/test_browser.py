"""The page in a real headless Chromium: it opens without an error, asks nobody for anything, and its filter works."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_pack.report import html
from tests.conftest import asked_urls

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


@pytest.fixture
def page(browser, full_report, tmp_path) -> Path:
    path = tmp_path / "report.html"
    path.write_bytes(html(full_report))
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())
    return path


def _shown(browser) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('.check')].filter(e => e.offsetParent !== null).map(e => e.id)"
    )


def _press(browser, status: str) -> None:
    browser.find_element("css selector", f".filter[data-status='{status}']").click()


@pytest.mark.usefixtures("page")
def test_the_page_opens_with_no_console_message(browser):
    assert browser.get_log("browser") == []


def test_the_page_requests_itself_and_nothing_else(browser, page):
    assert asked_urls(browser) == {page.as_uri()}


@pytest.mark.usefixtures("page")
def test_hostile_text_ran_no_script(browser):
    assert browser.title.startswith("smoke <of> a model")


@pytest.mark.usefixtures("page")
def test_a_status_button_shows_only_its_checks_and_again_shows_all(browser, full_report):
    _press(browser, "failed")
    assert _shown(browser) == ["repair-reasoning"]
    _press(browser, "failed")
    assert sorted(_shown(browser)) == sorted(check.id for check in full_report.checks)


@pytest.mark.usefixtures("page")
def test_the_search_field_narrows_the_list(browser):
    browser.find_element("id", "find").send_keys("eigh", "t")
    assert _shown(browser) == []
    browser.find_element("id", "find").clear()
    browser.find_element("id", "find").send_keys("server died")
    assert _shown(browser) == ["parallel"]
    assert browser.find_element("id", "shown").text == "1 of 5 shown"


@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(("scheme", "darker"), [("light", False), ("dark", True)])
def test_the_page_follows_the_reader_s_colour_scheme(browser, scheme, darker):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red = int(colour[4:].split(",")[0])
    assert (red < 128) is darker


@pytest.mark.usefixtures("page")
def test_the_page_fits_a_narrow_screen(browser):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    )
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 360


@pytest.mark.usefixtures("page")
def test_a_screenshot_has_content(browser, tmp_path):
    path = tmp_path / "report.png"
    assert browser.save_screenshot(str(path))
    assert path.stat().st_size > 20_000
