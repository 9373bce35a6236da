"""From events in Kafka, and from decoded rows, to the current row of each key: the platform compared with Structured
Streaming, whose `foreachBatch` merges each batch into a Delta table."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.bulk import as_shipped
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import alternate, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.engines.choice import choose_engine, decode_engine
from platform_assets.engines.shared.session import connect
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets.windows.decode.decoding_many import decode_many
from platform_assets.windows.load import sealing
from platform_assets.windows.load.catching_up import load_many
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.state.folding import TopicState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 2
PLATFORM: Final = "platform: raw, decoded rows, changes and state"
CHANGES: Final = "of these, changes and folds: decoded rows to the state"
FOLDS: Final = "of these, the folds"
MERGES: Final = "Structured Streaming as shipped, foreachBatch with MERGE INTO: Kafka to the state alone"
MERGES_ROWS: Final = "Structured Streaming as shipped, foreachBatch with MERGE INTO: decoded rows to the state"
_VALUE: Final = "id BIGINT NOT NULL, status STRING, amount BIGINT"
_KEY: Final = "id BIGINT NOT NULL"
_STATE: Final = StateDeclaration(("id",))
_DELETED_OF: Final = 20
"""One in so many events is a tombstone."""
_HOUR: Final = timedelta(hours=1)


@dataclass
class Contest:
    """A topic with `events` events of `keys` keys, evenly spread over `windows` hours, and the ways to its state. The events of a
    key are in one partition. `changes` and `folds` have the seconds of each run of the platform for changes with folds, and
    for folds alone. `kept` is the folder of a lake whose decoded table has all windows."""

    bootstrap: str
    remote: str
    root: Path
    events: int
    keys: int
    windows: int
    kept: Path
    changes: list[float] = field(default_factory=list)
    folds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topic = f"orders-{uuid.uuid4().hex[:8]}"
        now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
        self.start = now - self.windows * _HOUR
        self.declaration = TopicDeclaration(
            self.topic,
            "0 * * * *",
            self.start,
            decode=DecodeDeclaration(FormatSpec("json", {"schema": _VALUE}), FormatSpec("json", {"schema": _KEY})),
            state=_STATE,
        )
        rng = np.random.default_rng(1)
        self._ids: npt.NDArray[np.int64] = rng.integers(0, self.keys, self.events)
        self._dies = rng.integers(0, _DELETED_OF, self.events) == 0

    def produce(self) -> None:
        """Produce the events, and decode them into the lake in `kept`."""
        create(self.bootstrap, [self.topic], PARTITIONS)
        produce(self.bootstrap, self._sent())
        self._decoded(Lake.at(self.kept))

    def _sent(self) -> Iterator[Sent]:
        first, step = self.start.timestamp() * 1000, _HOUR.total_seconds() * 1000 * self.windows / self.events
        for number, (id_, dies) in enumerate(zip(self._ids.tolist(), self._dies.tolist(), strict=True)):
            value = b"" if dies else b'{"id": %d, "status": "status %012d", "amount": %d}' % (id_, number, number)
            yield Sent(self.topic, id_ % PARTITIONS, value or None, b'{"id": %d}' % id_, int(first + number * step))

    @cached_property
    def expected(self) -> pl.DataFrame:
        """The rows that the state has to have, by what was produced."""
        last = np.zeros(self.keys, np.int64) - 1
        last[self._ids] = np.arange(self.events)
        lives = (last >= 0) & ~self._dies[last]
        status = [f"status {number:012}" for number in last[lives].tolist()]
        return pl.DataFrame({"id": np.flatnonzero(lives), "status": status, "amount": last[lives]})

    def platform(self) -> None:
        """Load and decode the windows as one run does, make their changes, and fold them when the sensor would, with all other
        windows under way."""
        lake = Lake.at(self.root / f"lake-{uuid.uuid4().hex[:8]}")
        ledger, keys = self._decoded(lake)
        started, folds = time.perf_counter(), 0.0
        changer, state = WindowChanger(self.declaration, ledger), TopicState(self.topic, _STATE, lake)
        for at, key in enumerate(keys, start=1):
            changer.make(key)
            began = time.perf_counter()
            pending = state.pending()
            if pending.is_due and not pending.awaits_more(self.windows - at):
                state.fold()
            folds += time.perf_counter() - began
        began = time.perf_counter()
        if state.pending().windows:
            state.fold()
        ended = time.perf_counter()
        self.folds.append(folds + ended - began)
        self.changes.append(ended - started)
        self._check(Path(str(state.live_folder)))

    def _decoded(self, lake: Lake) -> tuple[Ledger, list[str]]:
        """Load and decode all windows. Return the ledger, and the windows in order."""
        settings = ClientSettings(self.bootstrap)
        ledger, cluster, spark = Ledger(lake), Cluster.connect(settings), partial(connect, self.remote)
        ledger.create()
        sealing.seal(self.declaration, cluster, ledger, datetime.now(UTC), deadline=time.monotonic() + 60)
        keys = [sealed.window.key for sealed in ledger.windows(self.topic)[: self.windows]]
        if len(keys) < self.windows:
            raise RuntimeError(f"{len(keys)} of {self.windows} windows: the measurement is invalid")
        loader = Loader(self.declaration, cluster, ledger, choose_engine(lake, lambda: settings, spark, "columnar"))
        decoder = WindowDecoder(self.declaration, ledger, decode_engine(lake, spark))
        for outcomes in (load_many(loader, keys), decode_many(decoder, keys)):
            for _, outcome in outcomes:
                if isinstance(outcome, PlatformError):
                    raise outcome
        return ledger, keys

    def merges(self) -> None:
        """Merge batches of as many events as a window has, read from Kafka."""
        spark = as_shipped(self.remote)
        events = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.events // self.windows)
            .load()
        )
        self._merge(spark, events, _OF_EVENTS)

    def merges_rows(self) -> None:
        """Merge batches of as many files as a window has, read from a decoded table in the order of its commits."""
        spark, table = as_shipped(self.remote), Lake.at(self.kept).table(self.declaration.decoded_table)
        files = len(table.delta().file_uris())
        rows = (
            spark.readStream.format("delta")
            .option("startingVersion", 0)
            .option("maxFilesPerTrigger", files // self.windows)
            .load(str(table))
        )
        self._merge(spark, rows, _OF_ROWS)

    def _merge(self, spark: SparkSession, records: DataFrame, last: str) -> None:
        folder = self.root / f"merged-{uuid.uuid4().hex[:8]}"
        table = folder / "table"
        spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, status STRING, amount BIGINT) USING delta")
        statement = _MERGE.format(table=table, last=last)

        # It runs in a process of Spark's server, which has no module of this project.
        def merge(batch: Any, number: int) -> None:
            batch.createOrReplaceTempView("batch")
            batch.sparkSession.sql(statement)

        query = (
            records.writeStream.foreachBatch(merge)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        if query.exception() is not None:
            raise RuntimeError(str(query.exception()))
        self._check(table)

    def _check(self, table: Path) -> None:
        found = pl.scan_delta(str(table)).select("id", "status", "amount").sort("id").collect()
        if not found.equals(self.expected):
            raise RuntimeError(f"{table}: {len(found):,} rows are not those that were produced")

    def clear(self) -> None:
        """Delete everything that was written."""
        shutil.rmtree(self.root, ignore_errors=True)


_OF_EVENTS: Final = """
  SELECT event.id, body.status, body.amount, dies
  FROM (
    SELECT from_json(CAST(key AS STRING), 'id BIGINT') AS event,
      from_json(CAST(value AS STRING), 'id BIGINT, status STRING, amount BIGINT') AS body,
      value IS NULL AS dies,
      row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS place
    FROM batch
  ) WHERE place = 1
