"""A derived table with a group for each day of a year: one more window of 10,000 rows, which replaces one group, compared
with computing all rows again."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import Schema

from benchmarks.rounds import alternate, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.engines.measuring import measure_of
from platform_assets.engines.shared.session import connect
from platform_assets.lake import checkpoints, data_files, new_tables
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window
from platform_assets.windows.derive.deriving import Updater
from testbed.samples import START, TOPIC_ID

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

DAYS: Final = 365
WINDOW_ROWS: Final = 10_000
CARRIERS: Final = 16
_A_DAY: Final = timedelta(days=1)
_SOURCE: Final = TableRef("decoded", "flights")
_COLUMNS: Final = pa.schema(
    [
        ("topic_id", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("time_hour", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("dep_delay", pa.int32()),
        ("window", pa.string()),
    ]
)
DECLARED: Final = DerivedDeclaration(
    DerivedRef("delays_by_day"),
    {"day": "date(time_hour)"},
    "SELECT date(time_hour) AS day, carrier, count(*) AS flights, sum(dep_delay) AS minutes_late "
    "FROM decoded.flights GROUP BY ALL",
)


@dataclass
class Source:
    """The table `decoded/flights`: a window of `rows` rows for each day, and a last window with more rows of the last day."""

    lake: Lake
    rows: int
    loads: int = 0

    def make(self) -> None:
        """Create the table with the windows of all days, and the last window."""
        new_tables.create(self.lake.table(_SOURCE), Schema.from_arrow(_COLUMNS), name="decoded_flights", description="")
        for day in range(DAYS):
            self._load(Window(START + day * _A_DAY, START + (day + 1) * _A_DAY), day, self.rows)
        # As upkeep does. Without it, each reader of the log reads 365 commits.
        checkpoints.write(self.lake.table(_SOURCE))
        self.load_last()

    def load_last(self) -> None:
        """Replace the rows of the last window by others, all of them of the last day."""
        self._load(Window(START + DAYS * _A_DAY, START + (DAYS + 1) * _A_DAY), DAYS - 1, WINDOW_ROWS)

    def _load(self, window: Window, day: int, rows: int) -> None:
        random = np.random.default_rng(self.loads)
        self.loads += 1
        began = round((START + day * _A_DAY).timestamp() * 1_000_000)
        hours = began + random.integers(0, 24, rows) * 3_600_000_000
        names = pa.array([f"C{number}" for number in range(CARRIERS)])
        columns = [
            pa.repeat(TOPIC_ID, rows),
            pa.repeat(pa.scalar(0, pa.int32()), rows),
            pa.array(np.arange(rows)),
            pa.array(hours, pa.timestamp("us", "UTC")),
            pa.array(hours, pa.timestamp("us", "UTC")),
            names.take(pa.array(random.integers(0, CARRIERS, rows))),
            pa.array(random.integers(-10, 200, rows), pa.int32()),
            pa.repeat(window.key, rows),
        ]
        load(self.lake, _SOURCE, window, pa.table(columns, schema=_COLUMNS))


def load(lake: Lake, table: TableRef, window: Window, rows: pa.Table) -> None:
    """Replace the rows of a window of a decoded table, as a load does."""
    folder, load_id = lake.table(table), uuid.uuid4().hex
    path = f"{load_folder(window.key, load_id)}/part-0.parquet"
    data_files.write_rows(folder, path, rows, window.key)
    ranges = TopicRanges({0: OffsetRange(0, rows.num_rows)})
    metadata = LoadMetadata(table.topic, TOPIC_ID, 1, window, ranges, load_id, "bench")
    WindowCommit(lake, table, measure_of("decoded")).replace(metadata, (data_files.described(folder, path),))


def run(bench: Bench) -> Measured:
    """Measure the seconds of a run that replaces one group, and of Spark's own overwrite."""
    lake, rounds = Lake.at(bench.root / "lake"), 3
    source = Source(lake, bench.pick(100_000_000, 2_000_000) // DAYS)
    began = time.perf_counter()
    source.make()
    rows = DAYS * source.rows + WINDOW_ROWS
    bench.report(f"made {rows:,} rows in {time.perf_counter() - began:.0f} s")
    session = cache(partial(connect, bench.remote))
    plain = bench.root / "plain"

    def group() -> None:
        done = Updater(lake, DECLARED, session).run("bench").made.derivation
        if done.extent != "groups" or done.groups["count"] != 1:
            raise RuntimeError(f"the run computed {done.extent}, {done.groups}: {done.because}")

    def overwrite() -> None:
        spark: SparkSession = session()
        frame = spark.read.format("delta").load(lake.table(_SOURCE).spark_path)
        frame.createOrReplaceTempView("bench_flights")
        sql = DECLARED.sql.replace("decoded.flights", "bench_flights")
        spark.sql(sql).write.format("delta").mode("overwrite").save(str(plain))

    Updater(lake, DECLARED, session).run("bench", whole=True)
    source.load_last()
    contenders = {"one group": group, "Spark's own overwrite": overwrite}
    found = alternate(contenders, rounds, bench.report, clear=source.load_last, warm_up=1)
    group()
    overwrite()
    _compare(str(lake.table(DECLARED.table)), str(plain))
    goals = [
        at_least(
            "one group, relative to Spark's own overwrite",
            20,
            ratio(found["Spark's own overwrite"], found["one group"]),
        )
    ]
    setting = {"rows": rows, "groups": DAYS, "rows of the window": WINDOW_ROWS}
    return Measured("derived", found, goals, setting=setting)


def _compare(one: str, other: str) -> None:
    columns = ["day", "carrier", "flights", "minutes_late"]
    both = [pl.scan_delta(path).select(columns).sort(columns[:2]).collect() for path in (one, other)]
    if not both[0].equals(both[1]) or not len(both[0]):
        raise RuntimeError(f"the tables differ: {len(both[0]):,} and {len(both[1]):,} rows")
