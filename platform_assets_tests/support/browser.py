"""A browser for tests of Dagster's UI, the rules for machines without a browser, and screenshots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from testbed import browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

REQUIRED_VARIABLE: Final = "REQUIRE_BROWSER"
SCREENSHOTS_VARIABLE: Final = "PLATFORM_SCREENSHOTS"


def executable(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the browser. If there is no browser, skip the test, or fail the test if `REQUIRE_BROWSER` is
    set."""
    if (found := browser.executable(environ)) is not None:
        return found
    if given := environ.get(browser.VARIABLE):
        pytest.fail(f"{browser.VARIABLE}={given} is no executable: {browser.REMEDY}", pytrace=False)
    reason = f"no Chromium: {browser.REMEDY}"
    if environ.get(REQUIRED_VARIABLE):
        pytest.fail(f"{reason} ({REQUIRED_VARIABLE} is set, so this is no reason to skip)", pytrace=False)
    pytest.skip(reason)


def screenshot(page: Page, name: str) -> None:
    """Save a screenshot of the page if `PLATFORM_SCREENSHOTS` names a folder."""
    if folder := os.environ.get(SCREENSHOTS_VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")
