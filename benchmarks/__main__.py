"""`python -m benchmarks`: run all scenarios, print a table, and write every round to benchmarks/results/<date>.json."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform as machine
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import bulk, many_windows
from benchmarks.bulk import BARE, CONSUMER, EVIDENCE, LOAD, READ, STREAMING, VALUE_BYTES, Bulk
from benchmarks.rounds import Timed, alternate
from platform_assets.lake.session import connect
from platform_assets_tests.engines import engines

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("dagster", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "kafka-python", "pyarrow")

_RATIOS = ((LOAD, BARE), (LOAD, STREAMING), (LOAD, READ), (EVIDENCE, LOAD), (EVIDENCE, READ), (EVIDENCE, CONSUMER))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write. 0 where every contender went through all that it had to."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds: minutes")
    quick = parser.parse_args(arguments).quick
    records, rounds, windows = (300_000, 3, (10, 1_000)) if quick else (3_000_000, 7, (10, 1_000, 10_000))
    told = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        root = Path(folder)
        told.print("making tables of many windows")
        lakes = {n: many_windows.table_of(root / f"lake-{n}", n) for n in windows}
        checks = alternate(many_windows.contenders(lakes), 2 * rounds, told.print)
        with engines(root) as (bootstrap, remote):
            told.print(f"producing {records:,} records")
            scenario = Bulk.produced(bootstrap, connect(remote), root / "bulk", records)
            loads = alternate(scenario.contenders(), rounds, told.print)
    _print(loads, checks, records)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}{'-quick' if quick else ''}.json"
    path.write_text(json.dumps(_document(loads, checks, records), indent=1) + "\n")
    print(f"every round: {path}")
    return 0


def _print(loads: Mapping[str, Timed], checks: Mapping[str, Timed], records: int) -> None:
    console = Console()
    table = Table(
        title=f"{records:,} records of {VALUE_BYTES} bytes, {bulk.PARTITIONS} partitions, {os.cpu_count()} cores"
    )
    for heading in ("", "records/s", "MB/s per core", "median s", "± spread"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, timed in loads.items():
        rate = records / timed.median
        per_core = rate * VALUE_BYTES / 1e6 / (os.cpu_count() or 1)
        table.add_row(name, f"{rate:,.0f}", f"{per_core:.1f}", f"{timed.median:.2f}", f"{timed.spread:.0%}")
    console.print(table)
    for ours, other in _RATIOS:
        console.print(f"{ours} is {_ratio(loads[other], loads[ours]):.2f} × as fast as: {other}")
    base = next(iter(checks.values()))
    for name, timed in checks.items():
        times = timed.median / base.median
        console.print(
            f"four checks, {name}: {timed.median * 1000:.0f} ms ± {timed.spread:.0%} ({times:.2f} × {base.name})"
        )


def _ratio(slower: Timed, faster: Timed) -> float:
    return slower.median / faster.median


def _document(loads: Mapping[str, Timed], checks: Mapping[str, Timed], records: int) -> dict[str, object]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "python": machine.python_version(),
            "kernel": machine.release(),
        },
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "records": records,
        "value_bytes": VALUE_BYTES,
        "seconds_by_round": {name: list(t.seconds) for name, t in {**loads, **checks}.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
