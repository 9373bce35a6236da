"""Crawls every page of Dagster's UI in Chromium. No untrusted content may be active on these pages, and they may not
request any other address."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from platform_assets.model.untrusted import line
from platform_assets_tests.soak.hostile import CONTROLS, MARK, MARKUP
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
_CONTROLS: Final = frozenset(c for text in CONTROLS for c in text if not c.isprintable() and not c.isspace())
_QUIET_MS: Final = 500
_MOST_WAITS: Final = 40
_FOLDED: Final = ("[Show Markdown]", "[Show JSON]", "View full message", "Show more")
"""Labels of the controls that expand folded parts of a page."""
_LOGS: Final = re.compile(r"/runs/[0-9a-f-]{36}")
"""Pages on which Dagster itself turns addresses in text into links. Such links show their target and need a click."""


@dataclass
class Crawled:
    """Pages that were visited, requests that these pages made, and findings."""

    pages: int = 0
    requests: int = 0
    links: int = 0
    hostile: Counter[str] = field(default_factory=Counter)
    """Number of pages whose text contains a hostile string, by kind of page."""
    shown: set[str] = field(default_factory=set)
    """Hostile strings that a page has shown as text, literally or escaped."""
    found: list[str] = field(default_factory=list)


def crawl(chromium: str, address: str, first: Sequence[str], most: int) -> Crawled:
    """Visit the pages `first` below `address`, expand folded parts, and follow links until `most` pages have been
    visited."""
    crawled = Crawled()
    host = urlsplit(address).netloc
    waiting, seen = deque(first), set(first)
    with launched(chromium) as browser:
        page = browser.new_page(viewport={"width": 1600, "height": 1400})
        page.set_default_timeout(60_000)
        current = ""

        def asked(request: Any) -> None:
            crawled.requests += 1
            url = request.url
            if url.startswith(("http", "ws")) and (urlsplit(url).netloc != host or MARK in unquote(url)):
                crawled.found.append(f"{current} requested {url[:200]}")

        def dialog(shown: Any) -> None:
            crawled.found.append(f"{current} opened a dialog: {shown.message[:200]}")
            shown.dismiss()

        pending: set[Any] = set()
        page.on("request", asked)
        page.on("request", lambda request: pending.add(request))
        page.on("requestfinished", lambda request: pending.discard(request))
        page.on("requestfailed", lambda request: pending.discard(request))
        page.on("dialog", dialog)
        while waiting and crawled.pages < most:
            current = waiting.popleft()
            pending.clear()
            links = _look(page, address, current, crawled, pending)
            for link in links:
                path = urldefrag(urljoin(address + current, link))[0]
                if path.startswith(address) and (below := path.removeprefix(address)) not in seen and _is_page(below):
                    seen.add(below)
                    waiting.append(below)
    return crawled


def _look(page: Page, address: str, path: str, crawled: Crawled, pending: Collection[Any]) -> list[str]:
    page.goto(address + path, wait_until="load")
    _wait_until_idle(page, pending)
    for name in _FOLDED:
        for each in page.get_by_text(name, exact=False).all()[:3]:
            # A dialog that is still open would receive the mouse click.
            if each.count() and each.is_visible():
                each.dispatch_event("click")
                _wait_until_idle(page, pending)
                _judge(page, address, path, crawled)
                page.keyboard.press("Escape")
                page.wait_for_timeout(_QUIET_MS)
    crawled.pages += 1
    links = _judge(page, address, path, crawled)
    crawled.hostile[_kind(path)] += MARK in page.inner_text("body")
    return links


def _text(page: Page, path: str, crawled: Crawled) -> None:
    """Record the hostile strings in the text that the page shows."""
    text = "".join(page.inner_text("body").split())
    raw = {each for each in _CONTROLS if each in text}
    crawled.found += [f"{path} shows {each!a} unescaped" for each in sorted(raw)]
    crawled.shown |= {each for each in (*MARKUP, *CONTROLS) if any(form in text for form in _forms(each))}


def _forms(hostile: str) -> Iterator[str]:
    """Yield the forms in which a page may show a hostile string, without whitespace: literal, with escapes, and with
    escapes inside JSON, which doubles their backslashes."""
    escaped = line(hostile)
    for form in (hostile, escaped, json.dumps(escaped)[1:-1]):
        # Some control characters are not displayed at all.
        if len(without_blanks := "".join(form.split())) > 3:
            yield without_blanks


def _kind(path: str) -> str:
    """Return the kind of a page: the first part of its path, and the view if the path contains one."""
    kind = path.split("?")[0].split("/")[1] or "home"
    view = re.search(r"[?&]view=(\w+)", path)
    return f"{kind}, {view[1]}" if view else kind


def _wait_until_idle(page: Page, pending: Collection[Any]) -> None:
    """Wait until all requests of the page have been answered and the page's text no longer grows."""
    before = -1
    for _ in range(_MOST_WAITS):
        page.wait_for_timeout(_QUIET_MS)
        size = len(page.inner_text("body"))
        if size == before and size > 0 and not pending:
            return
        before = size


def _judge(page: Page, address: str, path: str, crawled: Crawled) -> list[str]:
    host = urlsplit(address).netloc
    _text(page, path, crawled)
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
    """Return True if an address is untrusted: it contains the marker, it is a script, or its host belongs neither to
    the platform nor to Dagster."""
    parts = urlsplit(url)
    if parts.scheme in ("", "data", "blob", "about") and MARK not in unquote(url):
        return False
    foreign = parts.netloc != host and not _DAGSTERS.fullmatch(parts.hostname or "")
    return foreign or MARK in unquote(url) or parts.scheme == "javascript"


def _is_page(path: str) -> bool:
    """Return True if a path is a page of the UI that should be visited."""
    return not re.search(r"^/(graphql|logs|download|debug|static|dagit)|[?&](cursor|logFileKey)=", path)
