"""Reports of a decoding task to the driver: a file of one of the two tables, the error that ended it, or its rows' figures."""

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
from platform_assets.model import expectations
from platform_assets.model.expectations import FiguresByDigest

Target = Literal["decoded", "dead_letters"]


@dataclass(frozen=True, slots=True)
class Report:
    """A report on share `share`: a file of the table `target`, an error or, with neither, its completion.

    The last one has the `figures` of the share's rows for expectations on single rows.
    """

    share: int
    target: Target | None = None
    file: WrittenFile | None = None
    error: PlatformError | None = None
    figures: FiguresByDigest | None = None

    def to_json(self) -> str:
        """Return JSON for `from_json`."""
        value: dict[str, Any] = {"share": self.share, "target": self.target}
        if self.file is not None:
            value["file"] = file_to_json(self.file)
        if self.error is not None:
            value["error"] = error_to_json(self.error)
        if self.figures is not None:
            value["figures"] = expectations.to_fields(self.figures)
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Parse the result of `to_json`, or the report of a worker that does not have this code."""
        value = json.loads(text)
        if "unfit" in value:
            return cls(value["share"], error=UnfitError(value["unfit"]))
        file, error, figures = value.get("file"), value.get("error"), value.get("figures")
        return cls(
            value["share"],
            value["target"],
            None if file is None else file_from_json(file),
            None if error is None else error_from_json(error),
            None if figures is None else expectations.from_fields(figures),
        )
