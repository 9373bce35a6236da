"""Cost of loading a window, by record size and by number of partitions, and cost of ticks, by number of topics."""

from __future__ import annotations

import statistics
from typing import Final

from benchmarks.bulk import Bulk
from benchmarks.rounds import alternate
from benchmarks.scenario import Bench, Measured
from platform_assets.engines.shared.session import connect

_BYTES: Final = 200 << 20
_RECORDS: Final = 400_000


def run(bench: Bench) -> Measured:
    """Measure the seconds that loads with digests take. With each record size, the same number of bytes is loaded; with
    each number of partitions, the same number of records."""
    sizes = (100, 1_000, 10_000) if bench.quick else (100, 1_000, 10_000, 100_000)
    partitions = (1, 4, 20) if bench.quick else (1, 4, 20, 64, 200)
    total, records = (bench.pick(_BYTES, _BYTES // 5), bench.pick(_RECORDS, _RECORDS // 5))
    rounds = bench.pick(3, 1)
    session = connect(bench.remote)
    contenders: dict[str, Bulk] = {}
    for size in sizes:
        bench.report(f"producing records of {size:,} bytes")
        contenders[f"{size:,} bytes a record"] = Bulk.produced(
            bench.bootstrap, session, bench.root / f"size-{size}", total // size, size=size
        )
    for count in partitions:
        bench.report(f"producing into {count} partitions")
        contenders[f"{count} partitions"] = Bulk.produced(
            bench.bootstrap, session, bench.root / f"partitions-{count}", records, partitions=count
        )

    def clear() -> None:
        for bulk in contenders.values():
            bulk.clear()

    seconds = alternate({name: bulk.load for name, bulk in contenders.items()}, rounds, bench.report, clear)
    medians = {name: statistics.median(s) for name, s in seconds.items()}
    curves = {
        "MB/s by bytes a record": {size: round(total / 1e6 / medians[f"{size:,} bytes a record"], 2) for size in sizes},
        "seconds by partitions": {count: round(medians[f"{count} partitions"], 3) for count in partitions},
    }
    setting = {"bytes in all": total, "records over partitions": records}
    return Measured("curves", seconds, setting=setting, more={"curves": curves})
