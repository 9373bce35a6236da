"""The Chromium that is installed on this machine, headless. Nothing is downloaded for a test or a benchmark."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VARIABLE: Final = "CHROMIUM"
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


def executable(environ: Mapping[str, str]) -> str | None:
    """Return the path of the browser: the path in `CHROMIUM`, or else the system's browser. Return None if there is no
    browser."""
    names = (given,) if (given := environ.get(VARIABLE)) else _NAMES
    return next((found for name in names if (found := shutil.which(name, path=environ.get("PATH", "")))), None)


@contextmanager
def launched(path: str) -> Iterator[Browser]:
    """Provide a headless browser. An event loop runs in this thread until the browser is closed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def wait_for_texts(page: Page, texts: Iterable[str]) -> None:
    """Wait until the page shows all of these texts, because each part of a page loads separately."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

    wanted = list(texts)
    try:
        page.wait_for_function(
            "texts => texts.every(t => document.body.innerText.replace(/\\s+/g, ' ').includes(t))", arg=wanted
        )
    except PlaywrightTimeoutError:
        shown = re.sub(r"\s+", " ", page.inner_text("body"))
        raise AssertionError(f"the page lacks {[t for t in wanted if t not in shown]}; it shows: {shown}") from None
