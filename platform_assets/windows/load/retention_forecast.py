"""Retention forecast of a table: how far the table lags behind its topic's log, what holds it back, and when retention
will overtake it.

The forecast neither loads nor decides anything. Facts that the brokers do not report, or do not report to this client,
are listed as unknown and left out of the forecast.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.ledger import decisions, position
from platform_assets.ledger.entries import RecordedCut
from platform_assets.ledger.store import Ledger
from platform_assets.model import offsets
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.retention import Forecast, PartitionLog, Retention, forecast

if TYPE_CHECKING:
    from platform_assets.kafka.batches.observing import ObservingBrokers, OpenTransaction

_RATE_OVER: Final = timedelta(hours=1)
"""Maximum age, relative to the newest cut, of the cut from which the rate is measured."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionForecast:
    """Forecast of one partition. `loaded`, `stable` and `end` are exclusive ends of offsets; None if the brokers do not
    report them. `loaded` is the end of the range that is loaded without gaps, `stable` that of the committed or aborted
    records, and `end` that of the replicated records, including open transactions. `forecast` is None if it could not
    be made."""

    partition: int
    loaded: int
    stable: int | None
    end: int | None
    forecast: Forecast | None

    @property
    def lag(self) -> int | None:
        """Number of offsets that could already be sealed or loaded, but are not loaded."""
        return None if self.stable is None else offsets.lag(self.stable, self.loaded)

    @property
    def held_back(self) -> int:
        """Number of offsets that wait for a transaction to end."""
        return 0 if self.stable is None or self.end is None else offsets.lag(self.end, self.stable)


@dataclass(frozen=True, slots=True)
class RetentionForecast:
    """All partitions of a topic, ascending, and the open transactions in those partitions that have offsets held back.

    `retention` is None if the brokers do not report it. `unknown` lists the facts that could not be determined, and the
    reasons.
    """

    topic: str
    partitions: tuple[PartitionForecast, ...]
    transactions: tuple[OpenTransaction, ...]
    retention: Retention | None
    unknown: tuple[str, ...]

    @property
    def hours(self) -> float | None:
        """Hours until retention may overtake the first offset that is not loaded; None if retention is not expected to
        overtake it."""
        found = (p.forecast.hours for p in self.partitions if p.forecast is not None)
        return min((h for h in found if h is not None), default=None)

    def held_back_by(self, transaction: OpenTransaction) -> int:
        """Return the number of offsets that wait for this transaction in its partition, including the transaction's
        own."""
        ends = {p.partition: p.end for p in self.partitions}
        end = ends.get(transaction.partition)
        return 0 if end is None else offsets.lag(end, transaction.start)


def look(
    declaration: TopicDeclaration, ledger: Ledger, cluster: Cluster, now: datetime | None = None
) -> RetentionForecast:
    """Query the brokers for the lag and the retention of the topic's raw table, within the cluster's deadline.

    Ages are relative to `now`, by default the time of the call. Raises whatever describing a topic, listing its offsets
    and reading the ledger raise.
    """
    topic = declaration.topic
    state = cluster.topic(topic)
    stable = {p: f.offset for p, f in cluster.last_stable_offsets(state).items()}
    # Requested after the other offsets, so that these are not lower.
    ends = {p: f.offset for p, f in cluster.high_watermarks(state).items()}
    starts = {p: f.offset for p, f in cluster.log_starts(state).items()}
    now = now or datetime.now(UTC)
    # Nothing loads a parked window, so its loss causes no warning.
    parked = decisions.parking(ledger.lake, declaration.raw_table).parked
    reached = position.loaded_to(ledger, declaration.raw_table, parked)
    unknown: list[str] = []
    if reached is not None and (reached.topic_id != state.topic_id or not reached.is_of_cluster(state.cluster_id)):
        # A log other than the ledger's, which cutting and loading refuse: its offsets do not correspond to the loaded
        # ones.
        reached = None
    # Nothing was cut yet, so the first cut will be at the log start.
    loaded = dict(starts) if reached is None else {p: reached.cut.offsets.get(p, 0) for p in state.partitions}
    retention = _attempt(unknown, "retention", lambda: Retention.of_config(cluster.topic_config(topic)))
    rates = {} if reached is None else _rates(ledger, reached, ends, now)
    transactions: tuple[OpenTransaction, ...] = ()
    forecasts: dict[int, Forecast] = {}
    with _observing(cluster, state) as brokers:
        held_back = [p for p, end in ends.items() if end > stable.get(p, end)]
        if held_back:
            found = _attempt(unknown, "open transactions", lambda: brokers.open_transactions(held_back))
            transactions = tuple(found or ())
        if retention is not None:
            logs = _logs(brokers, retention, loaded, starts, ends, rates, unknown)
            forecasts = {p: forecast(log, retention, now) for p, log in logs.items()}
    partitions = tuple(
        PartitionForecast(p, loaded.get(p, 0), stable.get(p), ends.get(p), forecasts.get(p)) for p in state.partitions
    )
    return RetentionForecast(topic, partitions, transactions, retention, tuple(unknown))


