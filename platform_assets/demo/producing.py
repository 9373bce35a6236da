"""Streams the demo's rows into its topics, each row once, however often it is interrupted and started again.

What is still to send is found out from the broker: the row numbers that the topic's committed records lack. `flights`
goes through a transactional producer, whose stable transactional id shuts out a former process and has its open
transaction aborted before the topic is read. `weather` and `planes` go through idempotent producers, which have no such
fence: what a killed process had handed to its connection the broker takes within milliseconds, long before the next
process has come as far as reading the topic; and `state.exclusive_demo` keeps two processes apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from platform_assets.demo.dataset import SOURCES, Dataset, TopicName, load
from platform_assets.demo.outlet import Outlet, TransactionAbortedError
from platform_assets.demo.schedule import Rows, Schedule, Transaction, missing_rows, transactions
from platform_assets.demo.topic_log import await_decided, create_topics, scan, whole_log
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings

TRANSACTIONAL_IDS: Final[dict[TopicName, str]] = {"flights": "platform-assets-demo-flights"}
"""The topics that are sent in transactions, and the transactional id of each."""

SEED: Final = 2013
ATTEMPTS: Final = 5
"""How often a transaction that the broker made abort is sent, the first time included."""

_PIECE: Final = 5_000
_STEP_SECONDS: Final = 0.05

OnSent = Callable[[TopicName, int], None]
"""Told a topic and how many more of its rows are committed."""


class Pace:
    """Lets rows through at an even rate.

    Args:
        rows: how many there are.
        seconds: over how long they are spread; 0 lets all through at once.
        stop: once set, nothing more is let through.
    """

    def __init__(self, rows: int, seconds: float, stop: threading.Event) -> None:
        self._rows, self._seconds, self._stop = rows, seconds, stop
        self._passed = 0
        self._started = time.monotonic()

    def take(self, wanted: int) -> int:
        """Wait until rows are due and return how many of `wanted` may go now; 0 once stopped."""
        while not self._stop.is_set():
            if due := min(wanted, self._due() - self._passed):
                self._passed += due
                return due
            self._stop.wait(max(_STEP_SECONDS, self._seconds / self._rows))
        return 0

    def _due(self) -> int:
        if self._seconds <= 0:
            return self._rows
        elapsed = time.monotonic() - self._started
        return max(self._passed, min(self._rows, int(elapsed / self._seconds * self._rows) + 1))


@dataclass(frozen=True, slots=True)
class TopicStream:
    """One topic's producer and the rows that its topic lacked when this process started.

    Attributes:
        outlet: where rows go.
        dataset: all rows.
        schedule: when each of them happened.
        missing: numbers of the rows that were not committed, ascending.
    """

    outlet: Outlet
    dataset: Dataset
    schedule: Schedule
    missing: Rows

    @property
    def backlog(self) -> Rows:
        """The missing rows that had happened when the demo first started."""
        return self.missing[self.missing < self.schedule.backlog]

    @property
    def live(self) -> Rows:
        """The missing rows that happen while the demo runs."""
        return self.missing[self.missing >= self.schedule.backlog]


class Streams:
    """The demo's three topics: created, compared with the data, and sent what they lack.

    Open it with `open_streams`. `stop`, once set from any thread, ends sending soon and leaves every topic consistent:
    what was sent is acknowledged, the open transaction is aborted.
    """

    def __init__(
        self, streams: Iterable[TopicStream], cluster: Cluster, stop: threading.Event, on_sent: OnSent
    ) -> None:
        self._streams = tuple(streams)
        self._cluster = cluster
        self._stop = stop
        self._on_sent = on_sent

    @property
    def missing(self) -> dict[TopicName, int]:
        """How many rows each topic lacked when the streams were opened."""
        return {stream.dataset.topic: len(stream.missing) for stream in self._streams}

    def send_backlog(self) -> None:
        """Send, as fast as it goes, the missing rows that had happened when the demo first started."""
        self._each(lambda stream: self._send(stream, stream.backlog, live_seconds=None))

    def send_live(self, seconds: float) -> None:
        """Send the other missing rows, timestamped as they are sent.

        Args:
            seconds: how long a topic's whole live part takes; what is left of it takes its share of that.
        """

        def send(stream: TopicStream) -> None:
            whole = len(stream.dataset) - stream.schedule.backlog
            self._send(stream, stream.live, live_seconds=seconds * len(stream.live) / max(whole, 1))

        self._each(send)

    def _send(self, stream: TopicStream, rows: Rows, live_seconds: float | None) -> None:
        pace = Pace(len(rows), live_seconds or 0.0, self._stop)
        backlog = live_seconds is None
        if stream.dataset.topic in TRANSACTIONAL_IDS:
            for transaction in transactions(rows, SEED):
                if self._stop.is_set() or not self._send_transaction(stream, transaction, pace, backlog=backlog):
                    break
            await_decided(self._cluster, stream.dataset.topic)
        else:
            for piece in _pieces(rows, pace):
                _hand_over(stream, piece, backlog=backlog)
                stream.outlet.settle()
                self._on_sent(stream.dataset.topic, len(piece))

    def _send_transaction(self, stream: TopicStream, transaction: Transaction, pace: Pace, *, backlog: bool) -> bool:
        for _ in range(transaction.aborted):
            stream.outlet.begin()
            _hand_over(stream, transaction.rows, backlog=backlog)
            stream.outlet.abort(after_sending=True)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                stream.outlet.begin()
                sent = 0
                for piece in _pieces(transaction.rows, pace):
                    _hand_over(stream, piece, backlog=backlog)
                    sent += len(piece)
                if sent < len(transaction.rows):
                    stream.outlet.abort(after_sending=True)
                    return False
                stream.outlet.commit()
            except TransactionAbortedError:
                stream.outlet.abort(after_sending=False)
                if attempt == ATTEMPTS:
                    raise
                # Its rows were due already.
                pace = Pace(len(transaction.rows), 0.0, self._stop)
            else:
                break
        self._on_sent(stream.dataset.topic, len(transaction.rows))
        return True

    def _each(self, act: Callable[[TopicStream], None]) -> None:
        """Run `act` for every topic at once; the first error stops the others and is raised."""
        with ThreadPoolExecutor(len(self._streams), thread_name_prefix="demo-stream") as pool:
            futures = [pool.submit(act, stream) for stream in self._streams]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                if any(future.done() and future.exception() for future in futures):
                    self._stop.set()
            except BaseException:
                # Ctrl-C: the threads end by themselves soon, and the pool waits for them.
                self._stop.set()
                raise
        for future in futures:
            future.result()


@contextmanager
def open_streams(
    client: ClientSettings,
    start: datetime,
    *,
    stop: threading.Event,
    on_sent: OnSent = lambda topic, rows: None,
    datasets: Iterable[Dataset] | None = None,
) -> Iterator[Streams]:
    """Create absent topics, shut out a former process, and find out what the topics lack.

    Args:
        client: how to reach the broker.
        start: when the demo first started, aware.
        stop: see `Streams`.
        on_sent: called with the rows that the topics hold already, then with those that are committed; called from several
            threads.
        datasets: what the topics are to hold; all of the demo's data by default.

    Raises:
        BrokerUnreachableError, BrokerRefusedError: from the broker.
        ConfigurationError: the data is not installed, or a topic holds somebody else's records.
    """
    create_topics(client)
    opened: list[TopicStream] = []
    try:
        for dataset in datasets or map(load, SOURCES):
            opened.append(_open(client, dataset, start))
            on_sent(dataset.topic, len(dataset) - len(opened[-1].missing))
        yield Streams(opened, Cluster.connect(client), stop, on_sent)
    finally:
        for stream in opened:
            stream.outlet.close()


def _open(client: ClientSettings, dataset: Dataset, start: datetime) -> TopicStream:
    topic = dataset.topic
    # In this order: once the id is taken over, the topic holds nothing undecided of a former process.
    outlet = Outlet(client, dataset, TRANSACTIONAL_IDS.get(topic))
    try:
        log = scan(client, topic, whole_log(Cluster.connect(client), topic))
        if len(log) and (beyond := int(log.rows.max())) >= len(dataset):
            raise ConfigurationError(
                f"topic {topic!r} holds row {beyond:,}, and the data has {len(dataset):,} rows: the topic was filled "
                "from other data. Delete it, or give the demo another broker."
            )
        return TopicStream(outlet, dataset, Schedule(start, len(dataset)), missing_rows(len(dataset), log.rows))
    except BaseException:
        outlet.close()
        raise


def _pieces(rows: Rows, pace: Pace) -> Iterator[Rows]:
    sent = 0
    while sent < len(rows) and (due := pace.take(min(len(rows) - sent, _PIECE))):
        yield rows[sent : sent + due]
        sent += due


def _hand_over(stream: TopicStream, rows: Rows, *, backlog: bool) -> None:
    stream.outlet.send(rows, stream.schedule.timestamps(rows) if backlog else None)
