"""Random logs, each loaded by both engines. The digests must be equal, and every reader must find the same rows in the
tables.

A log has everything that Kafka can store: records of 0 bytes to several megabytes, every codec, transactions that
overlap, transactions that abort, headers with nulls and with names that are not UTF-8, timestamps of both types, and
compacted segments. The seed determines the order of events, the sizes and the cuts.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.ledger.entries import Receipt
from platform_assets.model.declaration import EngineName
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.raw_produce import produce_batch
from platform_assets_tests.support.readers import COLUMNS, in_order, readers
from testbed.loads import OpenTransaction, Record, Row, TopicLake, committed, records, send, wait_until

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

HEADER: Final = (
    "| seed | topic | records sent | rows | holes | windows | MB of values | largest | rows that readers compared | found |\n"
    "|--:|---|--:|--:|---|--:|--:|--:|--:|---|"
)
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_LARGEST: Final = 20 << 20
_STRANGE_NAMES: Final = (b"\xff\xfe", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xe0\x80\x80", "ü€".encode())
_NAMES: Final = ("", "a", "trace-id", "ü€😀", "x" * 40)
_TOGETHER: Final = 4
"""Maximum number of transactions that are open at the same time."""
_CLEANED: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "50"}
_KEPT: Final = {"cleanup.policy": "delete", "min.cleanable.dirty.ratio": "0.5", "segment.ms": "604800000"}
_LATEST: Final = 2**41
"""Exclusive upper bound of the timestamps of records, in ms. It is in the year 2039."""
_ENGINES: Final[tuple[EngineName, EngineName]] = ("columnar", "connector")


_READERS: Final = ("a read_committed consumer", "delta-rs", "polars", "DuckDB", "Spark")


@dataclass
class SeedResult:
    """The number of comparisons for one seed's log, and the differences found."""

    seed: int
    kind: str = ""
    sent: int = 0
    rows: int = 0
    holes: Counter[str] = field(default_factory=Counter)
    windows: int = 0
    value_bytes: int = 0
    largest: int = 0
    compared: int = 0
    anomalies: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the result as a row for a table with `HEADER`."""
        holes = ", ".join(f"{n:,} {kind.replace('_', ' ')}" for kind, n in sorted(self.holes.items())) or "none"
        return (
            f"| {self.seed} | {self.kind} | {self.sent:,} | {self.rows:,} | {holes} | {self.windows} | "
            f"{self.value_bytes / 1e6:.1f} | {self.largest:,} | {self.compared:,} | {'; '.join(self.anomalies) or 'nothing'} |"
        )


def summary(done: Sequence[SeedResult]) -> str:
    """Summarize `done` in one sentence."""
    if not done:
        return "no history was completed"
    seeds = ", ".join(str(found.seed) for found in done)
    different = sum(bool(found.anomalies) for found in done)
    return (
        f"{len(done)} histories, of seeds {seeds}: {sum(f.sent for f in done):,} records sent, {sum(f.rows for f in done):,} of them "
        f"committed and still present at the end, in {sum(f.windows for f in done)} windows; each loaded by the engines "
        f"{' and '.join(_ENGINES)}, {sum(f.compared for f in done):,} rows compared between {', '.join(_READERS)}; "
        f"{different or 'no'} histories with differences"
    )


def run(
    seed: int,
    bootstrap: str,
    connection: Callable[[], SparkSession],
    root: Path,
    size: int = 4_000,
    loaded: Callable[[Sequence[TopicLake]], None] = lambda lakes: None,
) -> SeedResult:
    """Create the log of a seed with about `size` records, and load the log with both engines, each into a separate lake
    below `root`.

    `loaded` is called with both lakes before they are compared.
    """
    rng, found = random.Random(seed), SeedResult(seed)
    lakes = [
        TopicLake(
            bootstrap, f"history-{seed}", root / engine, connection, rng.choice([200, 200_000]), engine_name=engine
        )
        for engine in _ENGINES
    ]
    log = _Log(rng, lakes[0], found)
    log.make(size)
    for other in lakes[1:]:
        # Both lakes use the same windows: a cut depends on the moment at which it is taken.
        shutil.copytree(lakes[0].root / "_ledger", other.root / "_ledger")
    keys = [w.key for w in lakes[0].ledger.windows(lakes[0].topic)]
    for lk in lakes:
        for key in rng.sample(keys, len(keys)):
            lk.load(key)
    loaded(lakes)
    _compare_digests(lakes, keys, found)
    _compare_evidence(lakes[0], found)
    _compare_rows(lakes, found, headers=not log.strange_names)
    for lk, engine in zip(lakes, reversed(_ENGINES), strict=True):
        by_other = replace(lk, engine_name=engine)
        for key in rng.sample(keys, min(3, len(keys))):
            outcome = by_other.load(key).outcome
            if outcome not in ("unchanged", "empty"):
                found.anomalies.append(f"{key}, loaded by {lk.engine_name} and again by {engine}: {outcome}")
    return found


class _Log:
    """A topic that is filled at random, using `rng`."""

    def __init__(self, rng: random.Random, lake: TopicLake, found: SeedResult) -> None:
        self.rng, self.lake, self.found = rng, lake, found
        self.partitions = rng.randint(1, 4)
        self.strange_names = rng.random() < 0.4
        """True if some header names are not UTF-8. The client with which rows are compared cannot return such names."""
        self._compacted = rng.random() < 0.4
        self._by_append_time = rng.random() < 0.3
        self._codec = rng.choice(("producer", *("uncompressed", *_CODECS[1:])))
        self._admin = AdminClient({"bootstrap.servers": lake.bootstrap, "log_level": 2})
        self._open: list[OpenTransaction] = []
        kinds = [f"{self.partitions} partitions", f"codec {self._codec}"]
        kinds += ["append time"] * self._by_append_time + ["compacted"] * self._compacted
        found.kind = ", ".join(kinds + ["names that are not UTF-8"] * self.strange_names)

    def make(self, size: int) -> None:
        """Create the topic, fill it, and close its windows. After this, nothing changes the topic."""
        self._create()
        deeds: list[Callable[[], None]] = [
            *[self._burst] * 6, *[self._begin] * 4, *[self._end] * 4, *[self._handmade] * 3, self._large, *[self._close] * 3,
        ]  # fmt: skip
        while self.found.sent < size:
            self.rng.choice(deeds)()
        while self._open:
            self._end()
        self._burst()
        if self._compacted:
            self._compact()
        self._close()

    def _create(self) -> None:
        config = {
            "retention.ms": "-1",
            "max.message.bytes": str(_LARGEST + (1 << 20)),
            "compression.type": self._codec,
            "message.timestamp.type": "LogAppendTime" if self._by_append_time else "CreateTime",
            "message.timestamp.after.max.ms": str(2**63 - 1),
            "segment.bytes": str(self.rng.choice([24 << 20, 1 << 30])),
        }
        new = NewTopic(self.lake.topic, self.partitions, 1, config=config)
        self._admin.create_topics([new])[self.lake.topic].result(30)
        # A partition is known to have a leader once it has accepted a record.
        self._send(self._producer(), [Record(b"first", b"first", p) for p in range(self.partitions)])

    # --- events ------------------------------------------------------------------------------------------------

    def _burst(self) -> None:
        """Send records with a plain producer, with a random codec and batch size."""
        self._send(self._producer(), self._some(self.rng.choice([1, 5, 50, 400])))

    def _begin(self) -> None:
        """Begin a transaction that stays open while other things happen."""
        if len(self._open) < _TOGETHER:
            some = self._some(self.rng.choice([1, 40, 300]))
            self._count(some)
            self._open.append(self.lake.open_transaction(some))

    def _end(self) -> None:
        if self._open:
            self._open.pop(self.rng.randrange(len(self._open))).end(commit=self.rng.random() < 0.6)

    def _handmade(self) -> None:
        """Send a batch in a form that librdkafka does not produce, but other clients may."""
        names = _STRANGE_NAMES if self.strange_names else [n.encode() for n in _NAMES]
        made = []
        for number in range(self.rng.randint(1, 6)):
            headers = tuple((self.rng.choice(names), self._bytes(20)) for _ in range(self.rng.randint(0, 3)))
            moment = self.rng.choice([-1, 0, 1, self.rng.randrange(_LATEST)])
            made.append(Made(number, self._key(), self._bytes(60), headers, moment))
        partition = self.rng.randrange(self.partitions)
        # Brokers reject the framing that the test library uses for lz4 and snappy.
        batch = made_batch(made, codec=self.rng.choice(("none", "gzip", "zstd")))
        produce_batch(self.lake.bootstrap, self.lake.topic, batch, partition)
        self._count([Record(m.value, partition=partition) for m in made])

    def _large(self) -> None:
        """In some calls, send a record of several megabytes, which exceeds the broker's fetch size."""
        if self.rng.random() < 0.3:
            value = self.rng.randbytes(self.rng.choice([1 << 20, 5 << 20, _LARGEST]))
            self._send(self._producer(), [Record(value, b"large", self.rng.randrange(self.partitions))])

    def _close(self) -> None:
        self.lake.close_window()
        self.found.windows += 1

    # --- records ----------------------------------------------------------------------------------------------

    def _some(self, count: int) -> list[Record]:
        return [
            Record(
                self._bytes(self.rng.choice([10, 200, 3_000])),
                self._key(),
                self.rng.randrange(self.partitions),
                self._headers(),
                self.rng.choice([None, None, 1, self.rng.randrange(_LATEST)]),
            )
            for _ in range(count)
        ]

    def _headers(self) -> tuple[tuple[str, bytes | None], ...] | None:
        count = self.rng.choice([0, 0, 0, 1, 4])
        return tuple((self.rng.choice(_NAMES), self._bytes(30)) for _ in range(count)) or None

    def _key(self) -> bytes | None:
        """Return a random key. For a compacted topic, choose among a few keys, because such topics reject records
        without a key."""
        if self._compacted:
            return b"k%d" % self.rng.randrange(50)
        return self._bytes(20)

    def _bytes(self, longest: int) -> bytes | None:
        kind = self.rng.random()
        if kind < 0.1:
            return None
        if kind < 0.2:
            return b""
        return (
            self.rng.randbytes(self.rng.randint(0, longest))
            if kind < 0.6
            else b"ab" * self.rng.randint(0, longest // 2)
        )

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.lake.bootstrap,
                "compression.type": self.rng.choice(_CODECS),
                "linger.ms": self.rng.choice([0, 20]),
                "batch.num.messages": self.rng.choice([1, 7, 1_000]),
                "enable.idempotence": self.rng.random() < 0.5,
                "message.max.bytes": _LARGEST + (1 << 20),
            }
        )

    def _send(self, producer: Producer, some: Sequence[Record]) -> None:
        self._count(some)
        send(producer, self.lake.topic, some)

    def _count(self, some: Iterable[Record]) -> None:
        sizes = [len(r.value or b"") for r in some]
        self.found.sent += len(sizes)
        self.found.value_bytes += sum(sizes)
        self.found.largest = max(self.found.largest, *sizes)

    # --- compaction -------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        """Compact the topic to one record per key, then wait until the log cleaner is idle."""
        made = {(r.partition, r.offset) for r in self._held()}
        self._configure(_CLEANED)
        moments = itertools.count(_LATEST, 1_000)

        def thinned() -> bool:
            # Create a newer segment, since the active one is never compacted. The broker rolls by record timestamps: it
            # starts a segment at a record that is `segment.ms` later than the first of the segment, which may be far in
            # the future.
            moment = next(moments)
            newer = [Record(b"newer", b"newest", p, timestamp=moment) for p in range(self.partitions)]
            self._send(self._producer(), newer)
            keys = [(r.partition, r.key) for r in self._held() if (r.partition, r.offset) in made]
            return len(keys) == len(set(keys))

        wait_until("the log is compacted", thinned, 300)
        self._configure(_KEPT)
        held: list[int] = [-1]

        def still() -> bool:
            held.append(len(self._held()))
            time.sleep(1.5)  # longer than the cleaner's back-off, so it has not started again
            return held[-1] == held[-2]

        wait_until("the cleaner has ended", still, 120)

    def _held(self) -> list[Row]:
        return committed(self.lake.settings, self.lake.topic, headers=not self.strange_names)

    def _configure(self, config: dict[str, str]) -> None:
        entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in config.items()]
        resource = ConfigResource(ResourceType.TOPIC, self.lake.topic, incremental_configs=entries)
        for future in self._admin.incremental_alter_configs([resource]).values():
            future.result(30)


