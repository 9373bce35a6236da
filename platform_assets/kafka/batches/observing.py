"""Facts about logs that brokers report but consumers do not need: open transactions, sizes on disk, and the ages of
records.

librdkafka does not support these requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from kafka.protocol.admin.cluster import DescribeLogDirsRequest
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

from platform_assets.errors import BrokerRefusedError, DamagedBatchError, EmptyAnswersError
from platform_assets.kafka.batches.fetching import OFFSET_OUT_OF_RANGE, Brokers, FetchedPartition, Transient
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage
from platform_assets.kafka.batches.wire import Address, Connection, moment

_VERSION: Final = 4


class EpochBrokers(Brokers):
    """A `Brokers` that also looks up the ends of leader epochs."""

    def epoch_end(self, partition: int, epoch: int) -> int | None:
        """Return the exclusive end of the newest leader epoch that is not newer than `epoch`; None if the broker does
        not know this end."""
        doing = f"looking up the end of a leader epoch of topic {self.topic!r} partition {partition}"
        return self.persist(doing, lambda: self._epoch_end(partition, epoch))

    def _epoch_end(self, partition: int, epoch: int) -> int | None:
        leader, of_topic = self._leader(partition), OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        connection = self._connection(leader.address)
        if not connection.offers(OffsetForLeaderEpochRequest, _VERSION):
            return None
        wanted = of_topic.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader.epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            version=_VERSION, replica_id=-1, topics=[of_topic(topic=self.topic, partitions=[wanted])]
        )
        error, end = connection.request(request, _end)
        if error:
            self._judge(error, f"looking up leader epoch {epoch} of topic {self.topic!r}")
        return None if end < 0 else end


def _end(answer: Any) -> tuple[int, int]:
    """Return the error code and the end of the epoch that `answer` contains."""
    (partition,) = answer.topics[0].partitions
    return partition.error_code, partition.end_offset


_PRODUCERS: Final = 0
_TRANSACTIONS: Final = 0
_LOG_DIRS: Final = 2
_FETCH_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Coordinated:
    """A transaction as its coordinator reports it: its producer, its start, and the time after which the coordinator
    aborts it."""

    transactional_id: str
    state: str
    began: datetime
    timeout: timedelta

    @property
    def ends_at(self) -> datetime:
        """Time when the coordinator aborts the transaction, unless the producer ends it earlier."""
        return self.began + self.timeout


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has records in `partition`, from offset `start` on, and is neither committed nor aborted.

    `written_at` is the timestamp of the producer's newest batch in the partition. `coordinated` is None if the
    transaction is unknown to all coordinators that this client is allowed to query. In that case, only an operator can
    end the transaction.
    """

    partition: int
    start: int
    producer_id: int
    producer_epoch: int
    written_at: datetime
    coordinated: Coordinated | None

    @property
    def since(self) -> datetime:
        """Start time of the transaction, if it is known; otherwise the time of the transaction's last write."""
        return self.written_at if self.coordinated is None else self.coordinated.began


