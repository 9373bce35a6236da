"""Evidence that a topic holds the rows of a table exactly once.

A plain read_committed consumer, which shares nothing with the publisher, reads every committed record up to the last
stable offsets. Its records are held against the progress, against the table's rows of the same loads, and against the
order in which rows were sent.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from platform_assets.errors import BrokerUnreachableError, PlatformError
from platform_assets.kafka.client_errors import is_out_of_reach
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.plain_consumer import consume, plain_consumer
from platform_assets.model.publishing import HEADER
from platform_assets.windows.publish.publishing import Plan, Progress, Publisher

CHECK: Final = "published_once"
_PATIENCE: Final = 30.0
_NAMED: Final = 10


@dataclass
class Evidence:
    """Contents of the topic: numbers of records, windows and deleted offsets, and everything that is wrong.

    `problems` names records that were sent twice, are missing, foreign, different or out of order. `not_read` are
    reasons why something could not be compared.
    """

    records: int = 0
    windows: int = 0
    deleted: int = 0
    problems: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)

    @property
    def passed(self) -> bool:
        """True if nothing is wrong. What could not be read does not count as wrong."""
        return not self.problems

    @property
    def headline(self) -> str:
        """The outcome in one sentence."""
        if self.problems:
            more = f" And {len(self.problems) - _NAMED} more." if len(self.problems) > _NAMED else ""
            return "; ".join(self.problems[:_NAMED]) + "." + more
        text = (
            f"{self.records:,} records of {self.windows:,} windows are on the topic once, in order, and as in the table"
        )
        if self.deleted:
            text += f"; Kafka has already deleted {self.deleted:,} older offsets"
        return text + ("." if not self.not_read else f"; not compared: {'; '.join(self.not_read[:_NAMED])}.")


@dataclass
class _Window:
    """Records of one window: a hash of key and value for each ordinal of the first load, and later changes by place."""

    first: dict[str, array[int]] = field(default_factory=dict)
    changes: set[tuple[str, int, str]] = field(default_factory=set)
    by_place: dict[tuple[int, int], int | None] = field(default_factory=dict)


_ABSENT: Final = -(2**63)


def gather(
    publisher: Publisher,
    progress: Callable[[str], None] = lambda text: None,
    since: Mapping[int, int] | None = None,
) -> Evidence:
    """Read the whole topic, and hold it against the table; with `since`, only the records from these offsets on, by
    partition, and their rows. Raises the errors of Cluster and Ledger."""
    d, found = publisher.declaration, Evidence()
    found.plan = publisher.plan()
    state = publisher.cluster.topic(d.topic)
    known = publisher.known(state.topic_id)
    starts = {p: f.offset for p, f in publisher.cluster.log_starts(state).items()}
    ends = {p: f.offset for p, f in publisher.cluster.last_stable_offsets(state).items()}
    found.deleted = sum(starts.values())
    if since is not None:
        starts = {p: max(start, since.get(p, start)) for p, start in starts.items()}
    windows: dict[str, _Window] = {}
    for partition in state.partitions:
        progress(f"reading partition {partition} of topic {d.topic}")
        last = ("", -1)
        for message in _messages(
            publisher.cluster, d.topic, partition, starts.get(partition, 0), ends.get(partition, 0)
        ):
            found.records += 1
            identity = _identity(message)
            place = f"partition {partition} offset {message.offset()}"
            if identity is None or identity[0] != d.table.name:
                found.problems.append(f"{place} has a record that published/{d.topic} did not send")
                continue
            _, key, ordinal, kind, at, load_id = identity
            window = windows.setdefault(key, _Window())
            value = None if kind == "removed" else _hash(message.key(), message.value())
            if kind == "row":
                if (key, ordinal) <= last:
                    found.problems.append(f"{place}: row {ordinal} of window {key} follows row {last[1]} of {last[0]}")
                last = (key, ordinal)
                _first(window, known.get(key), load_id, ordinal, value or 0, place, key, found)
            elif (load_id, ordinal, kind) in window.changes:
                found.problems.append(f"{place}: change {ordinal} of load {load_id} of window {key} was sent twice")
            window.changes.add((load_id, ordinal, kind)) if kind != "row" else None
            window.by_place[at] = value
    _compare(publisher, known, windows, found, progress, whole=since is None)
    found.windows = len(windows)
    return found


def _identity(message: Any) -> tuple[str, str, int, str, tuple[int, int], str] | None:
    try:
        text = dict(message.headers() or ())[HEADER].decode()
        table, key, ordinal, kind, partition, offset, load_id = text.split(" ", 6)
        return table, key, int(ordinal), kind, (int(partition), int(offset)), load_id
    except (KeyError, ValueError, AttributeError):
        return None


def _hash(key: bytes | None, value: bytes | None) -> int:
    return hash((key, value))


def _first(
    window: _Window,
    state: Progress | None,
    load_id: str,
    ordinal: int,
    value: int,
    place: str,
    key: str,
    found: Evidence,
) -> None:
    seen = window.first.setdefault(load_id, array("q"))
    while len(seen) <= ordinal:
        seen.append(_ABSENT)
    if seen[ordinal] != _ABSENT:
        found.problems.append(f"{place}: row {ordinal} of load {load_id} of window {key} was sent twice")
    seen[ordinal] = value
    if state is None:
        found.problems.append(f"{place} has a row of window {key}, which the progress does not know")


def _compare(
    publisher: Publisher,
    known: Mapping[str, Progress],
    windows: Mapping[str, _Window],
    found: Evidence,
    progress: Callable[[str], None],
    *,
    whole: bool,
) -> None:
    """Compare the state that a reader of the topic has in the end with the rows of the load that is published. Without
    `whole`, only records that were read are compared, and rows of windows that were read from their first row on."""
    d = publisher.declaration
    for key, state in sorted(known.items()):
        if not whole and key not in windows:
            continue
        progress(f"comparing window {key} with the topic")
        held = {at: value for at, value in windows.get(key, _Window()).by_place.items() if value is not None}
        if not state.is_complete:
            found.not_read.append(f"window {key} is published in part")
            continue
        try:
            rows = publisher.rows(key, state.load)
        except PlatformError as e:
            found.not_read.append(str(e))
            continue
        expected = {at: _hash(*content[:2]) for at, content in rows.items()}
        if not whole and not _is_complete(windows[key], state):
            read = windows[key].by_place
            expected = {at: value for at, value in expected.items() if at in read}
        missing = expected.keys() - held.keys()
        if found.deleted and missing:
            found.not_read.append(f"window {key}: Kafka may have deleted {len(missing):,} of its records")
        elif missing:
            found.problems.append(f"window {key}: {len(missing):,} rows are missing, for example {min(missing)}")
        if more := held.keys() - expected.keys():
            unannounced = "" if d.tombstones else " (rows that were deleted later, which `tombstones` would announce)"
            target = found.problems if d.tombstones else found.not_read
            target.append(f"window {key}: {len(more):,} records have no row{unannounced}, for example {min(more)}")
        if different := [at for at in expected.keys() & held.keys() if expected[at] != held[at]]:
            found.problems.append(
                f"window {key}: {len(different):,} records differ from their rows, such as {min(different)}"
            )


def _is_complete(window: _Window, state: Progress) -> bool:
    """Return True if every row of the load that the window began with was read."""
    return (
        state.base is None
        and len(window.first.get(state.load.load_id, ())) == state.total
        and all(value != _ABSENT for value in window.first.get(state.load.load_id, ()))
    )


def _messages(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
    """Yield the committed records in `[start, end)` of a partition."""
    from confluent_kafka import KafkaError, TopicPartition

    if start >= end:
        return
    consumer = plain_consumer(cluster.settings)
    doing = f"reading topic {topic!r} partition {partition}"
    until = time.monotonic() + _PATIENCE
    with closing(consumer):
        consumer.assign([TopicPartition(topic, partition, start)])
        while True:
            for message in consume(consumer, 10_000, 1.0):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    if is_out_of_reach(error):
                        continue
                    raise BrokerUnreachableError(doing, _PATIENCE, error.str())
                until = time.monotonic() + _PATIENCE
                if (message.offset() or 0) >= end:
                    return
                if error is None:
                    yield message
                    if message.offset() == end - 1:
                        return
            if time.monotonic() > until:
                raise BrokerUnreachableError(doing, _PATIENCE, "no message arrived")


def hanging(publisher: Publisher) -> str | None:
    """Return a sentence if a transaction on the topic is open for longer than the publisher's timeout; None otherwise.

    Brokers end a publisher's transaction after that time, so such a transaction is another program's, or its markers
    cannot be written.
    """
    from confluent_kafka import Consumer, TopicPartition

    d, cluster = publisher.declaration, publisher.cluster
    state = cluster.topic(d.topic)
    ends, stable = cluster.high_watermarks(state), cluster.last_stable_offsets(state)
    for partition in sorted(ends.keys() & stable.keys()):
        first = stable[partition].offset
        if first >= ends[partition].offset:
            continue
        options = {**cluster.settings.librdkafka(), "group.id": "platform-assets", "enable.auto.commit": False}
        consumer = Consumer({**options, "isolation.level": "read_uncommitted"})
        with closing(consumer):
            consumer.assign([TopicPartition(d.topic, partition, first)])
            message = consumer.poll(5.0)
            if message is None or message.error() is not None:
                continue
            age = time.time() - message.timestamp()[1] / 1000
        if age > d.transaction_timeout.total_seconds():
            identity = _identity(message)
            whose = publisher.target.transactional_id if identity is not None else "of another program"
            return (
                f"published/{d.topic}: a transaction {whose} has been open for {age:,.0f} s and holds up readers of partition "
                f"{partition} from offset {first} on. Publish again to end it, or find it with `kafka-transactions.sh "
                f"find-hanging` and abort it"
            )
    return None