def _digests(receipt: Receipt) -> tuple[int, int, object]:
    return receipt.offsets_digest, receipt.content_digest, {p: r.rows for p, r in receipt.partitions.items()}


def _compare_digests(lakes: Sequence[TopicLake], keys: Sequence[str], found: SeedResult) -> None:
    """Compare both engines' receipts for each window: the number of rows, the digest of the offsets, and the digest of
    the content."""
    table = TableRef.raw(lakes[0].topic)
    first, *others = ({k: r for k, r in lk.ledger.receipts(table).items() if k in keys} for lk in lakes)
    for other in others:
        if first.keys() != other.keys():
            found.anomalies.append(f"windows loaded: {sorted(first)} and {sorted(other)}")
        found.anomalies += [
            f"digests of {key} differ" for key in first if key in other and _digests(first[key]) != _digests(other[key])
        ]
    # Readers cannot select windows without offsets.
    wrong = {r.engine for r in first.values() if r.engine} - {lakes[0].engine_name}
    found.anomalies += [f"{lakes[0].engine_name} was requested, but {wrong} loaded"] if wrong else []


def _compare_evidence(lk: TopicLake, found: SeedResult) -> None:
    """Check that rows and explained holes together cover every offset of each window, according to the batch reader."""
    compacted = "compacted" in found.kind
    for receipt in lk.ledger.receipts(TableRef.raw(lk.topic)).values():
        evidence = gather_evidence(
            lk.settings,
            lk.topic,
            receipt.topic_id,
            receipt.ranges,
            compacted=compacted,
            deadline=time.monotonic() + 120,
        )
        found.holes.update(evidence.holes)
        if evidence.unexplained or evidence.records != receipt.rows:
            found.anomalies.append(
                f"{receipt.window.key}: {receipt.rows} rows, {evidence.records} records, "
                f"unexplained {evidence.unexplained[:5]}"
            )


