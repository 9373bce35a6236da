"""Rows of a decoded table published to a Kafka topic, exactly once, compared with plain producers that already have the
keys and values in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from deltalake import CommitProperties, write_deltalake

from benchmarks.decoding import SPEC
from benchmarks.file_formats import kinds
from benchmarks.producing import create
from benchmarks.rounds import WARM_UP, alternate, middle, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.decoding.formats import decoder_of
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import decoded_table
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.publishing import HEADER, Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.publishing import Publisher
from testbed import samples
from testbed.loads import wait_until

PUBLISHED: Final = "PublishedTopic: reads the table, makes JSON, headers and transactions"
UNNAMED: Final = "PublishedTopic, identity: progress"
PLAIN: Final = "confluent-kafka, idempotent: the same keys and values from memory"
HEADERS: Final = "confluent-kafka, idempotent: also the same headers"
WINDOW_ROWS: Final = 100_000
PARTITIONS: Final = 2
_TABLE: Final = TableRef("decoded", "flights")


@dataclass
class Contest:
    """A lake whose decoded table has `rows` flights in windows of `WINDOW_ROWS`, and ways to send all of them to a new
    topic."""

    bootstrap: str
    root: Path
    rows: int
    topics: list[str] = field(default_factory=list)
    keys: Sequence[bytes] = ()
    values: Sequence[bytes] = ()

    def make(self, sends: int) -> None:
        """Make the lake, the keys and values that plain producers send, and topics for this many sends."""
        # A few values of the data set are broken on purpose.
        lines, decoder = kinds(self.rows + 100)["flights as JSON"], decoder_of(SPEC)
        flights = pa.Table.from_batches([decoder.decode(lines).columns])
        is_row = pc.is_valid(flights["row"])
        lines, flights = lines.filter(is_row)[: self.rows], flights.filter(is_row)[: self.rows]
        schema = decoded_table.prepare(
            Lake.at(self.root).table(_TABLE), "flights", decoded_table.columns(None, decoder.fields), None
        )
        ends = [dict.fromkeys(range(PARTITIONS), at // PARTITIONS) for at in range(0, self.rows + 1, WINDOW_ROWS)]
        ledger = Ledger(Lake.at(self.root))
        for number, window in enumerate(samples.recorded(self.root, "flights", ends)):
            rows = _placed(flights.slice(number * WINDOW_ROWS, WINDOW_ROWS), window, schema)
            version = _commit(self.root, rows, window)
            ledger.record_receipts([samples.receipt(window, version=version, load_id=window.key, table=_TABLE)])
        self.keys = [str(row).encode() for row in flights["row"].to_pylist()]
        self.values = [line.as_py() for line in lines]
        self.topics = [f"published-{uuid.uuid4().hex[:8]}" for _ in range(sends)]
        create(self.bootstrap, self.topics, PARTITIONS)
        cluster = Cluster.connect(ClientSettings(self.bootstrap))
        wait_until("the topics are known", lambda: set(self.topics) <= set(cluster.topics()))

    def publish(self, **given: Any) -> None:
        """Publish the table."""
        declared = PublishDeclaration(self.topics.pop(), _TABLE, Part("text", ("row",)), **given)
        cluster = Cluster.connect(ClientSettings(self.bootstrap))
        done = Publisher(declared, Ledger(Lake.at(self.root)), cluster).run()
        _complete(done.records, self.rows)

    def send(self, *, headers: bool) -> None:
        """Send the same records with a producer that has the client's own settings, but waits longer for batches."""
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 20,
             "queue.buffering.max.messages": 1_000_000, "partitioner": "murmur2_random"}
        )  # fmt: skip
        topic, failed = self.topics.pop(), list[Any]()
        named = self._identities() if headers else repeat(None)
        for key, value, name in zip(self.keys, self.values, named):  # noqa: B905 - `repeat` has no end
            while True:
                try:
                    if name is None:
                        producer.produce(topic, value, key)
                    else:
                        producer.produce(topic, value, key, headers=[(HEADER, name)])
                    break
                except BufferError:
                    producer.poll(0.1)
        _complete(self.rows - producer.flush(120) - len(failed), self.rows)

    def _identities(self) -> Iterator[bytes]:
        for number in range(self.rows):
            yield b"decoded/flights 2026-01-01-00:00 %d row %d %d 2026-01-01-00:00" % (
                number % WINDOW_ROWS, number % PARTITIONS, number // PARTITIONS,
            )  # fmt: skip


def _complete(found: int, wanted: int) -> None:
    if found != wanted:
        raise RuntimeError(f"{found:,} of {wanted:,} records were sent: the measurement is invalid")


def _placed(rows: pa.Table, window: SealedWindow, schema: pa.Schema) -> pa.Table:
    """Return rows with the table's columns; they alternate between the partitions."""
    count = rows.num_rows
    each = np.arange(count, dtype=np.int64)
    first = next(iter(window.ranges.items()))[1].start
    given = {name: rows[name] for name in rows.column_names} | {
        "topic_id": pa.array([window.topic_id] * count),
        "kafka_partition": pa.array((each % PARTITIONS).astype(np.int32)),
        "kafka_offset": pa.array(each // PARTITIONS + first),
        "kafka_timestamp": pa.array([samples.START] * count, pa.timestamp("us", "UTC")),
        "window": pa.array([window.key] * count),
        decoded_table.TOMBSTONE: pa.array([False] * count),
    }
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=pa.schema([f.remove_metadata() for f in schema]))


def _commit(root: Path, rows: pa.Table, window: SealedWindow) -> int:
    folder: Folder = Lake.at(root).table(_TABLE)
    metadata = LoadMetadata(
        window.topic, window.topic_id, window.generation, window.window, window.ranges, window.key, run_id="bench"
    )
    properties = CommitProperties(custom_metadata={"userMetadata": metadata.to_json()})
    write_deltalake(str(root / _TABLE.kind / _TABLE.topic), rows, mode="append", commit_properties=properties)
    return folder.delta().version()


def run(bench: Bench) -> Measured:
    """Measure the seconds for all rows of the table."""
    rows, rounds = bench.pick(1_000_000, WINDOW_ROWS), bench.pick(5, 3)
    contest = Contest(bench.bootstrap, bench.root / "lake", rows)
    contest.make(4 * (rounds + WARM_UP))
    contenders: dict[str, Callable[[], object]] = {
        PUBLISHED: contest.publish,
        UNNAMED: lambda: contest.publish(identity="progress"),
        PLAIN: lambda: contest.send(headers=False),
        HEADERS: lambda: contest.send(headers=True),
    }
    seconds = alternate(contenders, rounds, bench.report)
    goals = [
        at_least(f"{UNNAMED}, speed relative to {PLAIN}", 0.7, ratio(seconds[PLAIN], seconds[UNNAMED])),
        at_least(f"PublishedTopic, speed relative to {HEADERS}", 0.7, ratio(seconds[HEADERS], seconds[PUBLISHED])),
    ]
    setting = {"rows": rows, "bytes a value": round(sum(map(len, contest.values)) / rows), "partitions": PARTITIONS}
    rates = {name: round(rows / middle(s)[0]) for name, s in seconds.items()}
    return Measured("publishing", seconds, goals, setting=setting, more={"records per second": rates})
