"""Text from outside, made safe for the place that shows it: a line of a terminal or log, Markdown, SVG, JSON. Pure.

Records, headers, registries, brokers and file names may hold anything, and so may the messages of errors that quote them. Escape
where text is shown, not where it is stored. `platform_assets_tests/test_shown_text.py` finds the places that show text.
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
"""Bytes of a value that are shown."""
MOST_PLACE: Final = 300
"""Characters of the place of a dead letter; a longer one is cut. Names of a record's fields may be as long as the record."""


def cut(text: str, most: int) -> str:
    """`text`, of at most `most` characters; the last one says that there were more."""
    return text if len(text) <= most else text[: most - 1] + "…"


def shown(content: bytes | None) -> str | None:
    """The beginning of bytes as text: what cannot be shown is escaped, and what is left out is said."""
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
"""Ranges of offsets and names with underscores inside stay readable: without its end a bracket is no mark."""
_BLOCK: Final = re.compile(r"^(?:(?=[#>+=-])|\d+(?=[.)]))")
"""Starts of a heading, quotation, list or underline at the beginning of a paragraph."""
_WORD: Final = re.compile(r"\S+")
_LINKED: Final = re.compile(r"://|www\.|@", re.IGNORECASE)
"""Words with one of these are what GitHub's Markdown makes links of, without any mark and even if marks in them are escaped."""
_MARK: Final = re.compile(r"\\([!-/:-@\[-`{-~])|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)")
"""An escaped mark, or a code span."""


def line(text: object) -> str:
    """`text` in one line, for a terminal or a log: what is not printable is shown as an escape.

    That is control characters, ESC and line ends among them, and marks that change the direction of text or have no width.
    """
    return printable(text)


def lines(text: object) -> str:
    """Like `line`, for text whose line ends are the platform's own."""
    return "\n".join(map(line, str(text).split("\n")))


def to_lines(sink: Callable[[str], object]) -> Callable[[str], None]:
    """Return a function that gives `sink` each text as `line` makes it."""

    def give(text: str) -> None:
        sink(line(text))

    return give


def code(text: object) -> str:
    """`text` as a code span of Markdown: nothing in it is a mark."""
    shown = line(text)
    if not shown:
        return ""
    fence = "`" * (1 + max(map(len, _BACKQUOTES.findall(shown)), default=0))
    pad = " " if "`" in (shown[0], shown[-1]) or _unpadded(shown) != shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def markdown(text: object) -> str:
    """`text` as one paragraph of Markdown that shows it as it is: no image, no link, no HTML.

    What stands in backquotes stays a code span. So do addresses, which would be links otherwise, and backquotes without an end: as
    escaped marks they would be read as others by `without_marks`. `markdown(without_marks(markdown(text)))` is `markdown(text)`.
    """
    pieces: list[tuple[bool, str]] = []
    for is_code, piece in _spans(line(text).lstrip(" ")):
        # Two code spans in a row would be one with other ends.
        if is_code and pieces and pieces[-1][0]:
            pieces[-1] = (True, pieces[-1][1] + piece)
        else:
            pieces.append((is_code, piece))
    shown = "".join(code(piece) if is_code else _SPECIAL.sub(r"\\\g<0>", piece) for is_code, piece in pieces)
    return _BLOCK.sub(r"\g<0>\\", shown)


def without_marks(text: str) -> str:
    """The text that `markdown` was given; code spans stay as they are."""
    return _MARK.sub(lambda found: found[1] or found[0], text)


def html(text: object) -> str:
    """`text` for HTML and SVG, inside an attribute too."""
    return escape(line(text), {'"': "&quot;", "'": "&#39;"})


def document(value: Any, indent: int | None = 2) -> str:
    """`value` as JSON that is readable in any language, and on which no terminal acts."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _spans(text: str) -> Iterator[tuple[bool, str]]:
    """Pieces of `text`, each with whether it is a code span: between two equal runs of backquotes, a run alone, or an address."""
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
    """Take one space off each end, as Markdown does, if both ends have one and there is anything else."""
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
