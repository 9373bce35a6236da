"""The crawler of the canary scenario finds active content on a page, and ignores plain text."""

from __future__ import annotations

import html
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from platform_assets.model.untrusted import line
from platform_assets_tests.soak import pages
from platform_assets_tests.soak.hostile import CONTROLS, MARK, MARKUP, TEXT

pytestmark = pytest.mark.browser

ELEMENTS = f"""<img src="/x?{MARK}"> <a href="/{MARK}">a</a> <a href="javascript:fetch('/{MARK}')">a</a>
    <b onclick="fetch('/{MARK}')">b</b> a \u202e b"""
ASKED = f"""text <iframe src="http://127.0.0.1:9/"></iframe> <script>fetch('/{MARK}'); alert('hello')</script>"""
INERT = f"<pre>{html.escape(line(TEXT))}</pre> <a href='/linked'>next</a> <img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of a web server with the pages."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"/inert": INERT, "/elements": ELEMENTS, "/asked": ASKED}.get(self.path, "nothing")
            content = f"<!doctype html><meta charset=utf-8><body>{body}</body>".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_everything_live_is_found(chromium: str, address: str) -> None:
    found = pages.crawl(chromium, address, ["/elements", "/asked"], 2).found
    for expected in (
        f"/elements has a live img: {address}/x?{MARK}",
        f"/elements has a live a: {address}/{MARK}",
        f"/elements has a live a: javascript:fetch('/{MARK}')",
        f"/elements has a live b with onclick=fetch('/{MARK}')",
        r"/elements shows '\u202e' unescaped",
        "/asked requested http://127.0.0.1:9/",
        f"/asked requested {address}/{MARK}",
        "/asked opened a dialog: hello",
    ):
        assert expected in found


def test_escaped_text_is_counted_and_not_found_and_links_are_followed(chromium: str, address: str) -> None:
    crawled = pages.crawl(chromium, address, ["/inert"], 5)
    assert crawled.found == []
    assert crawled.pages == 2
    assert crawled.hostile == {"inert": 1, "linked": 0}
    assert crawled.shown == {*MARKUP, *CONTROLS}
