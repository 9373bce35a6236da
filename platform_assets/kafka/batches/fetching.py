"""Finding the leaders of a topic's partitions and fetching raw record batches from them, by topic id.

Version 13 is the first version of the Fetch request that identifies a topic by its id, so the broker itself refuses an
old id. This module decodes the answer in place, because kafka-python would copy the records; everything else goes
through kafka-python's own classes. The layouts are at https://kafka.apache.org/protocol.
"""

from __future__ import annotations

import base64
import binascii
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import kafka.errors
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from platform_assets.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    ConfigurationError,
    DamagedBatchError,
    PlatformError,
    TopicMissingError,
    TopicRecreatedError,
)
from platform_assets.kafka.batches.wire import Address, Connection, Security, Stopped, addresses
from platform_assets.kafka.rights import needed
from platform_assets.kafka.settings import ClientSettings

_FETCH, _METADATA, _LIST_OFFSETS = 13, 12, 7
_NEEDS: Final = {FetchRequest: _FETCH, MetadataRequest: _METADATA, ListOffsetsRequest: _LIST_OFFSETS}
_LARGEST_ANSWER = 1 << 30
MAX_WAIT_MS: Final = 500
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_LATEST, _EARLIEST, _EARLIEST_LOCAL = -1, -2, -4
_KNOWS_LOCAL: Final = 8
"""First version of ListOffsets that can report the log start on the leader's own disks (KIP-405)."""
_UNRECORDED_RETRIABLE = {-1}  # UNKNOWN_SERVER_ERROR: any failure of the broker itself
_CORRUPT_MESSAGE = 2
OFFSET_OUT_OF_RANGE: Final = 1
_WRONG_TOPIC = {3, 100, 103}  # UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
_MISSING_TRIES = 5
_LONGEST_PAUSE = 60.0
"""Longest wait for a quota, in seconds.

A broker may request a longer wait, although no default quota leads to that. In that case, the request is sent again
after this time, and the broker may throttle it again.
"""

T = TypeVar("T")


class Transient(Exception):
    """An error after which another try is worthwhile. If `final_error` is set, it is a more specific error to raise
    after the last try. The next try waits at least `pause` seconds. The broker has requested this pause, so the pause
    does not count as waiting without an answer."""

    def __init__(self, reason: str, final_error: PlatformError | None = None, pause: float = 0.0) -> None:
        self.final_error, self.pause = final_error, pause
        super().__init__(reason)


def topic_uuid(topic_id: str) -> uuid.UUID:
    """Parse a topic id in the form that Kafka prints (22 characters of URL-safe base64). Raises ConfigurationError."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
    except (ValueError, binascii.Error):
        raise ConfigurationError(f"{topic_id!r} is not a Kafka topic id: 22 characters of URL-safe base64") from None


def topic_id_text(topic_id: uuid.UUID) -> str:
    """Format a topic id: the inverse of `topic_uuid`."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


