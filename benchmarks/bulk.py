"""A range of records, read and loaded in all available ways: by the platform, by Spark as shipped, and by reads without
a load."""

from __future__ import annotations

import os
import shutil
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.engines.choice import choose_engine
from platform_assets.engines.connector import raw
from platform_assets.engines.protocol import Records
from platform_assets.engines.shared.session import connect
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import EngineName
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

PARTITIONS = 2
VALUE_BYTES = 172
RECORDS_PER_FILE = 200_000
PUBLISHED_MIB_PER_CORE = 5.0
"""Throughput per core that the documentation of Redpanda's Iceberg topics recommends as a planning figure."""
WINDOW = Window(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=1))

TUNED = "Structured Streaming availableNow, its client and session tuned as ours"
LOAD = "load by the connector engine"
COLUMNAR = "load by the columnar engine"
BARE = "the same frame by Spark's own Delta writer, without digests"
STREAMING = "Structured Streaming availableNow to Delta, as shipped"
READ = "connector's read alone (noop sink)"
EVIDENCE = "evidence audit"
CONSUMER = "confluent-kafka consumer, poll in batches"


@dataclass(frozen=True)
class Bulk:
    """A topic with `records` records, and several ways to process all of them once."""

    bootstrap: str
    spark: SparkSession
    root: Path
    records: int
    topic: str
    topic_id: str
    ranges: TopicRanges

    @classmethod
    def produced(
        cls,
        bootstrap: str,
        spark: SparkSession,
        root: Path,
        records: int,
        *,
        at: datetime | None = None,
        size: int = VALUE_BYTES,
        partitions: int = PARTITIONS,
    ) -> Bulk:
        """Make a topic and fill its partitions evenly. Values are `size` random bytes, and nearly all of them differ.
        Keys have 8 bytes.

        Each record's timestamp is `at`; without `at`, the producer sets it.
        """
        stamp = 0 if at is None else round(at.timestamp() * 1000)
        topic = f"bulk-{uuid.uuid4().hex[:8]}"
        create(bootstrap, [topic], partitions)
        noise = os.urandom((4 << 20) + size)

        def sent(number: int) -> Sent:
            offset = number * 7_919 % (4 << 20)
            value = noise[offset : offset + size]
            return Sent(topic, number % partitions, value, number.to_bytes(8, "big"), stamp)

        produce(bootstrap, map(sent, range(records)))
        return cls.of(bootstrap, spark, root, records, topic)

    @classmethod
    def of(cls, bootstrap: str, spark: SparkSession, root: Path, records: int, topic: str) -> Bulk:
        """Return the complete range of a topic that has `records` committed records."""
        cluster = Cluster.connect(ClientSettings(bootstrap))
        state = cluster.topic(topic)
        ends = cluster.last_stable_offsets(state)
        ranges = TopicRanges({p: OffsetRange(0, f.offset) for p, f in ends.items()})
        return cls(bootstrap, spark, root, records, topic, state.topic_id, ranges)

    def contenders(self) -> Mapping[str, Callable[[], object]]:
        """Map a name to each way of reading the records. Each way reads all records, and fails if any record is
        missing."""
        return {
            LOAD: self.load,
            COLUMNAR: lambda: self.load("columnar"),
            BARE: self.load_bare,
            STREAMING: self.stream,
            TUNED: lambda: self.stream(tuned=True),
            READ: lambda: self._frame().write.format("noop").mode("overwrite").save(),
            EVIDENCE: self.evidence,
            CONSUMER: self.consume,
        }

    def load(self, name: EngineName = "connector") -> Lake:
        """Load as the platform does, with files, digests and one commit. Return the lake, which contains nothing else."""
        lake, metadata = self._new_lake(), self._metadata()
        commit = WindowCommit(lake, self._table)
        records = Records(
            self.topic,
            self.topic_id,
            WINDOW.key,
            self.ranges,
            window_column=commit.is_flat,
            field_ids=commit.field_ids(),
        )
        engine = choose_engine(lake, lambda: ClientSettings(self.bootstrap), lambda: self.spark, name)
        written = engine.write(records, self._table, metadata.load_id, RECORDS_PER_FILE)
        commit.replace(metadata, written.files)
        _all(written.measured.rows, self.records)
        return lake

    def clear(self) -> None:
        """Delete everything that was written. If too much data were waiting to be written to the disk, the kernel would
        slow writers down."""
        shutil.rmtree(self.root, ignore_errors=True)

    def load_bare(self) -> None:
        """Write the same frame into the same kind of table with Spark's own Delta writer, which also commits but
        computes no digests."""
        table = self._new_lake().table(self._table)
        (
            self._frame()
            .write.format("delta")
            .mode("overwrite")
            .option("replaceWhere", f"window = '{WINDOW.key}'")
            .option("userMetadata", self._metadata().to_json())
            .save(str(table))
        )

    def stream(
        self,
        *,
        tuned: bool = False,
        options: Mapping[str, str] = MappingProxyType({}),
        made: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> None:
        """Stream Kafka's columns into a Delta table. If `made` is given, stream the columns that it returns for them
        instead. The source has its default options or, with `tuned`, a client tuned like the platform's. `options` are
        added to these."""
        folder = self.root / f"stream-{uuid.uuid4().hex[:8]}"
        frame = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .options(**(raw.client_options(self.ranges) if tuned else {}))
            .options(**options)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            made(frame)
            .writeStream.format("delta")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(folder / "table"))
        )
        query.awaitTermination()
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))

    def evidence(self) -> None:
        """Account for every offset, check CRCs, and compute the digest of the offsets."""
        found = gather_evidence(
            ClientSettings(self.bootstrap), self.topic, self.topic_id, self.ranges, compacted=False,
            deadline=time.monotonic() + 600,
        )  # fmt: skip
        _all(found.records, self.records)

    def consume(self) -> None:
        """Read all records as a plain consumer in Python does."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "bench", "enable.auto.commit": False,
             "isolation.level": "read_committed"}
        )  # fmt: skip
        consumer.assign([TopicPartition(self.topic, p, 0) for p in self.ranges.by_partition])
        seen = 0
        while seen < self.records:
            seen += sum(m.error() is None for m in consumer.consume(10_000, timeout=1.0))
        consumer.close()
        _all(seen, self.records)

    def _frame(self) -> DataFrame:
        java = ClientSettings(self.bootstrap).java()
        return raw.kafka_frame(self.spark, java, self.topic, self.topic_id, WINDOW.key, [self.ranges])

    @property
    def _table(self) -> TableRef:
        return TableRef.raw(self.topic)

    def _new_lake(self) -> Lake:
        lake = Lake.at(self.root / f"lake-{uuid.uuid4().hex[:8]}")
        raw_table.create(lake.table(self._table), self.topic)
        return lake

    def _metadata(self) -> LoadMetadata:
        return LoadMetadata(
            self.topic, self.topic_id, 1, WINDOW, self.ranges, load_id=str(uuid.uuid4()), run_id="bench"
        )


def as_shipped(remote: str) -> SparkSession:
    """Return a session without the settings that the platform gives its own sessions."""
    from pyspark.sql import SparkSession as Builder

    session: SparkSession = Builder.builder.remote(remote).create()
    return session


def run(bench: Bench) -> Measured:
    """Measure the throughput for one large window, and compare it with that of its peers and of reads without a load."""
    records, rounds = bench.pick(3_000_000, 300_000), bench.pick(5, 3)
    bench.report(f"producing {records:,} records")
    scenario = Bulk.produced(bench.bootstrap, connect(bench.remote), bench.root / "bulk", records)
    shipped = replace(scenario, spark=as_shipped(bench.remote))
    contenders = {**scenario.contenders(), STREAMING: shipped.stream}
    seconds = alternate(contenders, rounds, bench.report, scenario.clear)
    cores = os.cpu_count() or 1
    per_core = [records * VALUE_BYTES / s / cores / (1 << 20) / PUBLISHED_MIB_PER_CORE for s in seconds[COLUMNAR]]
    goals = [
        at_least(f"{COLUMNAR}, speed relative to: {other}", bound, ratio(seconds[other], seconds[COLUMNAR]))
        for other, bound in ((STREAMING, 5.0), (TUNED, 4.0), (READ, 1.3))
    ]
    goals.append(
        at_least(f"{COLUMNAR}, MiB/s per core, relative to {PUBLISHED_MIB_PER_CORE:g} MiB/s", 30, middle(per_core))
    )
    goals.append(
        at_least(f"evidence audit, speed relative to {COLUMNAR}", 2.0, ratio(seconds[COLUMNAR], seconds[EVIDENCE]))
    )
    setting = {"records": records, "bytes a record": VALUE_BYTES, "partitions": PARTITIONS, "cores": cores}
    rates = {name: round(records / statistics.median(s)) for name, s in seconds.items()}
    return Measured("bulk", seconds, goals, setting=setting, more={"records per second": rates})


def _all(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} records instead of {expected}: the measurement is invalid")
