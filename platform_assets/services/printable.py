"""Text that is safe for logs and terminals. This package cannot use the platform's own terminal output."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return `text` in one line, with control characters, including line ends, and other unprintable ones as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
