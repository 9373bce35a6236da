"""The browser of the tests that drive Dagster's UI: the machine's own Chromium, since nothing is downloaded for a test."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VARIABLE: Final = "CHROMIUM"
REQUIRED_VARIABLE: Final = "REQUIRE_BROWSER"
SCREENSHOTS_VARIABLE: Final = "PLATFORM_SCREENSHOTS"
REMEDY: Final = f"install the system's package `chromium`, or name an executable in {VARIABLE}"

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable(environ: Mapping[str, str] = os.environ) -> str:
    """The path of the browser. Where there is none, the test is skipped, or fails if `REQUIRE_BROWSER` is set."""
    path = environ.get("PATH", "")
    given = environ.get(VARIABLE)
    if given:
        found = shutil.which(given, path=path)
        if found is None:
            pytest.fail(f"{VARIABLE}={given} is no executable: {REMEDY}", pytrace=False)
        return found
    for name in _NAMES:
        if (found := shutil.which(name, path=path)) is not None:
            return found
    reason = f"no Chromium: {REMEDY}"
    if environ.get(REQUIRED_VARIABLE):
        pytest.fail(f"{reason} ({REQUIRED_VARIABLE} is set, so this is no reason to skip)", pytrace=False)
    pytest.skip(reason)


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """A headless browser. Until it is closed, an event loop runs in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def screenshot(page: Page, name: str) -> None:
    """Keep a picture of the page as it is, where `PLATFORM_SCREENSHOTS` names a folder."""
    if folder := os.environ.get(SCREENSHOTS_VARIABLE):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")


def wait_for_texts(page: Page, texts: Iterable[str]) -> None:
    """Return once the page shows them all: each part of a page comes with an answer of its own."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

    wanted = list(texts)
    try:
        page.wait_for_function(
            "texts => texts.every(t => document.body.innerText.replace(/\\s+/g, ' ').includes(t))", arg=wanted
        )
    except PlaywrightTimeoutError:
        shown = re.sub(r"\s+", " ", page.inner_text("body"))
        raise AssertionError(f"the page lacks {[t for t in wanted if t not in shown]}; it shows: {shown}") from None
