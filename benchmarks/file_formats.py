"""Compression and row groups of a raw table, as they affect readers: size, write time and read time, by kind of value.

The files are written by the columnar engine's own writer. Work in one process is measured in processor time, because
libraries that read Parquet use all available threads. Spark's reads are measured in wall-clock time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.bulk import VALUE_BYTES
from benchmarks.scenario import Bench, Measured
from platform_assets.demo import dataset
from platform_assets.engines.columnar.columns import SCHEMA
from platform_assets.engines.shared.files import FileSeries
from platform_assets.engines.shared.session import connect
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window
from testbed.layouts import new_tables_are

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

BLOCK_ROWS: Final = 20_000
LOOKED_UP: Final = 100
"""Number of neighboring offsets in a look-up."""
_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_WINDOW: Final = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Format:
    """Settings for writing files: a Parquet codec, and the number of bytes of column data in each row group."""

    codec: str
    row_group_bytes: int

    @property
    def name(self) -> str:
        """Name of the format in the results."""
        return f"{self.codec}, row groups of {self.row_group_bytes >> 20} MiB"


FORMATS: Final = (
    *(Format(codec, 32 << 20) for codec in ("none", "snappy", "lz4", "zstd")),
    *(Format("lz4", size << 20) for size in (8, 128)),
    *(Format("zstd", size << 20) for size in (8, 128)),
)


def run(bench: Bench) -> Measured:
    """Measure each kind of value in each format. The figures are for one million records."""
    count = bench.pick(1_000_000, 100_000)
    found: dict[str, list[float]] = {}
    spark = connect(bench.remote)
    for kind, values in kinds(count).items():
        for form in FORMATS:
            for what, figure in _figures(bench.root / kind / form.name, values, form, spark).items():
                found[f"{kind}, {form.name}: {what}"] = [figure]
            bench.report(f"{kind}, {form.name}")
    return Measured(
        "file-formats", found, unit="s per million records, or the unit in the name", setting={"records": count}
    )


def kinds(count: int) -> Mapping[str, pa.Array]:
    """Return `count` values of each kind. Each call returns the same values."""
    random = np.random.default_rng(2026)
    flights = dataset.load("flights").values
    flights = pa.concat_arrays([_binary(flights)] * -(-count // len(flights)))[:count]
    noise = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(VALUE_BYTES), count, [None, pa.py_buffer(random.bytes(VALUE_BYTES * count))]
    )
    return {"flights as JSON": flights, "log lines": _log_lines(count, random), "random bytes": noise.cast(pa.binary())}


def _binary(values: Any) -> pa.Array:
    joined = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)
    return joined.cast(pa.binary())


def _log_lines(count: int, random: np.random.Generator) -> pa.Array:
    """Return the lines of a generated web server log, in which addresses and paths repeat realistically often."""
    hosts = pa.array([f"10.{a}.{b}.{c}" for a, b, c in random.integers(0, 256, (5_000, 3))])
    words = ("orders", "carts", "users", "search", "static/app.js", "login", "items")
    paths = pa.array([f"/{words[n % 7]}/{n}" for n in random.integers(0, 20_000, 3_000)])
    agents = pa.array(
        [f"Mozilla/5.0 (X11; Linux x86_64; rv:{n}.0) Gecko/20100101 Firefox/{n}.0" for n in range(90, 140)]
    )
    seconds = np.cumsum(random.exponential(0.01, count))
    moments = pc.strftime(
        pa.array((1_767_225_600_000 + seconds * 1000).astype("int64")).cast(pa.timestamp("ms", "UTC")),
        format="%d/%b/%Y:%H:%M:%S +0000",
    )
    picked = [hosts.take(pa.array(np.minimum(random.zipf(1.3, count), len(hosts)) - 1)), moments]
    picked.append(paths.take(pa.array(np.minimum(random.zipf(1.3, count), len(paths)) - 1)))
    statuses = pa.array(random.choice([200, 304, 404, 500], count, p=[0.9, 0.05, 0.04, 0.01])).cast(pa.string())
    sizes = pa.array(random.integers(200, 90_000, count)).cast(pa.string())
    agent = agents.take(pa.array(random.integers(0, len(agents), count)))
    parts = [
        picked[0],
        " - - [",
        picked[1],
        '] "GET ',
        picked[2],
        ' HTTP/1.1" ',
        statuses,
        " ",
        sizes,
        ' "-" "',
        agent,
        '"',
    ]
    return pc.binary_join_element_wise(*parts, "").cast(pa.binary())


def _figures(folder: Path, values: pa.Array, form: Format, spark: SparkSession) -> Mapping[str, float]:
    million = 1_000_000 / len(values)
    lake, table = Lake.at(folder), TableRef.raw("topic")
    with new_tables_are("partitioned"):
        raw_table.create(lake.table(table), table.topic)
    began = time.process_time()
    files = _written(lake, table, values, form)
    writing = time.process_time() - began
    ranges = TopicRanges({0: OffsetRange(0, len(values))})
    commit = WindowCommit(lake, table)
    commit.replace(LoadMetadata(table.topic, _TOPIC_ID, 1, _WINDOW, ranges, "load", "run"), files)
    path = str(lake.table(table))
    middle = len(values) // 2
    return {
        "bytes a record": sum(f.bytes for f in files) / len(values),
        "write, processor": writing * million,
        **{
            f"{what}, {reader}": seconds * (million if what == "read" else 1)
            for reader, (read, clock) in _readers(path, [f.path for f in files], spark).items()
            for what, seconds in (
                ("read", _seconds(partial(read, 0, len(values)), clock, len(values))),
                ("look-up", _seconds(partial(read, middle, middle + LOOKED_UP), clock, LOOKED_UP)),
            )
        },
    }


def _written(lake: Lake, table: TableRef, values: pa.Array, form: Format) -> tuple[NewFile, ...]:
    series = FileSeries(
        lake.table(table).content,
        load_folder(_WINDOW.key, "load"),
        "part",
        200_000,
        codec=form.codec,
        row_group_bytes=form.row_group_bytes,
    )
    for block in _blocks(values):
        series.add(block)
    series.close()
    return tuple(NewFile(f.path, f.bytes, f.rows, f.statistics) for f in series.written)


def _blocks(values: pa.Array) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(values), BLOCK_ROWS):
        part = values[start : start + BLOCK_ROWS]
        offsets = np.arange(start, start + len(part))
        topic_ids = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(part), "int32")), [_TOPIC_ID])
        columns = {
            "topic_id": topic_ids,
            "kafka_partition": pa.array(np.zeros(len(part), "int32")),
            "kafka_offset": pa.array(offsets),
            "kafka_timestamp": pa.array(1_767_225_600_000_000 + offsets * 1_000).cast(pa.timestamp("us", "UTC")),
            "kafka_timestamp_type": pa.array(np.zeros(len(part), "int32")),
            "key": pa.nulls(len(part), pa.binary()),
            "value": part,
            "headers": pa.nulls(len(part), SCHEMA.field("headers").type),
        }
        yield pa.RecordBatch.from_pydict(columns, SCHEMA)


Read = Callable[[int, int], int]
"""Function that reads the values from one offset (inclusive) to another (exclusive), and returns the number of values
that it read."""


def _readers(path: str, names: Sequence[str], spark: SparkSession) -> Mapping[str, tuple[Read, Callable[[], float]]]:
    def by_arrow(start: int, end: int) -> int:
        offset = pc.field("kafka_offset")
        found = DeltaTable(path).to_pyarrow_dataset().to_table(["value"], (offset >= start) & (offset < end))
        return int(found.num_rows - found["value"].null_count)

    files = [f"{path}/{name}" for name in names]

    def by_duckdb(start: int, end: int) -> int:
        query = (
            "SELECT count(*), sum(octet_length(value)) FROM read_parquet(?) WHERE kafka_offset >= ? AND "
            "kafka_offset < ?"
        )
        found = duckdb.execute(query, [files, start, end]).fetchone()
        assert found is not None
        return int(found[0])

    def by_spark(start: int, end: int) -> int:
        rows = spark.read.format("delta").load(path).where(f"kafka_offset >= {start} AND kafka_offset < {end}")
        found = rows.selectExpr("count(*)", "sum(octet_length(value))").first()
        assert found is not None
        return int(found[0])

    clock, processor = time.perf_counter, time.process_time
    return {"delta-rs": (by_arrow, processor), "DuckDB": (by_duckdb, processor), "Spark": (by_spark, clock)}


def _seconds(read: Callable[[], int], clock: Callable[[], float], rows: int) -> float:
    """Return the lowest of three timings, because other work on the machine has affected it least. Raises ValueError if
    a reader returns the wrong number of rows."""
    taken = []
    for _ in range(3):
        began = clock()
        found = read()
        taken.append(clock() - began)
        if found != rows:
            raise ValueError(f"{found} rows were read instead of {rows}")
    return min(taken)