"""
_OF_ROWS: Final = """
  SELECT id, status, amount, dies
  FROM (
    SELECT key.id, status, amount, tombstone AS dies,
      row_number() OVER (PARTITION BY key.id ORDER BY kafka_offset DESC) AS place
    FROM batch
  ) WHERE place = 1
"""
_MERGE: Final = """
MERGE INTO delta.`{table}` AS old
USING ({last}) AS new
ON old.id = new.id
WHEN MATCHED AND new.dies THEN DELETE
WHEN MATCHED THEN UPDATE SET status = new.status, amount = new.amount
WHEN NOT MATCHED AND NOT new.dies THEN INSERT (id, status, amount) VALUES (new.id, new.status, new.amount)
"""


def run(bench: Bench) -> Measured:
    """Measure the seconds from events in Kafka to a state of all of them."""
    events, keys, windows = bench.pick(10_000_000, 400_000), bench.pick(1_000_000, 50_000), bench.pick(20, 4)
    contest = Contest(bench.bootstrap, bench.remote, bench.root / "contest", events, keys, windows, bench.root / "kept")
    bench.report(f"producing {events:,} events")
    contest.produce()
    rounds = 2
    contenders = {PLATFORM: contest.platform, MERGES: contest.merges, MERGES_ROWS: contest.merges_rows}
    # A run takes minutes, so what the servers compile in its first seconds does not matter.
    seconds = alternate(contenders, rounds, bench.report, contest.clear, warm_up=0)
    found = {**seconds, CHANGES: tuple(contest.changes[-rounds:]), FOLDS: tuple(contest.folds[-rounds:])}
    goals = [
        at_least(f"{MERGES}, relative to the platform", 5.0, ratio(found[MERGES], found[PLATFORM])),
        at_least(f"{MERGES_ROWS}, relative to changes and folds", 5.0, ratio(found[MERGES_ROWS], found[CHANGES])),
    ]
    return Measured("state-stream", found, goals, setting={"events": events, "keys": keys, "windows": windows})
