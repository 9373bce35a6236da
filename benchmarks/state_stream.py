"""From events in Kafka to the current row of each key: the platform compared with Structured Streaming, whose `foreachBatch`
merges each batch into a Delta table."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.bulk import as_shipped
from benchmarks.producing import Sent, create, produce
from benchmarks.rounds import alternate, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.engines.choice import choose_engine, decode_engine
from platform_assets.engines.shared.session import connect
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.change.changing import WindowChanger
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets.windows.load import sealing
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.state.folding import TopicState

PARTITIONS: Final = 2
PLATFORM: Final = "platform: raw, decoded rows, changes and state"
FOLDS: Final = "of these, the folds"
MERGES: Final = "Structured Streaming as shipped, foreachBatch with MERGE INTO: the state alone"
_VALUE: Final = "id BIGINT NOT NULL, status STRING, amount BIGINT"
_KEY: Final = "id BIGINT NOT NULL"
_STATE: Final = StateDeclaration(("id",))
_DELETED_OF: Final = 20
"""One in so many events is a tombstone."""
_HOUR: Final = timedelta(hours=1)


@dataclass
class Contest:
    """A topic with `events` events of `keys` keys, evenly spread over `windows` hours, and two ways to its state. The events of a key
    are in one partition. `folds` has the seconds that each run of the platform spent in folds."""

    bootstrap: str
    remote: str
    root: Path
    events: int
    keys: int
    windows: int
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
        """Produce the events."""
        create(self.bootstrap, [self.topic], PARTITIONS)
        produce(self.bootstrap, self._sent())

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
        """Load each window, decode it, make its changes, and fold them when the sensor would, with all other windows under way."""
        lake = Lake.at(self.root / f"lake-{uuid.uuid4().hex[:8]}")
        settings = ClientSettings(self.bootstrap)
        ledger, cluster, spark = Ledger(lake), Cluster.connect(settings), partial(connect, self.remote)
        ledger.create()
        sealing.seal(self.declaration, cluster, ledger, datetime.now(UTC), deadline=time.monotonic() + 60)
        sealed = ledger.windows(self.topic)
        if len(sealed) < self.windows:
            raise RuntimeError(f"{len(sealed)} of {self.windows} windows: the measurement is invalid")
        loader = Loader(self.declaration, cluster, ledger, choose_engine(lake, lambda: settings, spark, "columnar"))
        decoder = WindowDecoder(self.declaration, ledger, decode_engine(lake, spark))
        changer = WindowChanger(self.declaration, ledger)
        state = TopicState(self.topic, _STATE, lake)
        folds = 0.0
        for at, window in enumerate(sealed[: self.windows], start=1):
            loader.load(window.window.key)
            decoder.decode(window.window.key)
            changer.make(window.window.key)
            began = time.perf_counter()
            pending = state.pending()
            if pending.is_due and not pending.awaits_more(self.windows - at):
                state.fold()
            folds += time.perf_counter() - began
        began = time.perf_counter()
        if state.pending().windows:
            state.fold()
        self.folds.append(folds + time.perf_counter() - began)
        self._check(Path(str(state.live_folder)))

    def merges(self) -> None:
        """Merge batches of as many events as a window has."""
        folder = self.root / f"merged-{uuid.uuid4().hex[:8]}"
        table, spark = folder / "table", as_shipped(self.remote)
        spark.sql(f"CREATE TABLE delta.`{table}` (id BIGINT, status STRING, amount BIGINT) USING delta")
        statement = _MERGE.format(table=table)

        # It runs in a process of Spark's server, which has no module of this project.
        def merge(batch: Any, number: int) -> None:
            batch.createOrReplaceTempView("batch")
            batch.sparkSession.sql(statement)

        query = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", self.events // self.windows)
            .load()
            .writeStream.foreachBatch(merge)
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


_MERGE: Final = """
MERGE INTO delta.`{table}` AS old
USING (
  SELECT event.id, body.status, body.amount, dies
  FROM (
    SELECT from_json(CAST(key AS STRING), 'id BIGINT') AS event,
      from_json(CAST(value AS STRING), 'id BIGINT, status STRING, amount BIGINT') AS body,
      value IS NULL AS dies,
      row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS place
    FROM batch
  ) WHERE place = 1
) AS new
ON old.id = new.id
WHEN MATCHED AND new.dies THEN DELETE
WHEN MATCHED THEN UPDATE SET status = new.status, amount = new.amount
WHEN NOT MATCHED AND NOT new.dies THEN INSERT (id, status, amount) VALUES (new.id, new.status, new.amount)
"""


def run(bench: Bench) -> Measured:
    """Measure the seconds from events in Kafka to a state of all of them."""
    events, keys, windows = bench.pick(10_000_000, 400_000), bench.pick(1_000_000, 50_000), bench.pick(20, 4)
    contest = Contest(bench.bootstrap, bench.remote, bench.root / "contest", events, keys, windows)
    bench.report(f"producing {events:,} events")
    contest.produce()
    rounds = 2
    contenders = {PLATFORM: contest.platform, MERGES: contest.merges}
    seconds = alternate(contenders, rounds, bench.report, contest.clear, warm_up=1)
    found = {**seconds, FOLDS: tuple(contest.folds[-rounds:])}
    goals = [at_least(f"{MERGES}, relative to the platform", 5.0, ratio(found[MERGES], found[PLATFORM]))]
    return Measured("state-stream", found, goals, setting={"events": events, "keys": keys, "windows": windows})
