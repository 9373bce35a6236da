"""A topic's table of changes in a lake, with rows that a test gives, and the topic's state."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Schema

from platform_assets.engines.measuring import measure_of
from platform_assets.lake import data_files, delta_log, new_tables
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, edge_of
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.state_histories import CHANGES, Row, check_history, expected

_TOPIC, _TOPIC_ID = "orders", "AAAAAAAAAAAAAAAAAAAAAA"
COLUMNS = pa.schema([pa.field("topic_id", pa.string()), *CHANGES])


@dataclass
class MadeChanges:
    """The table of changes of topic `orders` below a folder. `windows` has the rows that each window has now."""

    root: Path
    declared: StateDeclaration = field(default_factory=lambda: StateDeclaration(("id",)))
    columns: pa.Schema = field(default_factory=lambda: COLUMNS)
    windows: dict[str, list[Row]] = field(default_factory=dict)
    at_version: dict[int, dict[str, list[Row]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lake = Lake.at(self.root)
        self.table = TableRef("changes", _TOPIC)
        self.folder = self.lake.table(self.table)
        if not delta_log.exists(self.folder):
            new_tables.create(self.folder, Schema.from_arrow(self.columns), name="changes_orders", description="")

    def state(self, before_step: Callable[[str], None] = lambda step: None) -> TopicState:
        """Return the topic's state."""
        return TopicState(_TOPIC, self.declared, self.lake, before_step=before_step)

    def load(self, window: str, rows: Sequence[Row], *, erased: int | None = None) -> None:
        """Replace the rows of a window. `erased` is an offset of partition 0 that was erased."""
        commit = WindowCommit(self.lake, self.table, measure_of("decoded"))
        start, load_id = edge_of(window), uuid.uuid4().hex
        metadata = LoadMetadata(
            _TOPIC, _TOPIC_ID, 1, Window(start, start + timedelta(days=1)), TopicRanges({0: OffsetRange(0, 1000)}),
            load_id, "run", erased={} if erased is None else {0: (OffsetRange(erased, erased + 1),)},
        )  # fmt: skip
        files: tuple[data_files.NewFile, ...] = ()
        if rows:
            found = pa.Table.from_pylist([{"topic_id": _TOPIC_ID, **row} for row in rows], self.columns)
            path = f"{load_folder(window, load_id)}/part-0.parquet"
            data_files.write_rows(self.folder, path, found, window)
            files = (data_files.described(self.folder, path),)
        made = commit.replace(metadata, files)
        self.windows[window] = list(rows)
        self.at_version[made.version] = {key: list(each) for key, each in self.windows.items()}

    def live(self, version: int | None = None) -> dict[Any, Row]:
        """Return the rows of the table of live keys by key. Fails if a key occurs twice."""
        return self._by_key("state", version)

    def dead(self) -> dict[Any, Row]:
        """Return the rows of the table of deleted keys by key. Fails if a key occurs twice."""
        return self._by_key("state_deleted", None)

    def _by_key(self, kind: str, version: int | None) -> dict[Any, Row]:
        rows = pl.scan_delta(str(self.root / kind / _TOPIC), version=version).collect().to_dicts()
        found = {row["id"]: row for row in rows}
        assert len(found) == len(rows), "a key occurs twice"
        return found

    def check(self) -> None:
        """Assert that all tables are those of a plain dictionary."""
        live, dead = expected(self.windows, self.declared, self.collected())
        assert self.live() == live
        assert self.dead() == dead
        if self.declared.history:
            check_history(self.history(), self.windows, self.declared)

    def collected(self) -> str:
        """Return the window up to which deleted keys are collected, according to the newest fold."""
        commits = DeltaTable(str(self.root / "state_deleted" / _TOPIC)).history()
        newest: dict[str, Any] = next((json.loads(c["userMetadata"]) for c in commits if c.get("userMetadata")), {})
        return str(newest.get("collected", ""))

    def history(self) -> pa.Table:
        """Return the rows of the history."""
        return DeltaTable(str(self.root / "history" / _TOPIC)).to_pyarrow_table()


def change(key: int, window: str, offset: int, name: str | None = "", **more: Any) -> Row:
    """Return a change of a key. Without a name, the key is deleted."""
    return {
        "kafka_partition": 0, "kafka_offset": offset, "kafka_timestamp": None, "generation": 1, "deleted": name is None,
        "id": key, "name": name, "rev": None if name is None else 0, "change_operation": None,
        "change_lsn": None, "change_snapshot": None, "window": window, **more,
    }  # fmt: skip


DAYS = [f"2026-01-{day:02}-00:00" for day in range(1, 29)]
