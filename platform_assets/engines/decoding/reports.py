"""What a task that decodes tells the driver: a file of one of the two tables, or why it could not go on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from platform_assets.engines.columnar.reports import (
    UnfitError,
    error_from_json,
    error_to_json,
    file_from_json,
    file_to_json,
)
from platform_assets.engines.columnar.written import WrittenFile
from platform_assets.errors import PlatformError

Target = Literal["decoded", "dead_letters"]


@dataclass(frozen=True, slots=True)
class Report:
    """Of share `share`: a file of the table `target`, an error, or, with neither, that it is done."""

    share: int
    target: Target | None = None
    file: WrittenFile | None = None
    error: PlatformError | None = None

    def to_json(self) -> str:
        """`from_json` reads it back."""
        value: dict[str, Any] = {"share": self.share, "target": self.target}
        if self.file is not None:
            value["file"] = file_to_json(self.file)
        if self.error is not None:
            value["error"] = error_to_json(self.error)
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
            value["target"],
            None if file is None else file_from_json(file),
            None if error is None else error_from_json(error),
        )
