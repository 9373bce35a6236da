"""One producer of one topic's rows, plain or transactional."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from platform_assets.demo.dataset import PACKAGE, SOURCES, Dataset
from platform_assets.demo.schedule import Rows
from platform_assets.demo.topic_log import CALL_SECONDS, translated
from platform_assets.errors import BrokerUnreachableError, PlatformError
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
    """The transaction has to be aborted and sent again; the next attempt does."""


class Outlet:
    """Sends rows of a dataset to the topic of its name and says when they are in it.

    With a transactional id, rows are sent between `begin` and `commit` or `abort`; creating the outlet fences every
    former holder of the id and waits until the transaction it left open is aborted. Without one, `settle` waits for
    what was sent: each row is in the topic once, but a former process cannot be fenced.
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
            # With a callback for errors the client raises a fatal one from whichever call serves its events.
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
        """Hand rows to the producer, each with its timestamp in ms, or with the present where None is given."""
        values = _taken(self._dataset.values, rows)
        keys: Sequence[bytes | None] = (
            [None] * len(rows) if self._dataset.keys is None else _taken(self._dataset.keys, rows)
        )
        # 0 tells the client to take the present.
        stamps: Sequence[int] = [0] * len(rows) if timestamps is None else timestamps.tolist()
        for row, value, key, stamp in zip(rows.tolist(), values, keys, stamps, strict=True):
            headers = [("source", PACKAGE.encode()), ("row", str(row).encode())] if self._headers else None
            self._produce(value, key, stamp, headers)
        self._poll(0)

    def commit(self) -> None:
        """Commit the transaction: its rows are in the topic when this returns.

        Raises:
            TransactionAbortedError: the broker wants it aborted, so abort it and send its rows again.
            BrokerUnreachableError: it did not answer in time. Whether the transaction is committed the next start
                finds out.
        """
        self._call("committing a transaction", lambda: self._producer.commit_transaction(CALL_SECONDS))

    def abort(self, *, after_sending: bool) -> None:
        """Abort the transaction; with `after_sending` once its records are in the log, where they stay unseen.

        Without it is for one that the broker wants aborted. The coordinator refuses to abort one that it does not know
        of yet, as when the one before has just been committed and nothing of this one has been sent (INVALID_TXN_STATE).
        """
        if after_sending:
            self._flush()
        self._call("aborting a transaction", lambda: self._producer.abort_transaction(CALL_SECONDS))
        self._failures.clear()

    def settle(self) -> None:
        """Wait until all that was sent is in the topic.

        Raises:
            BrokerUnreachableError: the broker did not take it in time.
            BrokerRefusedError: the broker refused some of it.
        """
        self._flush()
        if self._failures:
            raise translated(self._failures[0], self._doing("sending rows"))

    def close(self) -> None:
        """Give up the connection; what was not settled is lost."""
        self._producer.purge()
        if not self._broken:
            # Would warn of the transaction that a broken one cannot abort; that one ends with its last reference.
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
            raise BrokerUnreachableError(self._doing("sending rows"), CALL_SECONDS, "not all were acknowledged")

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
            # It says only that something fatal came before; what that was the next poll raises, once.
            try:
                self._producer.poll(0)
            except KafkaException as fatal:
                reason = fatal.args[0]
        return translated(reason, self._doing(doing))

    def _doing(self, doing: str) -> str:
        return f"{doing} to topic {self._dataset.topic!r}"

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)


def _noticed(error: KafkaError) -> None:
    _log.debug("the client heals by itself from %s", error)


def _taken(column: Any, rows: Rows) -> list[bytes]:
    taken: list[bytes] = column.take(rows).to_pylist()
    return taken
