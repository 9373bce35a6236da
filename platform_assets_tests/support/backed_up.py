"""A small real lake and Dagster home, which can be backed up, destroyed and restored without any services."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from platform_assets.backup import restoring, taking
from platform_assets.backup.restoring import Restored
from platform_assets.backup.taking import BackupResult
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from testbed import samples
from testbed.loads import table_rows

ORDERS = TableRef.raw("orders")


@dataclass
class BackedUp:
    """A lake, a Dagster home and a backup folder below `folder`. The time `now` advances with each backup."""

    folder: Path
    now: datetime = datetime(2026, 1, 2, tzinfo=UTC)

    @property
    def lake(self) -> Lake:
        return Lake.at(self.folder / "lake")

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.lake)

    @property
    def home(self) -> Path:
        return self.folder / "dagster"

    @property
    def destination(self) -> Path:
        return self.folder / "backups"

    def seal(self, count: int = 1) -> None:
        """Seal more hourly windows, with two offsets in each."""
        ledger = self.ledger
        ledger.create()
        newest = ledger.newest_cut("orders")
        first = 0 if newest is None else len(ledger.edges("orders"))
        cuts = [samples.cut("orders", samples.edge(n), {0: 2 * n}) for n in range(first, first + count + (not first))]
        assert ledger.record_cuts(cuts, None if newest is None else newest.edge)

    def load(self, *keys: str) -> None:
        """Load these windows. Without `keys`, load all windows that are not loaded yet."""
        known = self.ledger.receipts(ORDERS)
        for window in self.ledger.windows("orders"):
            if window.key in keys or (not keys and window.key not in known):
                samples.loaded(self.folder / "lake", window, load_id=f"{window.key} at {len(known)}")

    def report(self, partition: str) -> None:
        """Report a materialization of the partition to Dagster."""
        self.home.mkdir(exist_ok=True)
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            instance.report_runless_asset_event(
                dg.AssetMaterialization(dg.AssetKey(["raw", "orders"]), partition=partition)
            )

    def take(self) -> BackupResult:
        self.now += timedelta(hours=1)
        return taking.take(self.lake, self.home, self.destination, self.now)

    def restore(self, *only: str, **more: Any) -> Restored:
        return restoring.restore(restoring.find(self.destination), self.lake, self.home, only, **more)

    def destroy(self, *parts: str) -> None:
        """Delete the folders of these parts."""
        for part in parts:
            place = {"ledger": self.folder / "lake" / "_ledger", "dagster": self.home}.get(part)
            shutil.rmtree(place or self.folder / "lake" / part)

    @property
    def state(self) -> dict[str, Any]:
        """Return everything that matters: rows, cuts, receipts, and Dagster's records."""
        return dict(self._state())

    def _state(self) -> Iterator[tuple[str, Any]]:
        yield "rows", [row.whole for row in table_rows(self.folder / "lake" / "raw" / "orders")]
        yield "cuts", [(c.edge, dict(c.cut.offsets)) for c in self.ledger.cuts("orders")]
        yield "receipts", {k: (r.load_id, r.table_version) for k, r in self.ledger.receipts(ORDERS).items()}
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            yield "reported", set(instance.get_materialized_partitions(dg.AssetKey(["raw", "orders"])))
