"""The rows in the tables of docs/json-dialect.md. Each row contains a value, its columns and options, and the result."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from platform_assets.services.home import CHECKOUT

PAGE: Final = CHECKOUT / "docs" / "json-dialect.md"
_HEADER: Final = re.compile(r"\| value \| columns.* \| becomes \|")
_CODE: Final = re.compile(r"`([^`]*)`")
_BYTES: Final = re.compile("⟨([0-9a-f ]+)⟩")


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a table. `row` and `rescued` are JSON strings if the value can be decoded. `reason` and `place` are
    set if the value becomes a dead letter."""

    text: str
    value: bytes
    options: dict[str, Any]
    row: str | None
    rescued: str | None
    reason: str | None
    place: str | None


def rules() -> list[Rule]:
    """Return all rows of the tables of values on the page."""
    found = []
    inside = False
    for line in PAGE.read_text().splitlines():
        inside = line.startswith("|") and (inside or bool(_HEADER.fullmatch(line)))
        if inside and not _HEADER.fullmatch(line) and not line.startswith("|---"):
            found.append(_rule(line))
    return found


def _rule(line: str) -> Rule:
    value, columns, becomes = (cell.strip() for cell in line.strip("|").split(" | "))
    schema, *others = _CODE.findall(columns)
    options: dict[str, Any] = {"schema": schema}
    for other in others:
        options[other if other.startswith("max") else "timestamps"] = other
    for bound, number in re.findall(r"`(max_\w+)` (\d+)", columns):
        options[bound] = int(number)
    first, *rest = _CODE.findall(becomes)
    decodes = first.startswith("{")
    return Rule(
        line,
        b"".join(
            bytes.fromhex(part) if index % 2 else part.encode() for index, part in enumerate(_BYTES.split(value[1:-1]))
        ),
        options,
        first if decodes else None,
        rest[0] if decodes and rest else None,
        None if decodes else first,
        rest[0] if not decodes and rest else None,
    )
