"""What a task tells the driver, a JSON text a report: a file that it wrote, or why it could not go on.

An error is a report and not an exception, so that one window's failure neither ends the tasks of others nor arrives as
the text of a Java exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from platform_assets import errors
from platform_assets.engines.columnar.written import Rows, WrittenFile
from platform_assets.errors import PlatformError
from platform_assets.model.digest import Digest, Measured


class UnfitError(PlatformError):
    """This engine cannot do what was asked of it here, and the connector's engine can; nothing was written."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the columnar engine cannot load this: {reason}. `engine: auto` or `engine: connector` loads it by Spark's "
            "connector."
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Of share `share`: a file, an error, or, with neither, that it is done. `seconds` says what took how long."""

    share: int
    file: WrittenFile | None = None
    error: PlatformError | None = None
    seconds: Mapping[str, float] | None = None

    def to_json(self) -> str:
        """`from_json` reads it back."""
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
        """The inverse of `to_json`; also reads what a worker says that has none of this code."""
        value = json.loads(text)
        if "unfit" in value:
            return cls(value["share"], error=UnfitError(value["unfit"]))
        file, error = value.get("file"), value.get("error")
        return cls(
            value["share"],
            None if file is None else file_from_json(file),
            None if error is None else error_from_json(error),
            value.get("seconds"),
        )


def file_to_json(file: WrittenFile) -> dict[str, Any]:
    """`file_from_json` reads it back."""
    m = file.measured
    return {
        "path": file.path,
        "bytes": file.bytes,
        "partitions": {p: asdict(rows) for p, rows in file.partitions.items()},
        "timestamps": file.timestamps,
        "rows": m.rows,
        # As texts: sums of 64-bit hashes are too wide for other readers of JSON.
        "digests": [str(m.offsets.total), str(m.content.total)],
    }


def file_from_json(value: Mapping[str, Any]) -> WrittenFile:
    """The inverse of `file_to_json`."""
    offsets, content = (Digest(value["rows"], int(total)) for total in value["digests"])
    return WrittenFile(
        value["path"],
        value["bytes"],
        {int(p): Rows(**rows) for p, rows in value["partitions"].items()},
        (value["timestamps"][0], value["timestamps"][1]),
        Measured(offsets, content),
    )


def error_to_json(error: PlatformError) -> dict[str, Any]:
    """`error_from_json` reads it back."""
    return {"type": type(error).__name__, "message": str(error), "fields": vars(error)}


def error_from_json(value: Mapping[str, Any]) -> PlatformError:
    """The same error: its class, its message and its fields, without what its constructor would make of them."""
    kind = UnfitError if value["type"] == UnfitError.__name__ else getattr(errors, value["type"])
    if not issubclass(kind, PlatformError):
        raise TypeError(f"{value['type']} is no error of the platform")
    error: PlatformError = kind.__new__(kind)
    error.args = (value["message"],)
    for name, field in value["fields"].items():
        setattr(error, name, _frozen(field))
    return error


def _frozen(value: Any) -> Any:
    """Lists as the tuples that they were."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
