"""How values of topics are shown to people: shortened, and with nothing in them that a terminal or a page would act on. Pure."""

from __future__ import annotations

from datetime import date
from typing import Any, Final

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
