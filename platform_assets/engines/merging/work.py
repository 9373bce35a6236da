"""The input and the reports of merging tasks. Both consist of plain values without secrets, because Spark stores and
displays plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from platform_assets.engines.shared.reports import error_in, error_to_json, is_unsupported
from platform_assets.errors import PlatformError
from platform_assets.lake.field_ids import NO_IDS, FieldIds
from platform_assets.model.digest import Digest, Measured
from platform_assets.model.tables import TableKind

Digests = Mapping[tuple[str, str], Measured]
"""Digests, keyed by window and topic id. The topic id is part of the key because no digest covers it. A missing window
or topic id is ''."""


@dataclass(frozen=True, slots=True)
class Share:
    """Files that one task merges, either into one new file in the folder `below` or into several new files of about
    `file_bytes` each.

    `sources` are the names of the files, in the order of their rows. The names are relative to the table's folder and
    not percent-encoded. Rows are sorted by the columns `sort_by`. If `sort_by` is empty, rows stay in the order of the
    sources.
    """

    sources: tuple[str, ...]
    below: str
    file_bytes: int
    sort_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Work:
    """All groups of files in a job, and the columns `layout` of the new files, including the window column.

    `table` is the table's folder, and `name` is the table's name in messages. `statistics` are the columns whose bounds
    the files record. `field_ids` are the ids of the columns.
    """

    table: str
    name: str
    kind: TableKind
    layout: pa.Schema
    shares: tuple[Share, ...]
    statistics: tuple[str, ...]
    field_ids: FieldIds = NO_IDS


@dataclass(frozen=True, slots=True)
class Report:
    """A report on share `share`, which contains either the new files or an error. `files` maps the name of each new
    file to the digests of its rows, which were read back from the file.

    If the sources have no rows, there are no new files. `odd` contains the windows with rows that have no digest. No
    load writes such rows.
    """

    share: int
    files: Mapping[str, Digests] = field(default_factory=dict)
    odd: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    error: PlatformError | None = None

    @property
    def digests(self) -> Digests:
        """The combined digests of all files."""
        total: dict[tuple[str, str], Measured] = {}
        for digests in self.files.values():
            for place, measured in digests.items():
                total[place] = total.get(place, _NOTHING) + measured
        return total

    def to_json(self) -> str:
        """Return JSON for `from_json`."""
        value: dict[str, Any] = {"share": self.share, "odd": self.odd, "seconds": dict(self.seconds)}
        # Written as strings, because sums of 64-bit hashes are too wide for other readers of JSON.
        value["files"] = {
            name: [[*place, m.rows, str(m.offsets.total), str(m.content.total)] for place, m in digests.items()]
            for name, digests in self.files.items()
        }
        if self.error is not None:
            value["error"] = error_to_json(self.error)
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Parse the result of `to_json`, or a report from a worker that does not have this code."""
        value = json.loads(text)
        if is_unsupported(value):
            return cls(value["share"], error=error_in(value))
        files = {
            name: {
                (window, topic_id): Measured(Digest(rows, int(offsets)), Digest(rows, int(content)))
                for window, topic_id, rows, offsets, content in digests
            }
            for name, digests in value["files"].items()
        }
        return cls(value["share"], files, tuple(value["odd"]), value["seconds"], error_in(value))


_NOTHING = Measured.of_nothing()
