"""Streams the demo's rows into its topics, each row once, however often the demo is interrupted and started again.

The rows that remain to be sent are those whose numbers are missing from the topic's committed records. `flights` uses a
transactional producer. Its transactional id never changes, so it fences an earlier process and aborts that process's
open transaction before the topic is read. `weather` and `planes` use idempotent producers, which cannot fence an
earlier process. If an earlier process was killed, the broker takes only milliseconds to accept the data that the
process sent, which is long before the next process reads the topic. In addition, `state.exclusive_demo` prevents two
processes from running at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from platform_assets.demo.dataset import PACKAGE, SOURCES, Dataset, TopicName, load
from platform_assets.demo.schedule import Rows, Schedule, Transaction, missing_rows, transactions
from platform_assets.demo.topic_log import CALL_SECONDS, await_decided, create_topics, scan, translated, whole_log
from platform_assets.errors import BrokerUnreachableError, ConfigurationError, PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.logs import logger

_log = logger(__name__)

_PRODUCER_SETTINGS: Final = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    "linger.ms": 20,
    "batch.size": 1_000_000,
    # As the Java client places keys, so that both find a key in the same partition.
    "partitioner": "murmur2_random",
    "queue.buffering.max.messages": 200_000,
    "delivery.report.only.error": True,
}


class TransactionAbortedError(PlatformError):
    """The transaction must be aborted and sent again; the next attempt does this."""


class Outlet:
    """Sends rows of a dataset to the dataset's topic, and reports when the rows are in the topic.

    With a transactional id, rows are sent between `begin` and `commit` or `abort`. When the outlet is created, it
    fences every previous holder of the id, and waits until any transaction left open by a previous holder is aborted.
    Without a transactional id, `flush` waits for the sent rows: each row is in the topic once, but an earlier process
    cannot be fenced.
    """

    def __init__(self, client: ClientSettings, dataset: Dataset, transactional_id: str | None) -> None:
        self._dataset = dataset
        self._headers = SOURCES[dataset.topic].headers
        self._failures: list[KafkaError] = []
        self._broken = False
        settings: dict[str, Any] = {
            **client.librdkafka(),
            **_PRODUCER_SETTINGS,
            "on_delivery": self._delivered,
            # With an error callback, the client raises a fatal error from any call that serves its events.
            "error_cb": _noticed,
        }
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        self._producer = Producer(settings, logger=_log)
        if transactional_id is not None:
            self._call("taking over the transactional id", lambda: self._producer.init_transactions(CALL_SECONDS))

    def begin(self) -> None:
        """Begin a transaction."""
        self._call("beginning a transaction", self._producer.begin_transaction)

    def send(self, rows: Rows, timestamps: Rows | None) -> None:
        """Hand rows to the producer, each with its timestamp in ms; if a timestamp is None, the current time is used."""
        values = _taken(self._dataset.values, rows)
        keys: Sequence[bytes | None] = (
            [None] * len(rows) if self._dataset.keys is None else _taken(self._dataset.keys, rows)
        )
        # 0 makes the client use the current time.
        stamps: Sequence[int] = [0] * len(rows) if timestamps is None else timestamps.tolist()
        for row, value, key, stamp in zip(rows.tolist(), values, keys, stamps, strict=True):
            headers = [("source", PACKAGE.encode()), ("row", str(row).encode())] if self._headers else None
            self._produce(value, key, stamp, headers)
        self._poll(0)

    def commit(self) -> None:
        """Commit the transaction. When this call returns, the transaction's rows are in the topic.

        Raises:
            TransactionAbortedError: the broker requires an abort. Abort the transaction, and send its rows again.
            BrokerUnreachableError: the broker did not answer in time. The next start of the demo finds out whether the
                transaction is committed.
        """
        self._call("committing a transaction", lambda: self._producer.commit_transaction(CALL_SECONDS))

    def abort(self, *, after_sending: bool) -> None:
        """Abort the transaction. With `after_sending`, first wait until the transaction's records are in the log, where
        consumers do not see them.

        Omit `after_sending` for a transaction that the broker requires to be aborted. The coordinator refuses to abort
        a transaction that it does not know yet (INVALID_TXN_STATE), for example if the previous transaction has just
        been committed and nothing from this transaction was sent.
        """
        if after_sending:
            self._flush()
        self._call("aborting a transaction", lambda: self._producer.abort_transaction(CALL_SECONDS))
        self._failures.clear()

    def flush(self) -> None:
        """Wait until all sent rows are in the topic.

        Raises:
            BrokerUnreachableError: the broker did not accept them in time.
            BrokerRefusedError: the broker refused some of the rows.
        """
        self._flush()
        if self._failures:
            raise translated(self._failures[0], self._doing("sending rows"))

    def close(self) -> None:
        """Close the connection. Rows that were not flushed before are lost."""
        self._producer.purge()
        if not self._broken:
            # Would warn that a broken producer cannot abort its transaction; that producer ends with its last
            # reference.
            self._producer.close()

    def _produce(self, value: bytes, key: bytes | None, stamp: int, headers: list[tuple[str, bytes]] | None) -> None:
        while True:
            try:
                self._producer.produce(
                    self._dataset.topic, value=value, key=key, timestamp=stamp, headers=headers or []
                )
            except BufferError:
                self._poll(0.1)
                if self._failures:
                    raise translated(self._failures[0], self._doing("sending rows")) from None
            except KafkaException as error:
                raise self._own(error.args[0], "sending rows") from error
            else:
                return

    def _poll(self, seconds: float) -> None:
        try:
            self._producer.poll(seconds)
        except KafkaException as error:
            raise self._own(error.args[0], "sending rows") from error

    def _flush(self) -> None:
        try:
            left = self._producer.flush(CALL_SECONDS)
        except KafkaException as error:
            raise self._own(error.args[0], "sending rows") from error
        if left:
            raise BrokerUnreachableError(self._doing("sending rows"), CALL_SECONDS, "not all rows were acknowledged")

    def _call(self, doing: str, call: Callable[[], object]) -> None:
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                call()
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                # Calling again resumes the same operation; the client waits between its requests.
                if not reason.retriable() or time.monotonic() > deadline:
                    raise self._own(reason, doing) from error
            else:
                return

    def _own(self, reason: KafkaError, doing: str) -> PlatformError:
        if reason.txn_requires_abort() and not reason.fatal():
            return TransactionAbortedError(f"{self._doing(doing)}: {reason.str()}")
        self._broken = True
        if reason.code() == KafkaError._FATAL:
            # It reports only that a fatal error came before; the next poll raises that error, once.
            try:
                self._producer.poll(0)
            except KafkaException as fatal:
                reason = fatal.args[0]
        return translated(reason, self._doing(doing))

    def _doing(self, doing: str) -> str:
        return f"{doing} for topic {self._dataset.topic!r}"

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)


def _noticed(error: KafkaError) -> None:
    _log.debug("the client recovers by itself from %s", error)


def _taken(column: Any, rows: Rows) -> list[bytes]:
    taken: list[bytes] = column.take(rows).to_pylist()
    return taken


TRANSACTIONAL_IDS: Final[dict[TopicName, str]] = {"flights": "platform-assets-demo-flights"}
"""Transactional ids, by topic. Only to these topics are rows sent in transactions."""

SEED: Final = 2013
ATTEMPTS: Final = 5
"""Maximum number of attempts to send a transaction. Another attempt is made only if the broker requires an abort."""

_PIECE: Final = 5_000
_STEP_SECONDS: Final = 0.05

OnSent = Callable[[TopicName, int], None]
"""Function that is called with a topic and the number of its rows that have been committed since the last call."""


class Pace:
    """Lets rows through at an even rate.

    Args:
        rows: number of rows.
        seconds: duration over which the rows are spread; 0 to let all rows through at once.
        stop: once set, no more rows pass.
    """

    def __init__(self, rows: int, seconds: float, stop: threading.Event) -> None:
        self._rows, self._seconds, self._stop = rows, seconds, stop
        self._passed = 0
        self._started = time.monotonic()

    def take(self, wanted: int) -> int:
        """Wait until rows are due, and return how many of the `wanted` rows may be sent now. Return 0 once `stop` is
        set."""
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
        outlet: sends the rows.
        dataset: all rows.
        schedule: time of each row.
        missing: numbers of the rows that were not committed, ascending.
    """

    outlet: Outlet
    dataset: Dataset
    schedule: Schedule
    missing: Rows

    @property
    def backlog(self) -> Rows:
        """The missing rows whose times are before the demo's first start."""
        return self.missing[self.missing < self.schedule.backlog]

    @property
    def live(self) -> Rows:
        """The missing rows that are sent live, while the demo is running."""
        return self.missing[self.missing >= self.schedule.backlog]


