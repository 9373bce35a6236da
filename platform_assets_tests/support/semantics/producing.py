"""The leg from a producer to Kafka: one configuration after another, with the same faults on three brokers.

A producer takes notes in a process of its own (`sender.py`): each value before it is sent, and each delivery report. The
notes are compared with the log, which a plain consumer reads afterwards. Faults are caused at known points: a proxy holds
back or cuts requests and answers, brokers are frozen and killed by their process ids, and leaders are moved.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from kafka import TopicPartition as Place
from kafka.admin import KafkaAdminClient

from platform_assets_tests.support.broker_proxy import END_TRANSACTION, PRODUCE, proxied
from platform_assets_tests.support.semantics import sender
from platform_assets_tests.support.semantics.judging import (
    BATCH,
    FAULTS,
    SETUPS,
    VALUES,
    Fault,
    Judged,
    Notes,
    Setup,
    applies,
)
from platform_assets_tests.support.trio import Trio, three_brokers
from testbed.clients import librdkafka
from testbed.loads import wait_until

LAST: Final = -1
"""A value that the judge sends, acknowledged by all replicas, after all values of a producer."""
ON_THE_WAY_SECONDS: Final = 5.0
REPLICAS: Final = (1, 2, 3)
"""Nodes of each topic's partition. The first is the leader until it is killed."""
PROPERTIES: Final[Mapping[str, str]] = {"broker.session.timeout.ms": "12000"}
"""The time after which a silent broker is considered dead: longer than brokers stay frozen."""
FETCH_WAIT_SECONDS: Final = 0.5
"""Default of `replica.fetch.wait.max.ms`: how long a follower's fetch waits at the leader."""

# --- one producer ---------------------------------------------------------------------------------------------------


@dataclass
class Sender:
    """A producer's process, and the notes that it has printed. A transactional sender begins and commits on request."""

    setup: Setup
    bootstrap: str
    topic: str
    _notes: list[dict[str, Any]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @contextmanager
    def running(self) -> Iterator[Sender]:
        """Run the process within the block; it is killed at the end if it has not ended."""
        command = [sys.executable, "-m", sender.__name__]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as self._process:
            reader = threading.Thread(target=self._read)
            reader.start()
            try:
                settings = self.setup.settings(self.bootstrap, self.topic)
                self._write(json.dumps({"settings": settings, "topic": self.topic}))
                self.wait("ready", 1)
                yield self
            finally:
                if self._process.poll() is None:
                    self.kill()
                reader.join()
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()  # type: ignore[union-attr]

    def do(self, command: str, *, wait: bool = True) -> None:
        """Send a command, and wait until it is done. Transactional commands do nothing for other configurations."""
        if command in ("begin", "commit") and not self.setup.transactional:
            return
        done = self._count("done")
        self._write(command)
        if wait:
            self.wait("done", done + 1)

    def kill(self) -> None:
        """Kill the process."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def wait(self, kind: str, count: int) -> None:
        """Wait until there are `count` notes of this kind. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._count(kind) >= count or self._process.poll() is not None, 300):
                raise TimeoutError(f"{self.setup.told}: waited in vain for {count} notes {kind!r}")
            assert self._count(kind) >= count, f"{self.setup.told}: the producer ended with {self._process.poll()}"

    def batch(self, number: int) -> str:
        """Return the command that sends a batch, counted from 0."""
        return f"send {number * BATCH} {(number + 1) * BATCH}"

    def _count(self, kind: str) -> int:
        return sum(note["note"] == kind for note in self._notes)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._notes.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def noted(self) -> Notes:
        """The notes so far."""
        tried = dict.fromkeys(note["value"] for note in self._notes if note["note"] == "try")
        delivered: dict[int, int | None] = {}
        uncommitted: dict[int, int | None] = {}
        for note in self._notes:
            if note["note"] == "delivered":
                uncommitted[note["value"]] = note["offset"]
            if not self.setup.transactional or note.get("command") == "commit":
                delivered |= uncommitted
                uncommitted = {}
        return Notes(tuple(tried), delivered)


# --- the faults -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """Three brokers, and the names of topics on them."""

    trio: Trio
    stem: str

    def topic(self, setup: Setup, fault: Fault) -> str:
        """Return the name of the topic of one producer."""
        return f"{self.stem}-{SETUPS.index(setup)}-{FAULTS.index(fault)}"

    def judged(self, setup: Setup, fault: Fault, *notes: Notes) -> Judged:
        """Compare the notes of one or more processes with the log."""
        tried = tuple(dict.fromkeys(value for each in notes for value in each.tried))
        delivered = {value: offset for each in notes for value, offset in each.delivered.items()}
        topic = self.topic(setup, fault)
        settle(self.trio, topic, len(delivered) if setup.acks == "0" else 0)
        log = read(self.trio.bootstrap, topic, "read_committed")
        everything = read(self.trio.bootstrap, topic, "read_uncommitted")
        return Judged(setup, fault, Notes(tried, delivered), log, len(everything) - len(log))


