"""A program that copies records from one topic to another, in a process that kills itself: `python -m
platform_assets_tests.support.semantics.copier`.

It reads `Work` from standard input as one line of JSON. Before each batch it prints the batch's source offsets as a
line of JSON. It copies until the end of the source and exits with 0, or kills itself with SIGKILL at a given point.
Each output has the source position as its key, `partition:offset`, and a function of the source value as its value.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, Message, Producer, TopicPartition

Mode = Literal["at most once", "at least once", "transactional"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
Point = Literal["after the read", "half sent", "between the writes", "after all"]
"""Points at which a copier can crash in a batch: when it has read the batch; when the broker has acknowledged half of
the outputs; when one of the two writes, outputs and position, is done and the other is not (the transaction has both and
is not committed); and when the batch is complete."""
POINTS: Final[tuple[Point, ...]] = get_args(Point)
TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Work:
    """One process: what to copy, and where to crash. `crash_batch` counts from 0 in this process, and None means no
    crash. A batch has up to `batch` records of each partition."""

    settings: dict[str, str]
    source: str
    target: str
    mode: Mode
    batch: int
    crash_batch: int | None = None
    crash_point: Point | None = None


def transformed(value: bytes) -> bytes:
    """Return the output value for a source value: the number, doubled."""
    return b"%d" % (2 * int(value))


class Copier:
    """Copies batches. Positions are the committed offsets of a consumer group, as in most programs."""

    def __init__(self, work: Work) -> None:
        self._work = work
        transactional = {"transactional.id": f"copier-of-{work.target}"} if work.mode == "transactional" else {}
        self._producer = Producer({**work.settings, "enable.idempotence": True, "linger.ms": 1, **transactional})
        if transactional:
            # First of all: this aborts the transaction of a process that was killed, and only then are positions final.
            self._producer.init_transactions(TIMEOUT)
        reader = {
            **work.settings,
            "group.id": f"copier-of-{work.target}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 20,
        }
        self._positions = Consumer(reader)
        parts = sorted(self._positions.list_topics(work.source, timeout=TIMEOUT).topics[work.source].partitions)
        held = self._positions.committed([TopicPartition(work.source, p) for p in parts], timeout=TIMEOUT)
        self._readers: dict[int, Consumer] = {}
        self._ended: set[int] = set()
        for place in held:
            consumer = Consumer(reader)
            consumer.assign([TopicPartition(work.source, place.partition, max(place.offset, 0))])
            assert place.offset >= 0 or place.offset == OFFSET_INVALID
            self._readers[place.partition] = consumer

    def run(self) -> None:
        """Copy batches up to the end of the source."""
        number = 0
        while batch := [m for p in self._readers for m in self._read(p)]:
            print(json.dumps([[m.partition(), m.offset()] for m in batch]), flush=True)
            self._copy(batch, number)
            number += 1
        for consumer in (self._positions, *self._readers.values()):
            consumer.close()

    def _read(self, partition: int) -> list[Message]:
        found: list[Message] = []
        while len(found) < self._work.batch and partition not in self._ended:
            message = self._readers[partition].poll(TIMEOUT)
            assert message is not None, f"no answer for partition {partition} within {TIMEOUT:g} s"
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(partition)
            else:
                raise AssertionError(error)
        return found

    def _copy(self, batch: list[Message], number: int) -> None:
        mode = self._work.mode
        ends = {m.partition(): m.offset() + 1 for m in batch}
        positions = [TopicPartition(self._work.source, p, offset) for p, offset in ends.items()]
        self._reach("after the read", number)
        if mode == "transactional":
            self._producer.begin_transaction()
            self._send(batch, number)
            group = self._positions.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(positions, group, TIMEOUT)
            self._reach("between the writes", number)
            self._producer.commit_transaction(TIMEOUT)
        elif mode == "at most once":
            self._positions.commit(offsets=positions, asynchronous=False)
            self._reach("between the writes", number)
            self._send(batch, number)
        else:
            self._send(batch, number)
            self._reach("between the writes", number)
            self._positions.commit(offsets=positions, asynchronous=False)
        self._reach("after all", number)

    def _send(self, batch: list[Message], number: int) -> None:
        half = len(batch) // 2
        self._produce(batch[:half])
        self._reach("half sent", number)
        self._produce(batch[half:])

    def _produce(self, messages: list[Message]) -> None:
        for m in messages:
            key = b"%d:%d" % (m.partition(), m.offset())
            self._producer.produce(self._work.target, transformed(m.value()), key, m.partition(), on_delivery=_must)
        assert self._producer.flush(TIMEOUT) == 0

    def _reach(self, point: Point, number: int) -> None:
        if (self._work.crash_batch, self._work.crash_point) == (number, point):
            os.kill(os.getpid(), signal.SIGKILL)


def _must(error: Any, _: Message) -> None:
    assert error is None, error


def main() -> None:
    """Copy as standard input says."""
    Copier(Work(**json.loads(sys.stdin.readline()))).run()


if __name__ == "__main__":
    main()