def _compare_rows(lakes: Sequence[TopicLake], found: SeedResult, *, headers: bool) -> None:
    """Compare the records that a read_committed consumer gets with the rows that each reader finds in each table."""
    expected = committed(lakes[0].settings, lakes[0].topic, headers=headers)
    found.rows = len(expected)
    digests: dict[str, bytes] = {}
    for lk in lakes:
        rows = lk.rows()
        held = rows if headers else [replace(r, headers=None) for r in rows]
        found.compared += len(held)
        if records(held) != records(expected):
            found.anomalies.append(f"rows loaded by {lk.engine_name} differ from those that a consumer reads")
        for name, read in readers(lk.spark()).items():
            by_offset = in_order(read(str(lk.table), lk.version()))
            found.compared += len(by_offset)
            digests[f"{lk.engine_name} by {name}"] = _digest(by_offset)
    if len(set(digests.values())) != 1:
        found.anomalies.append(f"readers disagree: { {n: d.hex()[:8] for n, d in digests.items()} }")


def _digest(rows: Iterable[tuple[Any, ...]]) -> bytes:
    """Return a digest of all rows in order. It covers the window keys and all other columns."""
    found = hashlib.sha256(repr(COLUMNS).encode())
    for row in rows:
        found.update(repr(row).encode())
    return found.digest()