class Streams:
    """The demo's three topics: creates them, compares them with the data, and sends the missing rows.

    Open it with `open_streams`. When `stop` is set, from any thread, sending ends soon and leaves every topic
    consistent: rows that were sent are acknowledged, and the open transaction is aborted.
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
        """Number of rows that each topic lacked when the streams were opened."""
        return {stream.dataset.topic: len(stream.missing) for stream in self._streams}

    def send_backlog(self) -> None:
        """Send, as fast as possible, the missing rows whose times are before the demo's first start."""
        self._each(lambda stream: self._send(stream, stream.backlog, live_seconds=None))

    def send_live(self, seconds: float) -> None:
        """Send the remaining missing rows, each with the time of sending as its timestamp.

        Args:
            seconds: duration of a topic's complete live part. If only some of its rows are missing, sending takes a
                proportional share of this time.
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
                stream.outlet.flush()
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
                # Its rows were already due.
                pace = Pace(len(transaction.rows), 0.0, self._stop)
            else:
                break
        self._on_sent(stream.dataset.topic, len(transaction.rows))
        return True

    def _each(self, act: Callable[[TopicStream], None]) -> None:
        """Run `act` for every topic at the same time. The first error stops all other topics and is raised."""
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
    """Create missing topics, fence any earlier process, and find out which rows the topics lack.

    Args:
        client: connection settings of the broker.
        start: time of the demo's first start, timezone-aware.
        stop: see `Streams`.
        on_sent: called first for the rows that the topics already have, and later for newly committed rows. The calls
            come from several threads.
        datasets: rows that the topics must have; by default, all of the demo's data.

    Raises:
        BrokerUnreachableError, BrokerRefusedError: from the broker.
        ConfigurationError: the data is not installed, or a topic has records that are not from the demo.
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
    # In this order: once the id is taken over, the topic has no undecided records of an earlier process.
    outlet = Outlet(client, dataset, TRANSACTIONAL_IDS.get(topic))
    try:
        log = scan(client, topic, whole_log(Cluster.connect(client), topic))
        if len(log) and (beyond := int(log.rows.max())) >= len(dataset):
            raise ConfigurationError(
                f"topic {topic!r} contains row {beyond:,}, but the data has only {len(dataset):,} rows: the topic was "
                "filled with other data. Delete the topic, or use another broker for the demo."
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