def lose(scene: Scene, setup: Setup, fault: Fault) -> Judged:
    """Lose the request or the answer of the second batch."""
    topic = scene.topic(setup, fault)
    scene.trio.create(topic, [REPLICAS])
    with proxied(scene.trio.bootstrap) as proxy, Sender(setup, proxy.bootstrap, topic).running() as run:
        run.do("begin")
        for number in range(VALUES // BATCH):
            if number == 1:
                proxy.arm(PRODUCE, "cut request" if fault == "request lost" else "cut answer")
            run.do(run.batch(number))
            run.do("flush")
            if number == 1:
                proxy.wait_fired()
            elif number == 0:
                # Without acknowledgements, `flush` does not wait for the request to arrive.
                proxy.wait_forwarded(1)
        run.do("commit")
        return scene.judged(setup, fault, run.noted)


def kill_producer(scene: Scene, setup: Setup, fault: Fault) -> Judged:
    """Kill the producer before it reads the answer to its second batch, or to the commit of this batch."""
    topic = scene.topic(setup, fault)
    scene.trio.create(topic, [REPLICAS])
    with proxied(scene.trio.bootstrap) as proxy:
        with Sender(setup, proxy.bootstrap, topic).running() as run:
            run.do("begin")
            run.do(run.batch(0))
            run.do("flush")
            run.do("commit")
            run.do("begin")
            if fault == "producer killed":
                proxy.arm(PRODUCE, "keep answer")
            run.do(run.batch(1))
            run.do("flush", wait=fault != "producer killed")
            if fault == "producer killed at the commit":
                proxy.arm(END_TRANSACTION, "keep answer")
                run.do("commit", wait=False)
            proxy.wait_fired()
            run.kill()
        first = run.noted
        with Sender(setup, proxy.bootstrap, topic).running() as again:
            again.do("begin")
            # The values that the notes do not show as delivered: those of the second batch, and the third.
            again.do(f"send {len(first.delivered)} {VALUES}")
            again.do("flush")
            again.do("commit")
        return scene.judged(setup, fault, first, again.noted)


def move_leader(scene: Scene, setup: Setup, fault: Fault) -> Judged:
    """Move the leader away and back while the second and third batch are on the way."""
    topic = scene.topic(setup, fault)
    scene.trio.create(topic, [REPLICAS])
    with proxied(scene.trio.bootstrap) as proxy, Sender(setup, proxy.bootstrap, topic).running() as run:
        run.do("begin")
        run.do(run.batch(0))
        run.do("flush")
        wait_until("the first batch is in the log", lambda: log_end(scene.trio, topic) == BATCH)
        with proxy.holding():
            run.do(run.batch(1))
            run.do(run.batch(2))
            run.do("flush", wait=False)
            # An idempotent producer of this client keeps the third batch until the second one is answered.
            proxy.wait_held(1 if setup.idempotent else 2)
            lead(scene.trio, topic, (2, 1, 3))
            proxy.pass_request()
            lead(scene.trio, topic, REPLICAS)
            if not setup.idempotent:
                proxy.pass_request()
            if setup.acks != "0" and not setup.idempotent:
                # Then every replica follows the leader, and none takes the second batch as a leader.
                wait_until("replicas have the third batch", lambda: log_end(scene.trio, topic) == 2 * BATCH)
        run.wait("delivered", VALUES)
        run.do("commit")
        return scene.judged(setup, fault, run.noted)


def lead(trio: Trio, topic: str, replicas: Sequence[int]) -> None:
    """Make the first of these nodes the leader of the topic's partition, and wait until it leads."""
    client = KafkaAdminClient(bootstrap_servers=trio.bootstrap)
    try:
        client.alter_partition_reassignments({Place(topic, 0): list(replicas)})
    finally:
        client.close()
    admin = trio.admin()

    def led() -> bool:
        with contextlib.suppress(KafkaException):
            admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(30)
        return trio.leader(topic) == replicas[0]

    wait_until(f"node {replicas[0]} leads {topic}", led)


def kill_leader(scene: Scene) -> list[Judged]:
    """Kill the leader of every configuration's topic at once, when it has appended what no follower has."""
    trio = scene.trio
    fault: Fault = "leader killed"
    topics = {setup: scene.topic(setup, fault) for setup in SETUPS}
    probe = f"{scene.stem}-probe"
    for topic in (*topics.values(), probe):
        trio.create(topic, [REPLICAS])
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(Sender(s, trio.bootstrap, t).running()) for s, t in topics.items()]
        for run in running:
            run.do("begin")
            run.do(run.batch(0))
            run.do("flush")
        wait_until("replicas have the first batch", lambda: all(log_end(trio, t) == BATCH for t in topics.values()))
        sizes = {t: log_size(trio, t) for t in topics.values()}
        with frozen(trio, 2, 3):
            complete_fetches(trio, probe)
            for run in running:
                run.do(run.batch(1))
                run.do("flush", wait=False)
            wait_until("the leader has the second batch", lambda: all(log_size(trio, t) > s for t, s in sizes.items()))
            for run in running:
                if run.setup.acks != "all":
                    run.wait("delivered", 2 * BATCH)
            trio.kill(1)
        wait_until("other nodes lead", lambda: all(trio.leader(t) in (2, 3) for t in topics.values()), 120)
        for run in running:
            run.wait("delivered", 2 * BATCH)
            run.do(run.batch(2))
            run.do("flush")
            run.do("commit")
        trio.start(1)
        wait_until("node 1 is in sync", lambda: all(len(trio.in_sync(t)) == 3 for t in topics.values()), 120)
        return [scene.judged(run.setup, fault, run.noted) for run in running]


