"""From JSON in Kafka to typed rows: the platform's two hops compared with Structured Streaming and `from_json`, and
each hop compared with its peer."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from benchmarks.bulk import RECORDS_PER_FILE, WINDOW, Bulk, as_shipped
from benchmarks.file_formats import kinds
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.choice import decode_engine
from platform_assets.engines.decoding.engine import DecodeOrder
from platform_assets.engines.shared.session import connect
from platform_assets.lake import dead_letter_table, decoded_table, load_log
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMA: Final = (
    "row BIGINT, year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
SPEC: Final = FormatSpec("json", {"schema": SCHEMA})
BOTH: Final = "raw and decoded tables, both hops"
STREAMING: Final = "Structured Streaming availableNow with from_json, one table"
HOP: Final = "decode hop alone"
FROM_JSON: Final = "Spark's from_json over the raw table"
BROKEN: Final = "decode hop alone, one record in 20 broken"
BROKEN_EVERY: Final = 20
KAFKA_DELTA_INGEST_RECORDS: Final = 34_000
"""Number of records per second that kafka-delta-ingest loaded from a topic of JSON flights into a decoded table, on one
core of a machine like this one."""


@dataclass(frozen=True)
class Typed:
    """A topic with values in the format `spec`, and ways to turn the topic's records into typed rows.

    `lake` contains the topic's raw table.
    """

    bulk: Bulk
    lake: Lake
    spec: FormatSpec

    @property
    def topic(self) -> str:
        """The topic that contains the records."""
        return self.bulk.topic

    def both(self) -> None:
        """Load and decode into a new lake, as one run of the platform does."""
        here = replace(self, lake=self.bulk.load("columnar"))
        here.decode()

    def decode(self) -> None:
        """Run the decode hop, with files, digests and a commit for both tables. Every record must be in one of the two
        tables."""
        declared = DecodeDeclaration(self.spec)
        rows, letters = TableRef("decoded", self.topic), TableRef("dead_letters", self.topic)
        columns = decoded_table.columns(None, decoder_of(declared.value).fields)
        layout = decoded_table.prepare(self.lake.table(rows), self.topic, columns, None)
        dead_letter_table.create(self.lake.table(letters), self.topic)
        commits = WindowCommit(self.lake, letters), WindowCommit(self.lake, rows)
        metadata = LoadMetadata(
            self.topic, self.bulk.topic_id, 1, WINDOW, self.bulk.ranges, load_id=str(uuid.uuid4()), run_id="bench"
        )
        order = DecodeOrder(
            topic=self.topic,
            window=WINDOW.key,
            version=load_log.version(self.lake.table(TableRef.raw(self.topic))),
            ranges=self.bulk.ranges,
            declaration=declared,
            layout=layout,
            dead_layout=dead_letter_table.columns(),
            load_id=metadata.load_id,
            records_per_file=RECORDS_PER_FILE,
            window_columns=(commits[1].is_flat, commits[0].is_flat),
            field_ids=(commits[1].field_ids(), commits[0].field_ids()),
        )
        made = decode_engine(self.lake, lambda: self.bulk.spark).decode(order)
        for commit, written in zip(commits, (made.dead_letters, made.decoded), strict=True):
            commit.replace(metadata, written.files)
        found = made.decoded.measured.rows + made.dead_letters.measured.rows
        if found != self.bulk.records:
            raise RuntimeError(
                f"{found:,} rows and dead letters from {self.bulk.records:,} records: the measurement is invalid"
            )

    def by_spark(self, typed: Callable[..., DataFrame]) -> None:
        """Decode with Spark's own parser into a Delta table. `typed` returns the columns to write."""
        raw = self.bulk.spark.read.format("delta").load(self.lake.table(TableRef.raw(self.topic)).spark_path)
        frame = typed(raw, "kafka_partition", "kafka_offset", "kafka_timestamp")
        frame.write.format("delta").save(str(self.bulk.root / f"by-spark-{uuid.uuid4().hex[:8]}"))

    def stream(self) -> None:
        """Stream from Kafka to one table of typed rows, which is a common setup."""
        self.bulk.stream(made=lambda frame: _typed(frame, "partition", "offset", "timestamp"))


def _typed(frame: DataFrame, *kept: str) -> DataFrame:
    """Return the columns to keep, and the typed columns. Spark turns unreadable values into nulls."""
    from pyspark.sql import functions as F

    value: Column = F.from_json(F.col("value").cast("string"), SCHEMA)
    return frame.select(*kept, value.alias("value")).select(*kept, "value.*")


def run(bench: Bench) -> Measured:
    """Measure the seconds for all records of one window."""
    records, rounds = bench.pick(2_000_000, 200_000), bench.pick(5, 3)
    values = kinds(records)["flights as JSON"]
    good = made(bench, values, "good", SPEC)
    broken = made(bench, _broken(values), "broken", SPEC)
    shipped = replace(good, bulk=replace(good.bulk, spark=as_shipped(bench.remote)))
    contenders: dict[str, Callable[[], object]] = {
        BOTH: good.both,
        STREAMING: shipped.stream,
        HOP: good.decode,
        FROM_JSON: lambda: shipped.by_spark(_typed),
        BROKEN: broken.decode,
    }
    seconds = alternate(contenders, rounds, bench.report, good.bulk.clear)
    cores = os.cpu_count() or 1
    per_core = [records / s / cores / KAFKA_DELTA_INGEST_RECORDS for s in seconds[HOP]]
    goals = [
        at_least(f"{BOTH}, speed relative to {STREAMING}", 4.0, ratio(seconds[STREAMING], seconds[BOTH])),
        at_least(f"{HOP}, speed relative to {FROM_JSON}", 6.0, ratio(seconds[FROM_JSON], seconds[HOP])),
        at_least(f"{HOP}, records/s per core, relative to kafka-delta-ingest's 34,000", 10.0, middle(per_core)),
        at_least(f"{BROKEN}, speed relative to unbroken records", 0.5, ratio(seconds[HOP], seconds[BROKEN])),
    ]
    setting = {"records": records, "bytes a record": round(values.nbytes / len(values)), "cores": cores}
    rates = {name: round(records / middle(s)[0]) for name, s in seconds.items()}
    return Measured("decoding", seconds, goals, setting=setting, more={"records per second": rates})


def made(bench: Bench, values: pa.Array, name: str, spec: FormatSpec) -> Typed:
    """Make a topic with `values`, and a lake into which these values are loaded."""
    bench.report(f"producing {len(values):,} records: {name}")
    topic = f"typed-{name}-{uuid.uuid4().hex[:8]}"
    create(bench.bootstrap, [topic], 2)
    produce(bench.bootstrap, (Sent(topic, n % 2, v.as_py(), n.to_bytes(8, "big")) for n, v in enumerate(values)))
    bulk = Bulk.of(bench.bootstrap, connect(bench.remote), bench.root / "typed", len(values), topic)
    # Not in the folder that is cleared after each round.
    return Typed(bulk, replace(bulk, root=bench.root / f"kept-{name}").load("columnar"), spec)


def _broken(values: pa.Array) -> pa.Array:
    """Return the values, with one out of every `BROKEN_EVERY` values truncated."""
    return pa.array(
        [v[: len(v) // 2] if n % BROKEN_EVERY == 0 else v for n, v in enumerate(values.to_pylist())], pa.binary()
    )
