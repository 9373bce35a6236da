"""A log of requests to services, and what a judge knows about it: the producer's notes, what each window must aggregate
to, and the records that a consumer read.

The judge shares no code with the platform or Spark: it computes the aggregates from the notes with DuckDB, and compares
keys and values of records.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

SCHEMA: Final = "number BIGINT NOT NULL, service STRING NOT NULL, status INT NOT NULL, bytes BIGINT NOT NULL"
"""Columns of a record's JSON value."""
LEAST_STATUS: Final = 500
"""The filter: only requests with at least this status are aggregated."""
PARTITIONS: Final = 2
MINUTE: Final = 60.0
_SERVICES: Final = 40
_FAILING: Final = 11
_SENT_EVERY: Final = 0.05
_LARGEST_QUEUE: Final = 1_000_000

Key = tuple[str, str]
"""A window and a service."""


class Row(NamedTuple):
    """The aggregate of a window and service: failed requests, their bytes, and the largest of their numbers."""

    failures: int
    bytes: int
    last: int


def value_of(number: int) -> bytes:
    """Return the value of the record with this number. `_REQUESTS` is the same in SQL."""
    status = 503 if number % _FAILING == 0 else 200
    return _value(number, number * 7_919 % _SERVICES, status)


def _value(number: int, service: int, status: int) -> bytes:
    size = number * 104_729 % 10_007
    return b'{"number":%d,"service":"s%02d","status":%d,"bytes":%d}' % (number, service, status, size)


_REQUESTS: Final = f"""
    SELECT number, partition, "offset", time,
        's' || lpad((number * 7919 % {_SERVICES})::VARCHAR, 2, '0') AS service,
        CASE WHEN number % {_FAILING} = 0 THEN 503 ELSE 200 END AS status,
        number * 104729 % 10007 AS bytes
    FROM notes"""


@dataclass(frozen=True, slots=True)
class Notes:
    """Where the acknowledged records are, by their numbers: offsets, and times in milliseconds since 1970. The record
    with number n is in partition `n % PARTITIONS`."""

    offsets: Sequence[int]
    times: Sequence[int]

    def by_ranges(self, windows: Mapping[str, Mapping[int, tuple[int, int]]]) -> dict[Key, Row]:
        """Return the aggregates of windows that are ranges of offsets `[start, end)`, by window and partition."""
        places = [(w, p, *span) for w, ranges in windows.items() for p, span in ranges.items()]
        names, partitions, starts, ends = zip(*places, strict=True)
        spans = {"name": names, "partition": partitions, "start": starts, "end": ends}
        return self._aggregates(
            'w.name', 'JOIN windows w ON w.partition = r.partition AND r."offset" >= w."start" AND r."offset" < w."end"',
            windows=pa.table(spans),
        )  # fmt: skip

    def by_time(self) -> dict[Key, Row]:
        """Return the aggregates of windows that are the minutes of the records' timestamps."""
        return self._aggregates("strftime(make_timestamp(time * 1000), '%Y-%m-%d-%H:%M')", "")

    def _aggregates(self, window: str, joined: str, **tables: pa.Table) -> dict[Key, Row]:
        numbers = np.arange(len(self.offsets))
        notes = pa.table(
            {
                "number": numbers,
                "partition": numbers % PARTITIONS,
                "offset": np.array(self.offsets, np.int64),
                "time": np.array(self.times, np.int64),
            }
        )
        with duckdb.connect() as connection:
            for name, table in {"notes": notes, **tables}.items():
                connection.register(name, table)
            found = connection.execute(
                f"""SELECT {window}, service, count(*), sum(bytes)::BIGINT, max(number) FROM ({_REQUESTS}) r {joined}
                WHERE status >= {LEAST_STATUS} GROUP BY ALL"""
            ).fetchall()
        return {(w, s): Row(*row) for w, s, *row in found}

    @property
    def failures(self) -> int:
        """Number of records that pass the filter."""
        return len(range(0, len(self.offsets), _FAILING))


class SteadyProducer:
    """A producer that sends `rate` records a second for some seconds, and after that one record a second to each
    partition, so that time goes on for windows by timestamps. The last ones do not pass the filter."""

    def __init__(self, bootstrap: str, topic: str, rate: int, seconds: int) -> None:
        self.total = rate * seconds
        self.latest = 0.0
        """Largest number of seconds by which records were sent too late."""
        self._topic, self._rate = topic, rate
        self._offsets, self._times = (array("q", [-1]) * self.total for _ in range(2))
        self._refused: list[Any] = []
        self._stop, self._all_sent = threading.Event(), threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 2,
             "message.timeout.ms": 0, "queue.buffering.max.messages": _LARGEST_QUEUE}
        )  # fmt: skip

    @contextmanager
    def sending(self) -> Iterator[SteadyProducer]:
        """Send while the block runs."""
        thread = threading.Thread(target=self._send, name="steady producer")
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
            self._producer.flush(60)

    @property
    def is_done(self) -> bool:
        """True if all records are sent and acknowledged, except for those that only let time go on. Raises
        AssertionError if a record was refused."""
        assert not self._refused, self._refused[0]
        return self._all_sent.is_set()

    def notes(self) -> Notes:
        """Return the notes; all records must be acknowledged."""
        assert self.is_done
        assert min(self._offsets) >= 0, "a record was never acknowledged"
        return Notes(self._offsets, self._times)

    def _send(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.is_set() and sent < self.total:
            now = time.monotonic() - began
            due = min(int(now * self._rate), self.total)
            self.latest = max(self.latest, now - sent / self._rate if due > sent else 0.0)
            for number in range(sent, due):
                self._produce(b"%d" % number, value_of(number), number % PARTITIONS, on_delivery=self._delivered)
            sent = due
            self._producer.poll(0)
            self._stop.wait(_SENT_EVERY)
        if not self._producer.flush(60) and sent == self.total:
            self._all_sent.set()
        while not self._stop.wait(1):
            for partition in range(PARTITIONS):
                self._produce(None, _value(self.total, 0, 200), partition)
            self._producer.poll(0)

    def _produce(self, key: bytes | None, value: bytes, partition: int, **given: Any) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, **given)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._refused.append(error)
            return
        number = int(message.key())
        self._offsets[number] = message.offset()
        self._times[number] = message.timestamp()[1]


