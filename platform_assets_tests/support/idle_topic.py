"""An undamaged table whose topic becomes idle: each tick seals one window without offsets. Needs neither a broker nor
Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import dagster as dg
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from platform_assets.checks.registry import DEEP_AUDIT
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import holdings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.tick import Group, Position
from platform_assets_tests.support import answers, tables
from testbed import samples
from testbed.samples import edge
from testbed.ticks import PlanningTick

LOADED: Final = 4
"""Number of loaded windows, with ten records in each of two partitions."""


class IdleTopic:
    """The topic, its table below `root`, and a Dagster instance that knows about all loads."""

    def __init__(self, root: Path, topic: str, instance: dg.DagsterInstance) -> None:
        self.root, self.topic, self.instance = root, topic, instance
        self.ledger = Ledger(Lake.at(root))
        self.table = TableRef.raw(topic)
        self.key = table_key(self.table)
        self.ticked = LOADED
        self.windows = samples.recorded(root, topic, [self._end(n) for n in range(LOADED + 1)])
        for window in self.windows:
            samples.loaded(root, window, holes={}, proved_by="load digest")
        tables.reported(instance, root, topic, self.windows)

    def _end(self, number: int) -> dict[int, int]:
        return dict.fromkeys((0, 1), min(number, LOADED) * 10)

    def tick(self) -> dg.SensorResult:
        """Seal the next window, evaluate the sensor, and store its reports in the same way as the daemon."""
        result = self.evaluate()
        self.keep(result.asset_events)
        return result

    def evaluate(self) -> dg.SensorResult:
        """Seal the next window, and evaluate the sensor without storing its result."""
        before, self.ticked = edge(self.ticked), self.ticked + 1
        self.ledger.record_cuts([samples.cut(self.topic, edge(self.ticked), self._end(self.ticked))], before)
        cluster = Cluster(None, ClientSettings("127.0.0.1:1"))
        tick = PlanningTick(
            Group.of(tables.declaration(self.topic)), cluster, self.ledger, self.instance, edge(self.ticked)
        )
        return tick.evaluate(Position({self.topic: before}).to_cursor())

    def keep(self, events: Sequence[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]) -> None:
        """Store events."""
        for event in events:
            self.instance.report_runless_asset_event(event)

    def audit(self) -> None:
        """Read all files again, in the same way as a deep audit."""
        with pytest.MonkeyPatch.context() as patch:
            answers.given(patch)
            DEEP_AUDIT.evaluate(answers.unanswered(self.root, self.topic))

    def unbalance(self, number: int) -> None:
        """Record more holes in a window's receipt than the window's offsets allow."""
        key = self.windows[number].key
        receipt = self.ledger.receipts(self.table, [key])[key]
        self.ledger.record_receipts([replace(receipt, holes={"commit markers": 3})])

    def delete(self, predicate: str) -> None:
        """Delete rows with a commit in the table's log."""
        DeltaTable(self.root / "raw" / self.topic).delete(predicate)

    def shorten(self, number: int) -> None:
        """Remove the last row from a window's file, without a commit in the log. The name and size of the file do not
        change."""
        folder = self.ledger.lake.table(self.table)
        (path,) = holdings.files_of(folder, self.windows[number].key).paths
        file = folder.path / unquote(path)
        size = file.stat().st_size
        found = pq.ParquetFile(file).read()
        pq.write_table(found.slice(0, found.num_rows - 1), file, compression="zstd", store_schema=False)
        written = file.read_bytes()
        # Zeros between data and footer do no harm.
        footer = len(written) - 8 - int.from_bytes(written[-8:-4], "little")
        assert len(written) <= size
        file.write_bytes(written[:footer] + bytes(size - len(written)) + written[footer:])
