"""Reports of a task to the driver. Each report is a JSON string. It describes a file that the task wrote, or the error
that ended a share.

An error is a report, not an exception. One window's failure therefore does not end the tasks of other windows, and its
error does not arrive as the text of a Java exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from platform_assets import errors
from platform_assets.errors import PlatformError
from platform_assets.lake.parquet import WINDOW
from platform_assets.model.digest import Digest, Measured

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DATE, _LAST_DATE = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Limits in microseconds: the years 1 to 9999, for which all readers interpret statistics alike."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one partition in a file: the number of rows, and the first and last offset, both inclusive."""

    rows: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that no commit refers to yet.

    `path` is relative to the table's folder. `timestamps` are the oldest and the newest timestamp in microseconds.
    `windows` are the first and the last window if the file has a window column.
    """

    path: str
    bytes: int
    partitions: Mapping[int, Rows]
    timestamps: tuple[int, int]
    measured: Measured
    windows: tuple[str, str] | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.measured.rows

    @property
    def statistics(self) -> Mapping[str, Any]:
        """Delta's statistics for the columns of a raw table that have statistics."""
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
        if self.windows is not None:
            least[WINDOW], most[WINDOW] = self.windows
        return {"minValues": least, "maxValues": most, "nullCount": dict.fromkeys(least, 0)}


def _moment(microseconds: int) -> str:
    """Return a time in the text form of Delta's protocol. Like Kafka's timestamps, this form has a precision of
    milliseconds."""
    moment = _EPOCH + timedelta(microseconds=microseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.").rjust(20, "0") + f"{moment.microsecond // 1000:03d}Z"


class UnsupportedError(PlatformError):
    """Raised if this engine cannot load the records, but the connector engine can. Nothing was written."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the columnar engine cannot load this window: {reason}. Set `engine: auto` or `engine: connector` to load the "
            "window with Spark's connector."
        )


@dataclass(frozen=True, slots=True)
class Report:
    """A report on share `share`: a file, an error, or, if there is neither, the completion of the share. `seconds`
    contains the duration of each step."""

    share: int
    file: WrittenFile | None = None
    error: PlatformError | None = None
    seconds: Mapping[str, float] | None = None

    def to_json(self) -> str:
        """Return JSON for `from_json`."""
        value: dict[str, Any] = {"share": self.share}
        if self.file is not None:
            value["file"] = file_to_json(self.file)
        if self.error is not None:
            value["error"] = error_to_json(self.error)
        if self.seconds is not None:
            value["seconds"] = dict(self.seconds)
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Parse the result of `to_json`, or a report from a worker that does not have this code."""
        value = json.loads(text)
        file = value.get("file")
        return cls(
            value["share"], None if file is None else file_from_json(file), error_in(value), value.get("seconds")
        )


def file_to_json(file: WrittenFile) -> dict[str, Any]:
    """Return JSON values for `file_from_json`."""
    m = file.measured
    return {
        "path": file.path,
        "bytes": file.bytes,
        "partitions": {p: asdict(rows) for p, rows in file.partitions.items()},
        "timestamps": file.timestamps,
        "rows": m.rows,
        # Written as strings, because sums of 64-bit hashes are too wide for other readers of JSON.
        "digests": [str(m.offsets.total), str(m.content.total)],
        "windows": file.windows,
    }


def file_from_json(value: Mapping[str, Any]) -> WrittenFile:
    """Restore a file from `file_to_json`."""
    offsets, content = (Digest(value["rows"], int(total)) for total in value["digests"])
    return WrittenFile(
        value["path"],
        value["bytes"],
        {int(p): Rows(**rows) for p, rows in value["partitions"].items()},
        (value["timestamps"][0], value["timestamps"][1]),
        Measured(offsets, content),
        None if value.get("windows") is None else (value["windows"][0], value["windows"][1]),
    )


def is_unsupported(report: Mapping[str, Any]) -> bool:
    """Return True if a report from any kind of job comes from a worker that does not have this code. Such a report
    contains only an error."""
    return "unsupported" in report


def error_in(report: Mapping[str, Any]) -> PlatformError | None:
    """Return the error in a report from any kind of job, or None if there is no error in the report."""
    if is_unsupported(report):
        return UnsupportedError(report["unsupported"])
    return error_from_json(report["error"]) if "error" in report else None


def error_to_json(error: PlatformError) -> dict[str, Any]:
    """Return JSON values for `error_from_json`."""
    return {"type": type(error).__name__, "message": str(error), "fields": vars(error)}


def error_from_json(value: Mapping[str, Any]) -> PlatformError:
    """Restore an error's class, message and fields, without calling its constructor."""
    kind = UnsupportedError if value["type"] == UnsupportedError.__name__ else getattr(errors, value["type"])
    if not issubclass(kind, PlatformError):
        raise TypeError(f"{value['type']} is not an error of the platform")
    error: PlatformError = kind.__new__(kind)
    error.args = (value["message"],)
    for name, field in value["fields"].items():
        setattr(error, name, _frozen(field))
    return error


def _frozen(value: Any) -> Any:
    """Convert lists back to tuples."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
