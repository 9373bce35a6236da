"""Making untrusted text safe for the output that shows it: a line in a terminal or log, Markdown, SVG, JSON. No I/O.

Records, headers, registries, brokers and file names can contain anything. So can error messages that quote them. Escape
text where it is shown, not where it is stored. `platform_assets_tests/test_shown_text.py` finds the code that shows
text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any, Final
from xml.sax.saxutils import escape

from platform_assets.errors import printable

MOST_SHOWN: Final = 120
"""Maximum number of bytes of a value to show."""
MOST_PLACE: Final = 300
"""Maximum number of characters in the path that a dead letter shows. Longer paths are truncated, because field names
can be as long as the record."""


def cut(text: str, most: int) -> str:
    """Return at most `most` characters of `text`. If `text` is truncated, the last character of the result is an
    ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(content: bytes | None) -> str | None:
    """Return the beginning of a byte string as text, with unprintable parts escaped. If bytes are omitted, their number
    is added."""
    if content is None:
        return None
    text = content[:MOST_SHOWN].decode("utf-8", "backslashreplace")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text + (f"… ({len(content):,} bytes)" if len(content) > MOST_SHOWN else "")


def shown_value(value: Any) -> str | None:
    """Return a short form of a value of any column."""
    if value is None or isinstance(value, bytes):
        return shown(value)
    text = value.isoformat() if isinstance(value, date) else str(value)
    return shown(text.encode())


_BACKQUOTES: Final = re.compile(r"`+")
_SPECIAL: Final = re.compile(r"[\\`*\]<~]|\[(?!\d)|&(?=[#A-Za-z])|(?<![^\W_])_|_(?![^\W_])")
"""Pattern for characters to escape.

Offset ranges and names with underscores stay readable: a bracket without its closing bracket is not Markdown.
"""
_BLOCK: Final = re.compile(r"^(?:(?=[#>+=-])|\d+(?=[.)]))")
"""Pattern for characters that begin a heading, quotation, list or underline at the start of a paragraph."""
_WORD: Final = re.compile(r"\S+")
_LINKED: Final = re.compile(r"://|www\.|@", re.IGNORECASE)
"""Pattern for strings that make GitHub's Markdown turn a word into a link. Such a link needs no Markdown characters,
and escaping characters in the word does not prevent it."""
_MARK: Final = re.compile(r"\\([!-/:-@\[-`{-~])|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)")
"""Pattern for an escaped Markdown character, or for a code span."""


def line(text: object) -> str:
    """Return `text` as one line, for a terminal or a log. Unprintable characters become escapes. These are control
    characters, including ESC and line ends, and characters that change the direction of text or have no width."""
    return printable(text)


def lines(text: object) -> str:
    """Escape like `line`, but keep line ends, for text whose line ends come from the platform."""
    return "\n".join(map(line, str(text).split("\n")))


def to_lines(sink: Callable[[str], object]) -> Callable[[str], None]:
    """Return a function that escapes each string like `line`, and passes it to `sink`."""

    def give(text: str) -> None:
        sink(line(text))

    return give


def code(text: object) -> str:
    """Return `text` as a Markdown code span, in which no character has a special meaning."""
    shown = line(text)
    if not shown:
        return ""
    fence = "`" * (1 + max(map(len, _BACKQUOTES.findall(shown)), default=0))
    pad = " " if "`" in (shown[0], shown[-1]) or _unpadded(shown) != shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def markdown(text: object) -> str:
    """Return `text` as one Markdown paragraph that shows the text literally: no image, no link, no HTML. Text in
    backquotes stays a code span. Addresses become code spans too, because they would otherwise be turned into links.
    Unmatched backquotes become code spans because `without_marks` would misread them as escaped characters.
    `markdown(without_marks(markdown(text)))` is `markdown(text)`."""
    pieces: list[tuple[bool, str]] = []
    for is_code, piece in _spans(line(text).lstrip(" ")):
        # Two adjacent code spans would become one span with different ends.
        if is_code and pieces and pieces[-1][0]:
            pieces[-1] = (True, pieces[-1][1] + piece)
        else:
            pieces.append((is_code, piece))
    shown = "".join(code(piece) if is_code else _SPECIAL.sub(r"\\\g<0>", piece) for is_code, piece in pieces)
    return _BLOCK.sub(r"\g<0>\\", shown)


def without_marks(text: str) -> str:
    """Reverse `markdown`: remove the escapes that it added. Code spans stay unchanged."""
    return _MARK.sub(lambda found: found[1] or found[0], text)


def html(text: object) -> str:
    """Return `text` for use in HTML and SVG, including attributes."""
    return escape(line(text), {'"': "&quot;", "'": "&#39;"})


def document(value: Any, indent: int | None = 2) -> str:
    """Return `value` as JSON without control characters. Text in all languages stays readable."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _spans(text: str) -> Iterator[tuple[bool, str]]:
    """Yield pieces of `text`, each with True if it is a code span. A code span is text between two equally long
    sequences of backquotes, an unmatched sequence of backquotes, or an address."""
    following: dict[int, re.Match[str]] = {}
    ends: dict[int, re.Match[str] | None] = {}
    runs = list(_BACKQUOTES.finditer(text))
    for run in reversed(runs):
        ends[run.start()] = following.get(len(run[0]))
        following[len(run[0])] = run
    at = 0
    for run in runs:
        end = ends[run.start()]
        if run.start() >= at:
            yield from _addresses(text[at : run.start()])
            yield True, run[0] if end is None else _unpadded(text[run.end() : end.start()])
            at = (end or run).end()
    yield from _addresses(text[at:])


def _unpadded(span: str) -> str:
    """Remove one space from each end, as Markdown does, if both ends have a space and the span contains anything but
    spaces."""
    return span[1:-1] if span[:1] == span[-1:] == " " and span.strip(" ") else span


def _addresses(text: str) -> Iterator[tuple[bool, str]]:
    at = 0
    for word in _WORD.finditer(text):
        if _LINKED.search(word[0]):
            if word.start() > at:
                yield False, text[at : word.start()]
            yield True, word[0]
            at = word.end()
    if at < len(text):
        yield False, text[at:]
