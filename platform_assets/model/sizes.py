"""File sizes in the form in which people write them, such as `128 MB`. No I/O."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"([0-9]{1,12}) ?(KB|MB|GB)?", re.IGNORECASE | re.ASCII)
_UNITS: Final = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


def bytes_of(text: str) -> int | None:
    """Return the number of bytes for a string such as `128 MB`, `1 GB` or `1000000`; None for any other string. A KB
    has 1,024 bytes."""
    found = _FORM.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _UNITS.get((found[2] or "").upper(), 1)


def size_text(size: int) -> str:
    """Return a readable size, such as `12.3 MB`."""
    for unit, each in reversed(_UNITS.items()):
        if size >= each:
            return f"{size / each:.1f} {unit}"
    return f"{size} bytes"