@dataclass(frozen=True, slots=True)
class Read:
    """A record on the topic of results, and when the consumer got it, in seconds since 1970."""

    key: bytes | None
    value: bytes | None
    at: float

    @property
    def parsed(self) -> tuple[Key, Row] | None:
        """Window and service, and the aggregate; None if key and value have no such fields."""
        try:
            key, value = json.loads(self.key or b""), json.loads(self.value or b"")
            return (key["window"], key["service"]), Row(*(value[name] for name in Row._fields))
        except (ValueError, KeyError, TypeError):
            return None


class Reader:
    """A plain consumer of the topic of results, from its beginning. `read` has what it got by now, and `seen` is called
    with each record."""

    def __init__(
        self, bootstrap: str, topic: str, *, committed: bool = True, seen: Callable[[Read], None] = lambda read: None
    ) -> None:
        self.read: list[Read] = []
        self._topic, self._seen, self._stop = topic, seen, threading.Event()
        level = "read_committed" if committed else "read_uncommitted"
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "log_level": 2,
             "isolation.level": level}
        )  # fmt: skip

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Read while the block runs."""
        partitions = self._consumer.list_topics(self._topic, 30).topics[self._topic].partitions
        self._consumer.assign([TopicPartition(self._topic, p, OFFSET_BEGINNING) for p in partitions])
        thread = threading.Thread(target=self._read, name="reader of results")
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
            self._consumer.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                if error.fatal():
                    raise KafkaException(error)
                continue
            each = Read(message.key(), message.value(), time.time())
            self.read.append(each)
            self._seen(each)


@dataclass(frozen=True, slots=True)
class Judgment:
    """Records that are on the topic more than once (how many more), aggregates that are missing, records of no window or
    service, and aggregates whose last value is not that of the notes."""

    doubled: int = 0
    lost: int = 0
    foreign: int = 0
    wrong: int = 0
    examples: tuple[str, ...] = ()

    @property
    def anomalies(self) -> int:
        """Number of all of them."""
        return self.doubled + self.lost + self.foreign + self.wrong


def judge(expected: Mapping[Key, Row], read: Iterable[Read]) -> Judgment:
    """Compare the records with what the notes say."""
    found: dict[Key, list[Row]] = {}
    foreign: list[str] = []
    for each in read:
        if (parsed := each.parsed) is not None and parsed[0] in expected:
            found.setdefault(parsed[0], []).append(parsed[1])
        else:
            foreign.append(
                f"{each.key!r}: {each.value!r} has a window or a service that the producer did not write down"
            )
    doubled = {place: rows for place, rows in found.items() if len(rows) > 1}
    lost = sorted(expected.keys() - found.keys())
    wrong = [f"{p}: {rows[-1]} in place of {expected[p]}" for p, rows in found.items() if rows[-1] != expected[p]]
    examples = [f"{p} is there {len(rows)} times" for p, rows in doubled.items()]
    return Judgment(
        sum(len(rows) - 1 for rows in doubled.values()),
        len(lost),
        len(foreign),
        len(wrong),
        (*examples[:3], *(f"{p} is missing" for p in lost[:3]), *foreign[:3], *wrong[:3]),
    )


@dataclass(frozen=True, slots=True)
class Lags:
    """For each window in order, the seconds from its end until a consumer had the last of its aggregates."""

    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, read: Iterable[Read], last: Mapping[str, float]) -> Lags:
        """Return the lags of windows, whose ends `last` has in seconds since 1970. Of records that came twice, the first
        one counts."""
        first: dict[Key, float] = {}
        for each in read:
            if (parsed := each.parsed) is not None:
                first[parsed[0]] = min(each.at, first.get(parsed[0], each.at))
        found: dict[str, float] = {}
        for (window, _), at in first.items():
            if window in last:
                found[window] = max(found.get(window, 0.0), at - last[window])
        return cls(dict(sorted(found.items())))

    @property
    def keeps_up(self) -> bool:
        """True if the lag of the last window is not greater than that of the first three by more than a window."""
        each = list(self.seconds.values())
        return bool(each) and each[-1] <= statistics.median(each[:3]) + MINUTE

    def to_json(self) -> dict[str, Any]:
        """Return median, maximum, first and last lag, in seconds."""
        each = [round(lag, 1) for lag in self.seconds.values()]
        if not each:
            return {"windows": 0}
        middle = round(statistics.median(each), 1)
        return {"windows": len(each), "p50": middle, "max": max(each), "first": each[0], "last": each[-1]}


def end_of_minute(window: str) -> float:
    """Return the end of a window of a minute, in seconds since 1970; its name is that of its first minute."""
    return datetime.strptime(window, "%Y-%m-%d-%H:%M").replace(tzinfo=UTC).timestamp() + MINUTE
