"""Faults of values, which become dead letters."""

from __future__ import annotations

import json
import re
from typing import Final

from platform_assets.decoding.decoder import DecodeFault, Reason

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_BRIEF: Final = 60


class Fault(DecodeFault):
    """A fault in a part of a value. `parts` are the names and indexes that lead to the part, innermost first."""

    def __init__(self, reason: Reason, detail: str, *parts: str | int) -> None:
        super().__init__(reason, detail)
        self.parts = list(parts)

    def locate(self) -> None:
        """Set the path, now that all parts are known."""
        if self.parts:
            self.place = place(tuple(reversed(self.parts)))


def place(parts: tuple[str | int, ...]) -> str:
    """Return a path from the outermost object, such as `$.legs[2].carrier` or `$["first name"]`. The path is ASCII."""
    return "$" + "".join(_step(part) for part in parts)


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _PLAIN.fullmatch(part) else f"[{json.dumps(part)}]"


def brief(value: object) -> str:
    """Return a short description of a value. If the description cannot be encoded, return it in ASCII."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if type(value) is str:
        return "the text " + json.dumps(value if len(value) <= _BRIEF else value[:_BRIEF] + "…")
    text = (
        str(value) if not isinstance(value, int) or abs(value) < 10**_BRIEF else f"that has {value.bit_length()} bits"
    )
    return "the number " + (text if len(text) <= _BRIEF else text[:_BRIEF] + "…")
