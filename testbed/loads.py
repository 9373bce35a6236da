"""One topic with its lake, for tests of loading: produce records, close a window, load it, and look at the result.

A window here has the records that were sent between two calls of `close_window`. Each edge is cut at the last stable
offset, at a time that the test chooses. Tables are read without Spark, and topics are read with a separate consumer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from deltalake import DeltaTable

from platform_assets.engines.choice import choose_engine
from platform_assets.engines.protocol import LoadEngine
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import load_log
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName, TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.windows.load import sealing
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.load.replacing import Loaded
from testbed.clients import client_settings, librdkafka

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

START = datetime(2026, 3, 1, tzinfo=UTC)
EVERY_MINUTE = "* * * * *"

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A record to send. `timestamp` is in ms; None means the producer's clock."""

    value: bytes | None = b"v"
    key: bytes | None = None
    partition: int = 0
    headers: Headers | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A record as a table or a consumer shows it. `timestamp` is in ms, and `timestamp_type` is the number that Kafka's
    tools use."""

    partition: int
    offset: int
    timestamp: int = field(compare=False)
    timestamp_type: int = field(compare=False)
    key: bytes | None = field(compare=False)
    value: bytes | None = field(compare=False)
    headers: Headers | None = field(compare=False)
    topic_id: str = field(compare=False, default="")
    window: str = field(compare=False, default="")

    @property
    def record(self) -> tuple[Any, ...]:
        """The fields that the record also has in Kafka."""
        return (
            self.partition, self.offset, self.timestamp, self.timestamp_type, self.key, self.value, self.headers,
        )  # fmt: skip

    @property
    def whole(self) -> tuple[Any, ...]:
        """All columns of the table."""
        return (*self.record, self.topic_id, self.window)


@dataclass
class TopicLake:
    """A topic on a real broker, and the lake into which it is loaded. The lake is at `address`, and its files are in
    the folder `root`."""

    bootstrap: str
    topic: str
    root: Path
    spark: Callable[[], SparkSession]
    records_per_file: int = 200_000
    closed: datetime = START
    start: datetime = START
    engine_name: EngineName = DEFAULT_ENGINE
    address: str = ""

    def __post_init__(self) -> None:
        self.closed = max(self.closed, self.start)
        self.settings = client_settings(self.bootstrap)
        self.cluster = Cluster.connect(self.settings)
        self.ledger = Ledger(self.lake)
        self.declaration = TopicDeclaration(
            self.topic, EVERY_MINUTE, self.start, records_per_file=self.records_per_file, engine=self.engine_name
        )

    @property
    def lake(self) -> Lake:
        """The lake of this topic."""
        return Lake.at(self.address or self.root)

    def declare(self, decode: DecodeDeclaration | None) -> None:
        """Decode the topic with this declaration from now on."""
        self.declaration = replace(self.declaration, decode=decode)

    @property
    def table(self) -> Path:
        """Folder of the raw table."""
        return self.root / "raw" / self.topic

    # --- the topic --------------------------------------------------------------------------------------------

    def send(self, records: Iterable[Record]) -> None:
        """Produce records, and wait until all of them are acknowledged."""
        producer = Producer({**librdkafka(self.bootstrap), "linger.ms": 20, "enable.idempotence": True})
        send(producer, self.topic, records)

    def open_transaction(self, records: Sequence[Record]) -> OpenTransaction:
        """Return an open transaction with `records`."""
        producer = Producer(
            {
                **librdkafka(self.bootstrap),
                "transactional.id": f"{self.topic}-{uuid.uuid4()}",
                "linger.ms": 5,
            }
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        send(producer, self.topic, records)
        return OpenTransaction(self, producer, frozenset(r.partition for r in records))

    def commit(self, records: Sequence[Record]) -> None:
        """Send `records` in one transaction and commit it."""
        self.open_transaction(records).end(commit=True)

    def abort(self, records: Sequence[Record]) -> None:
        """Send `records` in one transaction and abort it."""
        self.open_transaction(records).end(commit=False)

    def high_watermarks(self) -> dict[int, int]:
        """Return the end offset of each partition's log, including open transactions."""
        state = self.cluster.topic(self.topic)
        return {p: f.offset for p, f in self.cluster.high_watermarks(state).items()}

    def committed(self) -> list[Row]:
        """Return the records that a read_committed consumer reads from the start of the log to its end, sorted."""
        return committed(self.settings, self.topic)

    # --- windows ----------------------------------------------------------------------------------------------

    def close_window(self) -> str:
        """Advance the time by a minute, and cut at the last stable offset. Return the key of the closed window."""
        start = self.closed
        self.closed += timedelta(minutes=1)
        self.ledger.create()
        sealing.seal(self.declaration, self.cluster, self.ledger, self.closed, deadline=time.monotonic() + 30)
        window = self.ledger.windows(self.topic, start=start)[-1]
        assert window.window.end == self.closed
        return window.key

    def window_of(self, records: Iterable[Record]) -> str:
        """Send `records` and close the window that contains them. Return the window's key."""
        self.send(records)
        return self.close_window()

    @property
    def engine(self) -> LoadEngine:
        """The engine for loading and rereading, with the settings and the session of this lake."""
        return choose_engine(self.lake, lambda: self.settings, self.spark, self.engine_name)

    def loader(self, **changes: Any) -> Loader:
        """Return a loader whose clock shows the newest closed edge."""
        loader = Loader(self.declaration, self.cluster, self.ledger, self.engine, now=lambda: self.closed)
        return replace(loader, **changes) if changes else loader

    def load(self, key: str) -> Loaded:
        """Load one window."""
        return self.loader().load(key)

    # --- the lake ---------------------------------------------------------------------------------------------

    def rows(self, key: str | None = None) -> list[Row]:
        """Return the rows of one window, or of all windows, sorted."""
        return table_rows(self.ledger.lake.table(self.declaration.raw_table).uri, key)

    def version(self) -> int:
        """Return the version of the table."""
        return DeltaTable(self.ledger.lake.table(self.declaration.raw_table).uri).version()

    def orphans(self) -> list[Path]:
        """Return the data files in the table's folder to which the table's newest version does not refer."""
        # The log's own paths, which are percent-encoded once.
        paths = pa.table(DeltaTable(self.table).get_add_actions(flatten=True))["path"].to_pylist()
        named = {self.table / unquote(path) for path in paths}
        return sorted(set(self.table.rglob("*.parquet")) - named - set(self.table.glob("_delta_log/*")))

    def snapshot(self) -> Mapping[str, Any]:
        """Return everything that a refused load must not change: the table's version and rows, and every ledger
        entry."""
        found: dict[str, Any] = {}
        if load_log.exists(Folder.at(self.table)):
            found |= {"version": self.version(), "rows": [r.whole for r in self.rows()]}
        for ledger in ("cuts", "commits"):
            if load_log.exists(Folder.at(self.root / "_ledger" / ledger)):
                entries = DeltaTable(self.root / "_ledger" / ledger).to_pyarrow_table().to_pylist()
                found[ledger] = sorted(map(repr, entries))
        return found


