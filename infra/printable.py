"""Text for a log or a terminal on which neither acts. This package cannot use the platform's own way to a terminal."""

from __future__ import annotations


def printable(text: object) -> str:
    """`text` in one line: control characters, line ends among them, and what else is not printable are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