class ObservingBrokers(Brokers):
    """A `Brokers` that also looks up the state of a topic's logs."""

    def open_transactions(self, partitions: Sequence[int]) -> list[OpenTransaction]:
        """Return the open transactions in `partitions`, ordered by partition and start.

        Raises whatever `persist` raises, and BrokerRefusedError.
        """
        doing = f"looking up open transactions of topic {self.topic!r}"
        return self.persist(doing, lambda: self._open_transactions(partitions, doing))

    def sizes(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the size in bytes of each log on its leader's disk. Raises whatever `persist` raises, and
        BrokerRefusedError."""
        doing = f"looking up the log sizes of topic {self.topic!r}"
        return self.persist(doing, lambda: self._sizes(partitions, doing))

    def newest_timestamp(self, partition: int, offset: int) -> int | None:
        """Return the highest timestamp (ms) in the batch that contains `offset` or, if there is no such batch, in the
        next batch, whether or not that batch is committed. Return None if there is no next batch. Raises whatever
        `persist` raises, EmptyAnswersError and DamagedBatchError."""
        doing = f"reading the batch at offset {offset} of topic {self.topic!r} partition {partition}"

        def attempt() -> FetchedPartition:
            connection = self.ask(partition, offset, _FETCH_BYTES, committed=False)
            found = self.receive(connection, partition, offset, bytearray(2 * _FETCH_BYTES))
            if not found.error and not len(found.records) and offset < found.high_watermark:
                final_error = EmptyAnswersError(self.topic, partition, offset, found.high_watermark, self.patience)
                raise Transient(f"the broker returned no records from offset {offset} on", final_error, found.throttled)
            return found

        answer = self.persist(doing, attempt)
        if answer.error == OFFSET_OUT_OF_RANGE:
            return None
        try:
            batches = Batches.scan(answer.records)
            return next((b.max_timestamp for b in batches if b.last_offset >= offset), None)
        except Damage as damage:
            raise DamagedBatchError(self.topic, partition, damage.offset, damage.reason) from None

    # --- transactions -----------------------------------------------------------------------------------------

    def _open_transactions(self, partitions: Sequence[int], doing: str) -> list[OpenTransaction]:
        found = self._writing(partitions, doing)
        known = self._coordinated({p.producer_id for _, p in found}, doing) if found else {}
        if any((p.producer_id, at) not in known for at, p in found):
            # It may have ended between the two requests. If it is still open, no coordinator knows it.
            still = {(at, p.producer_id, p.current_txn_start_offset) for at, p in self._writing(partitions, doing)}
            found = [(at, p) for at, p in found if (at, p.producer_id, p.current_txn_start_offset) in still]
        return sorted(
            (
                OpenTransaction(
                    partition,
                    p.current_txn_start_offset,
                    p.producer_id,
                    p.producer_epoch,
                    moment(p.last_timestamp),
                    known.get((p.producer_id, partition)),
                )
                for partition, p in found
            ),
            key=lambda t: (t.partition, t.start),
        )

    def _writing(self, partitions: Sequence[int], doing: str) -> list[tuple[int, Any]]:
        """Return `(partition, producer)` for each open transaction that the partitions' leaders report."""
        found: list[tuple[int, Any]] = []
        of_topic = DescribeProducersRequest.TopicRequest
        for address, led in self._led(partitions).items():
            connection = self._able(address, DescribeProducersRequest, _PRODUCERS, doing)
            wanted = of_topic(name=self.topic, partition_indexes=led)
            described = connection.request(
                DescribeProducersRequest(version=_PRODUCERS, topics=[wanted]),
                lambda answer: [
                    (p.partition_index, p.error_code, [*p.active_producers]) for p in answer.topics[0].partitions
                ],
            )
            for at, error, active in described:
                if error:
                    self._judge(error, doing)
                found += [(at, p) for p in active if p.current_txn_start_offset >= 0]
        return found

    def _coordinated(self, producers: Iterable[int], doing: str) -> dict[tuple[int, int], Coordinated]:
        """Return what the coordinators report about the transactions of these producers, keyed by producer and by
        partition of this topic.

        If a producer's transaction does not list a partition, it is not the transaction that is open in that partition:
        the end marker of the open transaction never arrived there.
        """
        found: dict[tuple[int, int], Coordinated] = {}
        for address in list(self._nodes.values()):
            connection = self._able(address, ListTransactionsRequest, _TRANSACTIONS, doing)
            error, names = connection.request(
                ListTransactionsRequest(version=_TRANSACTIONS, state_filters=[], producer_id_filters=sorted(producers)),
                lambda answer: (answer.error_code, [state.transactional_id for state in answer.transaction_states]),
            )
            if error:
                self._judge(error, doing)
            if names:
                found |= connection.request(
                    DescribeTransactionsRequest(version=_TRANSACTIONS, transactional_ids=names), self._known_of
                )
        return found

    def _known_of(self, answer: Any) -> dict[tuple[int, int], Coordinated]:
        return {
            (state.producer_id, partition): Coordinated(
                state.transactional_id,
                state.transaction_state,
                moment(state.transaction_start_time_ms),
                timedelta(milliseconds=state.transaction_timeout_ms),
            )
            for state in answer.transaction_states
            if not state.error_code
            for topic in state.topics
            if topic.topic == self.topic
            for partition in topic.partitions
        }

    # --- sizes ------------------------------------------------------------------------------------------------

    def _sizes(self, partitions: Sequence[int], doing: str) -> dict[int, int]:
        found: dict[int, int] = {}
        of_topic = DescribeLogDirsRequest.DescribableLogDirTopic
        for address, led in self._led(partitions).items():
            connection = self._able(address, DescribeLogDirsRequest, _LOG_DIRS, doing)
            wanted = of_topic(topic=self.topic, partitions=led)
            folders = connection.request(
                DescribeLogDirsRequest(version=_LOG_DIRS, topics=[wanted]),
                lambda answer: [(folder.error_code, self._sizes_in(folder)) for folder in answer.results],
            )
            for error, sizes in folders:
                if error:
                    self._judge(error, doing)
                found |= sizes
        return found

    def _sizes_in(self, folder: Any) -> dict[int, int]:
        return {
            p.partition_index: p.partition_size
            for topic in folder.topics
            if topic.name == self.topic
            for p in topic.partitions
            if not p.is_future_key
        }

    # --- both -------------------------------------------------------------------------------------------------

    def _led(self, partitions: Sequence[int]) -> Mapping[Address, list[int]]:
        by_leader: dict[Address, list[int]] = {}
        for partition in partitions:
            by_leader.setdefault(self._leader(partition).address, []).append(partition)
        return by_leader

    def _able(self, address: Address, request: type, version: int, doing: str) -> Connection:
        connection = self._connection(address)
        if not connection.offers(request, version):
            raise BrokerRefusedError(doing, f"it does not support {request.__name__} version {version}")
        return connection