def complete_fetches(trio: Trio, probe: str) -> None:
    """Write records to a topic of node 1 until no fetch of a frozen follower can be waiting there: a fetch is answered
    with the next record, or after the fetch wait."""
    producer = Producer({**librdkafka(trio.bootstrap), "acks": "1", "linger.ms": 0})
    until = time.monotonic() + 2 * FETCH_WAIT_SECONDS
    while time.monotonic() < until:
        producer.produce(probe, b"probe", partition=0)
        assert producer.flush(30) == 0
        time.sleep(FETCH_WAIT_SECONDS / 10)


@contextmanager
def frozen(trio: Trio, *nodes: int) -> Iterator[None]:
    """Freeze these brokers within the block."""
    pids = [trio.record(node).pid for node in nodes]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def log_size(trio: Trio, topic: str) -> int:
    """Return the bytes of a partition's log on node 1."""
    return sum(f.stat().st_size for f in (trio.home.root / trio.service(1)).glob(f"{topic}-0/*.log"))


def log_end(trio: Trio, topic: str) -> int:
    """Return the offset up to which all in-sync replicas have partition 0, including open transactions."""
    place = TopicPartition(topic, 0)
    admin = trio.admin()
    found = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_UNCOMMITTED)
    return int(found[place].result(30).offset)


def settle(trio: Trio, topic: str, wanted: int) -> None:
    """Wait until all replicas have the whole log of a topic. No answer tells when records without acknowledgement are in
    the log, so wait at most `ON_THE_WAY_SECONDS` until there are `wanted` records."""
    until = time.monotonic() + ON_THE_WAY_SECONDS
    while log_end(trio, topic) < wanted and time.monotonic() < until:
        time.sleep(0.05)
    producer = Producer({**librdkafka(trio.bootstrap), "acks": "all", "linger.ms": 0})
    producer.produce(topic, b"%d" % LAST, partition=0)
    assert producer.flush(60) == 0


def read(bootstrap: str, topic: str, isolation: str) -> tuple[tuple[int, int], ...]:
    """Return `(offset, value)` of every record of partition 0 before the one that `settle` added, in the order of the
    log."""
    settings = {
        **librdkafka(bootstrap),
        "group.id": "judge",
        "enable.auto.commit": False,
        "isolation.level": isolation,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[tuple[int, int]] = []
    while True:
        message = consumer.poll(60)
        assert message is not None, f"{topic}: no answer within 60 s"
        error = message.error()
        if error is None and int(message.value()) != LAST:
            found.append((message.offset(), int(message.value())))
        elif error is None:
            consumer.close()
            return tuple(found)
        else:
            raise AssertionError(error)


CAUSES: Final[Mapping[Fault, Callable[[Scene, Setup, Fault], Judged]]] = {
    "request lost": lose,
    "answer lost": lose,
    "leader moved": move_leader,
    "producer killed": kill_producer,
    "producer killed at the commit": kill_producer,
}


def run(root: Path, stem: str = "sent") -> tuple[Judged, ...]:
    """Start three brokers below `root`, and run every configuration with every fault that applies to it."""
    with three_brokers(root, PROPERTIES) as trio:
        return judged_on(Scene(trio, stem))


def judged_on(scene: Scene) -> tuple[Judged, ...]:
    """Run every configuration with every fault that applies to it, on running brokers."""
    found = kill_leader(scene)
    for fault, cause in CAUSES.items():
        found += [cause(scene, setup, fault) for setup in SETUPS if applies(setup, fault)]
    return tuple(sorted(found, key=lambda j: (SETUPS.index(j.setup), FAULTS.index(j.fault))))
