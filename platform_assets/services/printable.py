"""Text that is safe for logs and terminals, because the package `services` cannot use the platform's own terminal
output."""

from __future__ import annotations


def printable(text: object) -> str:
    """Return `text` as a single line, with escapes for control characters, including line ends, and for other
    unprintable characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
