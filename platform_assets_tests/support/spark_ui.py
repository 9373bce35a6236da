"""Everything that a Spark server's UI shows to people and programs."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from html import unescape
from urllib.parse import quote, urldefrag, urljoin


def pages(ui: str) -> Iterator[tuple[str, str]]:
    """Return every page that the UI's tabs link to, and each application's data in the REST interface."""
    waiting = [f"{ui}/{tab}/" for tab in ("connect", "SQL", "jobs", "stages", "environment", "executors", "storage")]
    rest = f"{ui}/api/v1/applications"
    (application,) = re.findall(r'"id" : "([^"]+)"', fetched(rest) or "")
    waiting += [
        f"{rest}/{application}/{what}"
        for what in ("sql?details=true&length=1000", "jobs", "stages?details=true", "environment", "allexecutors")
    ]
    seen: set[str] = set()
    while waiting:
        address = waiting.pop(0)
        if address in seen:
            continue
        seen.add(address)
        if (text := fetched(address)) is None:
            continue
        yield address, text
        links = (
            urldefrag(urljoin(address, quote(unescape(link), safe="/:?&=#%+")))[0]
            for link in re.findall(r'href="([^"]+)"', text)
        )
        waiting += [link for link in links if link.startswith(ui) and not re.search(r"/static/|kill|[.]sort=", link)]


def fetched(address: str) -> str | None:
    """Return the content of a page, or None if the page does not exist."""
    try:
        with urllib.request.urlopen(address, timeout=300) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError:
        return None
