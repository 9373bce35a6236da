"""Reasons why windows past the topic's `keep` stay. They are kept in records, and shown to users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from platform_assets.model.tables import TableKind

DAMAGED: Final = "its rows are not those that were loaded"
DAMAGED_DECODED: Final = "its decoded rows are not those that were written"
DAMAGED_DEAD: Final = "its dead letters are not those that were written"
DAMAGED_CHANGES: Final = "its changes are not those that were written"
OPEN: Final = "not all of its offsets are accounted for"
OPEN_DERIVED: Final = "not all of its offsets are accounted for in its decoded rows and dead letters"
RETURNED: Final = "rows are back that are not those that were removed"
UNKNOWN: Final = "for some of its offsets without a row, Kafka could no longer show whether they had records"
UNDECODED: Final = "its decoded rows and dead letters are not those of its raw rows"
ERASING: Final = "an erasure of records in it is not complete"
PARKED: Final = "it is parked"
BLOCKED: Final = "a file that may hold its rows cannot be read, or has a name that delta-rs cannot remove"

DECIDED: Final = frozenset({PARKED})
"""Reasons that an operator has chosen: upkeep warns of such windows, and does not fail because of them."""

DAMAGED_IN: Final[Mapping[TableKind, str]] = {
    "raw": DAMAGED,
    "decoded": DAMAGED_DECODED,
    "dead_letters": DAMAGED_DEAD,
    "changes": DAMAGED_CHANGES,
}
