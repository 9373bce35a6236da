"""Duration of a backup, of the next backup, and of a restore, for a table with many windows.

Run this module with `python -m benchmarks.backups`. It needs no services. A script makes the lake, with a data file of
2,000 bytes for each window, and with separate commits for the newest windows.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import made_lake
from platform_assets.backup import restoring, taking
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from testbed.samples import hourly

TOPIC: Final = "orders"
_PARTITIONS: Final = 4
_FILE: Final = 2_000


def main() -> int:
    """Make the lake, back it up twice, restore it, and print the seconds that each step takes."""
    parser = argparse.ArgumentParser(prog="benchmarks.backups", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument(
        "--commits", type=int, default=300, help="number of the newest windows, each of which gets its own commit"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backups-") as folder:
        root, home, backups = (Path(folder) / name for name in ("lake", "dagster", "backups"))
        made_lake.make(root, TOPIC, chosen.windows, _PARTITIONS, one_by_one=chosen.commits)
        lake = Lake.at(root)
        _fill(lake, home, chosen.windows)
        for name in ("first backup", "next backup, nothing new"):
            began = time.perf_counter()
            taken = taking.take(lake, home, backups, datetime.now(UTC))
            seconds = time.perf_counter() - began
            size = sum(f.bytes for f in taken.manifest.files)
            print(
                f"{name}: {seconds:.1f} s, {len(taken.manifest.files):,} files, {size:,} bytes, {taken.copied:,} copied"
            )
        _seal(lake, chosen.windows)
        began = time.perf_counter()
        taken = taking.take(lake, home, backups, datetime.now(UTC))
        print(f"next backup, after one more window: {time.perf_counter() - began:.1f} s, {taken.copied:,} copied")
        began = time.perf_counter()
        done = restoring.restore(restoring.find(backups), Lake.at(Path(folder) / "new"), Path(folder) / "new home")
        print(f"restore: {time.perf_counter() - began:.1f} s, {done.files:,} files")
        began = time.perf_counter()
        os.sync()
        print(
            f"of each time, waiting for the disk takes about {time.perf_counter() - began:.1f} s if there is nothing to write"
        )
    return 0


def _fill(lake: Lake, home: Path, windows: int) -> None:
    """Write the data files. Also write a database as large as Dagster's database would be after that many
    materializations."""
    table = lake.table(TableRef.raw(TOPIC))
    for path in table.delta().file_uris():
        file = Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(_FILE))
    home.mkdir()
    with closing(sqlite3.connect(home / "index.db")) as database:
        database.execute("CREATE TABLE event_logs (id INTEGER PRIMARY KEY, event TEXT)")
        database.executemany(
            "INSERT INTO event_logs (event) VALUES (?)", ((os.urandom(1_000).hex(),) for _ in range(2 * windows))
        )
        database.commit()


def _seal(lake: Lake, windows: int) -> None:
    ledger = Ledger(lake)
    newest = ledger.newest_cut(TOPIC)
    assert newest is not None
    (cut,) = hourly(TOPIC, [dict.fromkeys(range(_PARTITIONS), n) for n in range(windows + 2)])[-1:]
    assert ledger.record_cuts([cut], newest.edge)


if __name__ == "__main__":
    sys.exit(main())