class Throttled(Exception):
    """The broker answered immediately and without data, because a quota is used up. The client should send no request
    for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"throttled for {seconds:g} s")


class Redirected(Exception):
    """The leader's answer redirects the client to a replica in the client's rack. From now on, the client must send its
    requests to that replica (KIP-392)."""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """The broker's answer for one partition. `records` points into the answer's buffer.

    `aborted` lists `(producer id, first offset)` for the aborted transactions that overlap the fetched data, including
    transactions that began before that data. Offsets are -1 if the broker does not return them, for example with an
    error. `replica` is the id of the broker to which the leader redirects the client; it is -1 if there is no
    redirection. `throttled` is the number of seconds during which the client should send the broker no requests
    (KIP-219).
    """

    error: int
    high_watermark: int
    last_stable: int
    log_start: int
    aborted: Sequence[tuple[int, int]]
    records: memoryview
    replica: int = -1
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class _Leader:
    address: Address
    epoch: int


@dataclass(frozen=True, slots=True)
class _Described:
    """A topic in the answer to a metadata request: its error code, and the leaders of its partitions."""

    error: int
    topic_id: uuid.UUID
    nodes: dict[int, Address]
    leaders: dict[int, _Leader | None]


class Brokers:
    """The brokers as one thread sees them: the thread's connections, and the leaders of the topic's partitions.

    Every call ends. It raises BrokerUnreachableError after `patience` seconds without an answer, and Stopped soon after
    `stopped()` returns true.
    """

    def __init__(
        self, settings: ClientSettings, topic: str, topic_id: str, *, patience: float, stopped: Callable[[], bool]
    ) -> None:
        self.topic, self.topic_id = topic, topic_id
        self._uuid = topic_uuid(topic_id)
        self.limits = settings.limits
        self._security = Security(settings)
        self._bootstrap = addresses(settings.bootstrap_servers)
        self.patience, self._stopped = patience, stopped
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[int, _Leader | None] = {}
        self._rack = settings.options.get("client.rack", "")
        self._near: dict[int, Address] = {}
        self._connections: dict[Address, Connection] = {}
        self._missing_tries = 0

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._leaders.clear()
        self._leave_near()

    def _leave_near(self) -> None:
        """Send requests only to leaders from now on, because a replica in the client's rack has failed or lags behind."""
        if self._near:
            self._near.clear()
            self._rack = ""

    def persist(self, doing: str, attempt: Callable[[], T]) -> T:
        """Call `attempt` until it succeeds. Before each further try, open new connections and look up the leaders
        again.

        While a quota is used up, this waits until requests are allowed again, however long that takes, because the
        broker does answer. Raises BrokerUnreachableError after `patience` seconds without an answer, or the
        `final_error` of the last Transient. Also raises Stopped.
        """
        since, pause = time.monotonic(), 0.05
        while True:
            try:
                return attempt()
            except Redirected:
                continue
            except Throttled as throttled:
                self._pause(min(throttled.seconds, _LONGEST_PAUSE))
                since = time.monotonic()
            except (OSError, Transient) as error:
                self.close()
                if time.monotonic() - since > self.patience:
                    if isinstance(error, Transient) and error.final_error is not None:
                        raise error.final_error from None
                    reason = str(error) if isinstance(error, Transient) else f"{type(error).__name__}: {error}"
                    raise BrokerUnreachableError(doing, self.patience, reason) from None
                asked_for = min(error.pause, _LONGEST_PAUSE) if isinstance(error, Transient) else 0.0
                self._pause(max(pause, asked_for))
                since += asked_for
                pause = min(2 * pause, 1.0)

    def last_stable_offsets(self, partitions: Sequence[int]) -> dict[int, int]:
        """Map each partition to the first offset that read_committed consumers may not read yet."""
        doing = f"looking up last stable offsets of topic {self.topic!r}"
        return self.persist(doing, lambda: self._list_offsets(partitions, _LATEST, _READ_COMMITTED))

    def high_watermark(self, partition: int) -> int:
        """Return the first offset that is not fully replicated yet. Up to this offset, read_uncommitted consumers can
        read, also in open transactions."""
        doing = f"looking up the high watermark of topic {self.topic!r} partition {partition}"
        return self.persist(doing, lambda: self._list_offsets([partition], _LATEST, _READ_UNCOMMITTED))[partition]

    def log_start(self, partition: int) -> int:
        """Return the first offset that the partition still has."""
        doing = f"looking up the log start of topic {self.topic!r} partition {partition}"
        return self.persist(doing, lambda: self._list_offsets([partition], _EARLIEST, _READ_UNCOMMITTED))[partition]

    def local_log_start(self, partition: int) -> int | None:
        """Return the first offset on the leader's own disks; None if the broker does not report it. This method makes
        only one try, so call it through `persist`."""
        if not self._connection(self._leader(partition).address).offers(ListOffsetsRequest, _KNOWS_LOCAL):
            return None
        return self._list_offsets([partition], _EARLIEST_LOCAL, _READ_UNCOMMITTED, _KNOWS_LOCAL)[partition]

    def asks_leader(self, partition: int) -> bool:
        """Return True if fetches go to the partition's leader, not to a replica in the client's rack."""
        return partition not in self._near

    def ask(
        self, partition: int, offset: int, size: int, *, committed: bool = True, wait_ms: int = MAX_WAIT_MS
    ) -> Connection:
        """Send a fetch request for about `size` bytes of `partition` from `offset` on; return the connection on which
        the answer will arrive.

        If `committed` is false, the fetch continues past the last stable offset. The broker answers after `wait_ms`
        even if it has no data. Raises OSError and Transient, so call it through `persist`.
        """
        leader = self._leader(partition)
        connection = self._connection(self._near.get(partition, leader.address))
        of_topic = FetchRequest.FetchTopic
        wanted = of_topic.FetchPartition(
            partition=partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=size,
        )
        connection.send(
            FetchRequest(
                version=_FETCH,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=size,
                isolation_level=_READ_COMMITTED if committed else _READ_UNCOMMITTED,
                session_id=0,
                session_epoch=-1,
                topics=[of_topic(topic_id=self._uuid, partitions=[wanted])],
                forgotten_topics_data=[],
                rack_id=self._rack,
            )
        )
        return connection

    def receive(self, connection: Connection, partition: int, offset: int, buffer: bytearray) -> FetchedPartition:
        """Return the answer to the request that `ask` sent. The answer is in `buffer` if that is large enough, and its
        `error` is 0 or OFFSET_OUT_OF_RANGE.

        Raises OSError, Transient, Throttled and Redirected, so call it through `persist`. Also raises
        TopicRecreatedError, TopicMissingError, DamagedBatchError and BrokerRefusedError.
        """
        frame = connection.receive(buffer, _LARGEST_ANSWER)
        try:
            answer = fetched_partition(frame, self._uuid, partition)
        except (IndexError, struct.error, ValueError) as error:
            raise Transient(f"the answer to a fetch does not follow the protocol ({error})") from None
        if answer.error == _CORRUPT_MESSAGE:
            raise DamagedBatchError(self.topic, partition, offset, "the broker itself reports it as corrupt")
        if answer.error not in (0, OFFSET_OUT_OF_RANGE):
            self._judge(answer.error, f"fetching topic {self.topic!r} partition {partition} from offset {offset}")
        if answer.error == OFFSET_OUT_OF_RANGE and partition in self._near:
            raise Transient("the replica that answered is not the leader and does not have this offset yet")
        if not answer.error and answer.replica in self._nodes and not len(answer.records):
            self._near[partition] = self._nodes[answer.replica]
            raise Redirected
        return answer

    def _judge(self, code: int, doing: str) -> None:
        """Raise the error for a broker's error code, or Transient if another try may succeed."""
        name = kafka.errors.for_code(code).__name__
        if code in _WRONG_TOPIC:
            self._look_up_leaders()  # raises if the topic was deleted or replaced
            raise Transient(f"the broker does not know the topic yet ({name})")
        if kafka.errors.for_code(code).retriable or code in _UNRECORDED_RETRIABLE:
            raise Transient(name)
        raise BrokerRefusedError(doing, name, needed(code, self.topic))

    def _list_offsets(
        self, partitions: Sequence[int], timestamp: int, isolation: int, version: int = _LIST_OFFSETS
    ) -> dict[int, int]:
        by_leader: dict[_Leader, list[int]] = {}
        for partition in partitions:
            by_leader.setdefault(_Leader(self._leader(partition).address, 0), []).append(partition)
        found: dict[int, int] = {}
        of_topic = ListOffsetsRequest.ListOffsetsTopic
        for leader, led in by_leader.items():
            wanted = [
                of_topic.ListOffsetsPartition(
                    partition_index=p, current_leader_epoch=self._leader(p).epoch, timestamp=timestamp
                )
                for p in led
            ]
            request = ListOffsetsRequest(
                version=version,
                replica_id=-1,
                isolation_level=isolation,
                topics=[of_topic(name=self.topic, partitions=wanted)],
            )
            listed = self._connection(leader.address).request(
                request, lambda a: [(p.partition_index, p.error_code, p.offset) for p in a.topics[0].partitions]
            )
            for partition, error, offset in listed:
                if error:
                    self._judge(error, f"looking up offsets of topic {self.topic!r}")
                found[partition] = offset
        if set(found) != set(partitions):
            raise Transient("a broker's answer left out requested partitions")
        return found

    def _leader(self, partition: int) -> _Leader:
        if not self._leaders:
            self._look_up_leaders()
        if partition not in self._leaders:
            raise ConfigurationError(
                f"topic {self.topic!r} has only partitions 0 to {len(self._leaders) - 1}; partition {partition} does not exist"
            )
        leader = self._leaders[partition]
        if leader is None:
            raise Transient(f"partition {partition} has no leader")
        return leader

    def _look_up_leaders(self) -> None:
        """Ask any broker for the topic's id and the leaders of its partitions. Raises TopicRecreatedError and
        TopicMissingError."""
        wanted = MetadataRequest.MetadataRequestTopic(topic_id=uuid.UUID(int=0), name=self.topic)
        described = self._any_connection().request(
            MetadataRequest(
                version=_METADATA,
                topics=[wanted],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
            ),
            _described,
        )
        if described.error == 3 and self._missing_tries < _MISSING_TRIES:
            # A broker learns about a new topic a moment after the controller has created it.
            self._missing_tries += 1
            raise Transient("the topic is unknown")
        if described.error == 3:
            raise TopicMissingError(self.topic)
        self._missing_tries = 0
        if described.error:
            self._judge(described.error, f"looking up topic {self.topic!r}")
        if described.topic_id != self._uuid:
            raise TopicRecreatedError(self.topic, self.topic_id, topic_id_text(described.topic_id))
        self._nodes, self._leaders = described.nodes, described.leaders

    def _any_connection(self) -> Connection:
        for connection in self._connections.values():
            return connection
        failure: OSError | None = None
        for address in dict.fromkeys([*self._nodes.values(), *self._bootstrap]):
            try:
                return self._connection(address)
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(
                address, self._security, _NEEDS, timeout=self.patience, stopped=self._stopped
            )
        return self._connections[address]

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._stopped():
                raise Stopped
            time.sleep(min(left, 0.1))


