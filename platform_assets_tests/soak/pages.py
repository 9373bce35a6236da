"""Every page of Dagster's UI that links lead to, in Chromium: nothing of a stranger's is live there, and nothing else is asked."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from platform_assets_tests.soak.hostile import MARK
from testbed.browser import launched

if TYPE_CHECKING:
    from playwright.sync_api import Page

_LIVE: Final = """() => [...document.querySelectorAll(
        'img, a, iframe, video, audio, object, embed, script, form, base, link, area, source')]
    .map(e => [e.localName, e.src || e.href?.baseVal || e.href || e.data || e.action || '', e.getAttribute('href') || ''])
    .filter(each => each.slice(1).every(x => typeof x === 'string'))"""
_HANDLERS: Final = """() => [...document.querySelectorAll('*')].flatMap(e => [...e.attributes]
    .filter(a => a.name.startsWith('on')).map(a => [e.localName, a.name + '=' + a.value]))"""
_DAGSTERS: Final = re.compile(r"(?:.+\.)?(?:dagster\.(?:io|cloud)|github\.com|youtube\.com|slack\.com)")
_QUIET_MS: Final = 700
_LOGS: Final = re.compile(r"/runs/[0-9a-f-]{36}")
"""Where Dagster itself makes links of addresses in text, which lead where they say and are asked for by a click alone."""


@dataclass
class Crawled:
    """The pages that were seen, the requests that they made, and what was found."""

    pages: int = 0
    requests: int = 0
    links: int = 0
    hostile: int = 0
    """Pages whose text has a hostile string."""
    found: list[str] = field(default_factory=list)


def crawl(chromium: str, address: str, first: Sequence[str], most: int) -> Crawled:
    """Look at the pages `first` below `address`, open what is folded there, and follow links until `most` pages were seen."""
    crawled = Crawled()
    host = urlsplit(address).netloc
    waiting, seen = deque(first), set(first)
    with launched(chromium) as browser:
        page = browser.new_page(viewport={"width": 1600, "height": 1400})
        page.set_default_timeout(20_000)
        current = ""

        def asked(request: Any) -> None:
            crawled.requests += 1
            url = request.url
            if url.startswith(("http", "ws")) and (urlsplit(url).netloc != host or MARK in unquote(url)):
                crawled.found.append(f"{current} asked for {url[:200]}")

        def dialog(shown: Any) -> None:
            crawled.found.append(f"{current} opened a dialog: {shown.message[:200]}")
            shown.dismiss()

        page.on("request", asked)
        page.on("dialog", dialog)
        while waiting and crawled.pages < most:
            current = waiting.popleft()
            links = _look(page, address, current, crawled)
            for link in links:
                path = urldefrag(urljoin(address + current, link))[0]
                if path.startswith(address) and (below := path.removeprefix(address)) not in seen and _is_page(below):
                    seen.add(below)
                    waiting.append(below)
    return crawled


def _look(page: Page, address: str, path: str, crawled: Crawled) -> list[str]:
    page.goto(address + path, wait_until="load")
    _wait_until_idle(page)
    for name in ("[Show Markdown]", "View full message", "Show more"):
        for each in page.get_by_text(name, exact=False).all()[:5]:
            if each.is_visible():
                each.click(timeout=2_000)
                _wait_until_idle(page)
                _judge(page, address, path, crawled)
                page.keyboard.press("Escape")
    crawled.pages += 1
    return _judge(page, address, path, crawled)


def _wait_until_idle(page: Page) -> None:
    """Until the page has drawn something and its text does not grow any more."""
    before = -1
    for _ in range(20):
        page.wait_for_timeout(_QUIET_MS)
        size = len(page.inner_text("body"))
        if size == before and size > 0:
            return
        before = size


def _judge(page: Page, address: str, path: str, crawled: Crawled) -> list[str]:
    host = urlsplit(address).netloc
    crawled.hostile += MARK in page.inner_text("body")
    links = []
    for tag, url, written in page.evaluate(_LIVE):
        crawled.links += 1
        if tag == "a" and urlsplit(url).netloc == host:
            links.append(url)
        if _is_live(url, host) and not (tag == "a" and _LOGS.match(path) and url.startswith("http")):
            crawled.found.append(f"{path} has a live {tag}: {(url or written)[:200]}")
    for tag, handler in page.evaluate(_HANDLERS):
        if MARK in handler:
            crawled.found.append(f"{path} has a live {tag} with {handler[:200]}")
    return links


def _is_live(url: str, host: str) -> bool:
    """Whether an address is of a stranger's: with the mark in it, a script, or of another host than ours and Dagster's."""
    parts = urlsplit(url)
    if parts.scheme in ("", "data", "blob", "about") and MARK not in unquote(url):
        return False
    foreign = parts.netloc != host and not _DAGSTERS.fullmatch(parts.hostname or "")
    return foreign or MARK in unquote(url) or parts.scheme == "javascript"


def _is_page(path: str) -> bool:
    """Whether a path is one of the UI's pages, which are many: of runs' logs and partitions some are enough."""
    return not re.search(r"^/(graphql|logs|download|debug|static|dagit)|[?&](cursor|logFileKey)=", path)
