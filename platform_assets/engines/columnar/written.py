"""Descriptions of a task's files, which the driver can read without the libraries that write files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from platform_assets.model.digest import Measured

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DATE, _LAST_DATE = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Limits in microseconds: the years 1 to 9999, which readers of statistics agree on."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one partition in a file: their number, and the first and last offset, both inclusive."""

    rows: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that is in no commit yet.

    `path` is relative to the table's folder, `timestamps` are the oldest and the newest in microseconds.
    """

    path: str
    bytes: int
    partitions: Mapping[int, Rows]
    timestamps: tuple[int, int]
    measured: Measured

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.measured.rows

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Delta's statistics for the columns for which a raw table keeps them."""
        each = self.partitions.values()
        least: dict[str, Any] = {
            "kafka_partition": min(self.partitions),
            "kafka_offset": min(p.first for p in each),
        }
        most: dict[str, Any] = {
            "kafka_partition": max(self.partitions),
            "kafka_offset": max(p.last for p in each),
        }
        oldest, newest = self.timestamps
        if oldest >= _FIRST_DATE and newest <= _LAST_DATE:
            least["kafka_timestamp"], most["kafka_timestamp"] = _moment(oldest), _moment(newest)
        return {"minValues": least, "maxValues": most, "nullCount": dict.fromkeys(least, 0)}


def _moment(microseconds: int) -> str:
    """Return a time in the text form of Delta's protocol, which has milliseconds like Kafka's timestamps."""
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").rjust(20, "0") + f"{moment.microsecond // 1000:03d}Z"