def _described(answer: Any) -> _Described:
    (topic,) = answer.topics
    if topic.topic_id is None and not topic.error_code:
        raise ValueError("a topic without an id")
    nodes = {b.node_id: (b.host, b.port) for b in answer.brokers}
    leaders = {
        p.partition_index: _Leader(nodes[p.leader_id], p.leader_epoch) if p.leader_id in nodes else None
        for p in topic.partitions
    }
    return _Described(topic.error_code, topic.topic_id, nodes, leaders)


_partition_head = struct.Struct(">ihqqq")
_aborted_transaction = struct.Struct(">qq")


def fetched_partition(frame: memoryview, topic_id: uuid.UUID, partition: int) -> FetchedPartition:
    """Decode a Fetch answer of version 13 for one partition, without copying its records.

    `frame` begins after the correlation id. Raises ValueError, IndexError or struct.error if `frame` is not such an
    answer, and Throttled if the answer has no topic because a quota is used up (KIP-219).
    """
    throttle_ms, top_error = struct.unpack_from(">ih", frame, at := _skip_tags(frame, 0))
    topics, at = _uvarint(frame, at + 4 + 2 + 4)
    if topics <= 1 and throttle_ms > 0 and not top_error:
        raise Throttled(throttle_ms / 1000)
    if top_error or topics != 2:  # counts are one higher than what they count
        if not top_error:
            raise ValueError(f"{topics - 1} topics instead of one")
        return FetchedPartition(top_error, -1, -1, -1, (), frame[:0])
    if bytes(frame[at : at + 16]) != topic_id.bytes:
        raise ValueError("another topic's id")
    partitions, at = _uvarint(frame, at + 16)
    index, error, high_watermark, last_stable, log_start = _partition_head.unpack_from(frame, at)
    if partitions != 2 or index != partition:
        raise ValueError("another partition")
    listed, at = _uvarint(frame, at + _partition_head.size)
    aborted = []
    for _ in range(listed - 1):
        aborted.append(_aborted_transaction.unpack_from(frame, at))
        at = _skip_tags(frame, at + _aborted_transaction.size)
    (replica,) = struct.unpack_from(">i", frame, at)
    size, at = _uvarint(frame, at + 4)
    size = max(size - 1, 0)
    if at + size > len(frame):
        raise ValueError("the records are cut off")
    records, seconds = frame[at : at + size], max(throttle_ms, 0) / 1000
    return FetchedPartition(error, high_watermark, last_stable, log_start, aborted, records, replica, seconds)


def _uvarint(frame: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("a number is too long")


def _skip_tags(frame: memoryview, at: int) -> int:
    count, at = _uvarint(frame, at)
    for _ in range(count):
        _, at = _uvarint(frame, at)
        size, at = _uvarint(frame, at)
        at += size
    return at