def _logs(
    brokers: ObservingBrokers,
    retention: Retention,
    loaded: Mapping[int, int],
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    rates: Mapping[int, float],
    unknown: list[str],
) -> dict[int, PartitionLog]:
    """Return the facts for the forecast of each partition. Only partitions with waiting offsets are queried."""
    known = [p for p in ends if p in starts and p in loaded]
    waiting = [p for p in known if max(loaded[p], starts[p]) < ends[p] and loaded[p] >= starts[p]]
    sizes: Mapping[int, int] = {}
    if retention.size is not None and waiting:
        sizes = _attempt(unknown, "log sizes", lambda: brokers.sizes(waiting)) or {}
        if not sizes:
            unknown.append(
                "log sizes: the brokers report none, for example because this client has no "
                "permission to describe the cluster"
            )
    stamps: dict[int, datetime] = {}
    if retention.time is not None:
        stamps = _attempt(unknown, "age of records", lambda: _stamps(brokers, waiting, loaded)) or {}
    return {p: PartitionLog(starts[p], ends[p], loaded[p], stamps.get(p), sizes.get(p), rates.get(p)) for p in known}


def _stamps(brokers: ObservingBrokers, waiting: Sequence[int], loaded: Mapping[int, int]) -> dict[int, datetime]:
    """Return, by partition, the highest timestamp of the batch that contains the first offset that is not loaded."""
    stamps = {p: brokers.newest_timestamp(p, loaded[p]) for p in waiting}
    return {
        p: datetime.fromtimestamp(stamp / 1000, UTC)
        for p, stamp in stamps.items()
        if stamp is not None and 0 <= stamp < _FAR_MS
    }


def _rates(ledger: Ledger, reached: RecordedCut, ends: Mapping[int, int], now: datetime) -> dict[int, float]:
    """Return the number of new offsets per second, by partition, since the first cut in the hour before the newest cut."""
    newest = ledger.newest_cut(reached.topic)
    assert newest is not None
    cuts = ledger.cuts(newest.topic, newest.edge - _RATE_OVER, newest.edge)
    first = next(cut for cut in cuts if cut.generation == newest.generation)
    seconds = (now - first.edge).total_seconds()
    if seconds <= 0:
        return {}
    return {p: max(end - first.cut.offsets.get(p, 0), 0) / seconds for p, end in ends.items()}


@contextmanager
def _observing(cluster: Cluster, state: TopicState) -> Iterator[ObservingBrokers]:
    # A second Kafka client that is slow to import; only commands that need this load it.
    from platform_assets.kafka.batches.observing import ObservingBrokers

    deadline = time.monotonic() + cluster.timeout if cluster.deadline is None else cluster.deadline
    brokers = ObservingBrokers(
        cluster.settings,
        state.name,
        state.topic_id,
        patience=cluster.timeout,
        stopped=lambda: time.monotonic() >= deadline,
    )
    try:
        yield brokers
    finally:
        brokers.close()


def _attempt(unknown: list[str], what: str, call: Callable[[], T]) -> T | None:
    """Return the result of `call`; None if the brokers do not report it. Then `what` and the reason are added to
    `unknown`."""
    from platform_assets.kafka.batches.wire import Stopped

    try:
        return call()
    except PlatformError as e:
        unknown.append(f"{what}: {e}")
    except Stopped:
        unknown.append(f"{what}: the brokers did not answer in time")
    return None


_FAR_MS: Final = 253_402_300_800_000
"""Start of the year 10,000, beyond the range of Python's dates."""