@dataclass(frozen=True)
class OpenTransaction:
    """An open transaction that writes to `partitions`."""

    lake: TopicLake
    producer: Producer
    partitions: frozenset[int]

    def end(self, *, commit: bool) -> None:
        """Commit or abort the transaction, and wait for the markers, because the coordinator answers before it has
        written them."""
        before = self.lake.high_watermarks()
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)
        wait_until(
            "the markers are written",
            lambda: all(e > before[p] for p, e in self.lake.high_watermarks().items() if p in self.partitions),
        )


def send(producer: Producer, topic: str, records: Iterable[Record]) -> None:
    """Produce records with `producer`, and wait until all of them are acknowledged."""
    failures: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(error)

    for record in records:
        arguments: dict[str, Any] = {} if record.timestamp is None else {"timestamp": record.timestamp}
        if record.headers is not None:
            arguments["headers"] = list(record.headers)
        while True:
            try:
                producer.produce(topic, record.value, record.key, record.partition, on_delivery=delivered, **arguments)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    assert not failures, failures[0]


def committed(settings: ClientSettings, topic: str, *, headers: bool = True) -> list[Row]:
    """Return the records that a read_committed consumer reads from the start of the log to its end, sorted.

    If `headers` is false, rows have no headers, because this client cannot return header names that are not UTF-8.
    """
    consumer = Consumer(
        {
            **settings.librdkafka(),
            "group.id": "test-oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 32 << 20,
            "fetch.wait.max.ms": 20,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    waiting = set(partitions)
    found: list[Row] = []
    deadline = time.monotonic() + 120
    while waiting:
        assert time.monotonic() < deadline
        # `Consumer.consume` would wait for the last of its messages, even after the end of all partitions.
        first = consumer.poll(1.0)
        for message in [] if first is None else [first, *consumer.consume(num_messages=5000, timeout=0)]:
            error = message.error()
            if error is None:
                found.append(_row_of(message, headers=headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise AssertionError(error)
    consumer.close()
    return sorted(found)


def _row_of(message: Message, *, headers: bool) -> Row:
    kind, timestamp = message.timestamp()
    held = message.headers() if headers else None
    return Row(
        message.partition(),
        message.offset(),
        timestamp,
        # confluent-kafka numbers them 1 and 2, Kafka's own tools and Spark 0 and 1.
        kind - 1,
        message.key(),
        message.value(),
        None if held is None else tuple(held),
    )


def table_rows(table: Path | str, key: str | None = None) -> list[Row]:
    """Return the rows of a raw table, or of one window in the table, sorted. The table is read without Spark."""
    filters = None if key is None else [("window", "=", key)]
    found = DeltaTable(table).to_pyarrow_table(filters=filters)
    # Cast to a number, because Python's own dates end with the year 9999.
    moments = found["kafka_timestamp"].cast(pa.int64()).to_pylist()
    return sorted(
        Row(
            row["kafka_partition"],
            row["kafka_offset"],
            moment // 1000,
            row["kafka_timestamp_type"],
            row["key"],
            row["value"],
            None if row["headers"] is None else tuple((h["key"], h["value"]) for h in row["headers"]),
            row["topic_id"],
            row["window"],
        )
        for moment, row in zip(moments, found.drop_columns(["kafka_timestamp"]).to_pylist(), strict=True)
    )


def numbered(count: int, partitions: int = 1, stem: str = "v") -> list[Record]:
    """Return distinct records, spread over partitions."""
    return [Record(f"{stem}{i}".encode(), b"k%d" % (i % 7), i % partitions) for i in range(count)]


def records(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return the fields of `rows` that Kafka also has, to compare the table with the topic."""
    return [row.record for row in rows]


def whole(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return all columns of `rows`."""
    return [row.whole for row in rows]


def wait_until(what: str, condition: Callable[[], bool], seconds: float = 60) -> None:
    """Poll `condition` until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain until {what}"
        time.sleep(0.02)
