"""The record of a table's newest upkeep, for `status` and the asset page: a file per table, which may be deleted at any time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar

from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model import names
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)
Record = TypeVar("Record")
_VERSION: Final = 1
MOST_DAMAGED: Final = 20
"""Maximum number of damaged windows that are named."""


@dataclass(frozen=True, slots=True)
class LastUpkeep:
    """An upkeep that ended at `at` and took `seconds`.

    It merged `merged_files` of `merged_bytes` into `new_files` of `new_bytes`; the table then had `files` of
    `bytes`, and before that `files_before`. Later runs merge `left_bytes` bytes of files. `damaged` are the first
    windows whose rows are not those of their receipts, with the ids of their loads. `deleted_files` of
    `deleted_bytes` were in no version that is kept; `vacuumed_at` is the time at which such files were last deleted.
    They were not deleted because of the windows `unproved`, of which the first are listed: their rows may be in old
    files alone.
    """

    at: datetime
    seconds: float
    files_before: int
    files: int
    bytes: int
    merged_files: int = 0
    merged_bytes: int = 0
    new_files: int = 0
    new_bytes: int = 0
    left_bytes: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)
    deleted_files: int = 0
    deleted_bytes: int = 0
    vacuumed_at: datetime | None = None
    unproved: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        vacuumed = None if self.vacuumed_at is None else self.vacuumed_at.isoformat()
        changed = {"damaged": list(self.damaged), "vacuumed_at": vacuumed, "unproved": list(self.unproved)}
        return {**asdict(self), "at": self.at.isoformat(), **changed}


def remember(lake: Lake, table: TableRef, done: LastUpkeep) -> None:
    """Store the result of an upkeep. Raises LakeNotWritableError."""
    document = {"version": _VERSION, **done.to_json(), "damaged": dict(done.damaged)}
    lake.upkeep.write(_name(table), json.dumps(document, separators=(",", ":")).encode())


def recall(lake: Lake, table: TableRef) -> LastUpkeep | None:
    """Return the stored result; None if there is none, or another release wrote it."""
    return recalled(lake, _name(table), _VERSION, _made)


def recalled(lake: Lake, name: str, version: int, made: Callable[[dict[str, Any]], Record]) -> Record | None:
    """Return the record that upkeep stored as `name`; None if there is none, or another release wrote it.

    `made` makes the record from its JSON fields. A file that cannot be read is named in a warning.
    """
    content = lake.upkeep.read(name)
    if content is None:
        return None
    try:
        fields: Any = json.loads(content)
        return made(fields) if fields.pop("version") == version else None
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        _log.warning("%s/%s cannot be read (%s): the next upkeep replaces it", lake.upkeep, name, e)
        return None


def _made(fields: dict[str, Any]) -> LastUpkeep:
    vacuumed = fields.pop("vacuumed_at")
    return LastUpkeep(
        **{
            **fields,
            "at": datetime.fromisoformat(fields["at"]),
            "damaged": dict(fields["damaged"]),
            "unproved": tuple(fields.get("unproved", ())),
            "vacuumed_at": None if vacuumed is None else datetime.fromisoformat(vacuumed),
        }
    )


def standing(ledger: Ledger, table: TableRef, done: LastUpkeep) -> tuple[str, ...]:
    """Return the damaged windows that no load has replaced since."""
    if not done.damaged:
        return ()
    receipts = ledger.receipts(table, list(done.damaged))
    return tuple(
        key for key, load_id in sorted(done.damaged.items()) if key in receipts and receipts[key].load_id == load_id
    )


def _name(table: TableRef) -> str:
    return names.file_name(table.kind, table.topic, ".json")
