"""A day in minutes: everything that can happen to a topic's log happens to one topic, in random order, and the advice
in messages is followed.

A simulated operator reads `platform-assets status` and runs the commands that `status` recommends, one at a time.
Nobody else does anything. The producer notes the log and offset of each record, so that the end can be judged: if a
record is missing from the tables, a decision must have given it up, or Kafka must have lost it before a window
contained it.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from platform_assets.errors import BrokerUnreachableError, TopicMissingError
from platform_assets.ledger.entries import ACCEPTED_LOSS
from platform_assets.model.declaration import EngineName
from platform_assets.model.tables import TableRef
from platform_assets_tests.soak import proof
from platform_assets_tests.soak.embedded import Embedded
from platform_assets_tests.soak.live import create
from platform_assets_tests.support.logs import cut_off
from testbed.loads import wait_until

_PARTITIONS: Final = 2
_BOUND: Final = 600.0
"""Maximum number of seconds until a change has been decided on and everything is loaded. A failed window is requested
again after at most ten minutes."""
_PATIENCE: Final = 30.0
"""Seconds to wait before running the same command again."""
_HOT_KEYS: Final = 5
_BATCH, _CUT_OFF = 20, 60
"""Limits for the number of sealed offsets that a log loses with its end: the minimum (inclusive) and the maximum
(exclusive)."""
_COMMAND: Final = re.compile(r"`platform-assets (accept-[^`]*)`")
_BROKER: Final = {"log.cleaner.backoff.ms": "200", "log.segment.delete.delay.ms": "1000"}
_COMPACT: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "1000"}
_KEEP: Final = {"cleanup.policy": "delete"}


@dataclass(frozen=True, slots=True)
class Sent:
    """Location of an acknowledged record. A `hot` record shares its key with other records, so compaction may remove
    the record."""

    partition: int
    offset: int
    hot: bool


Log = dict[bytes, Sent]
"""The acknowledged records of one of the topic's logs, by value."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Events of the topic in order, the commands that were run, and findings. `seconds` is the duration of the whole
    day."""

    seed: int
    engine: EngineName
    changes: tuple[str, ...]
    commands: tuple[str, ...]
    sent: int
    given_up: int
    windows: int
    seconds: float
    anomalies: tuple[str, ...]

    def line(self) -> str:
        """Return a Markdown table row."""
        return (
            f"| {self.seed} | {self.engine} | {', '.join(self.changes)} | {', '.join(self.commands)} | {self.sent:,} | "
            f"{self.given_up:,} | {self.windows} | {self.seconds:.0f} | {'; '.join(self.anomalies) or 'none'} |"
        )


HEADER: Final = (
    "| seed | engine | what happened | commands given | records acknowledged | records in no table | windows | seconds | anomalies |\n"
    "|--:|---|---|---|--:|--:|--:|--:|---|"
)


class Writer:
    """A producer that sends records all the time, except while it is `held`.

    `logs` are the topic's logs so far; the current log comes last. `made` is the number of values created; values are
    numbered from 0.
    """

    def __init__(self, platform: Embedded, topic: str, partitions: int, rng: random.Random) -> None:
        self.logs: list[Log] = [{}]
        self.partitions, self.made = partitions, 0
        self._platform, self._topic, self._rng = platform, topic, rng
        self._stop, self._turn = threading.Event(), threading.Lock()
        self._failed: list[BaseException] = []

    @contextmanager
    def sending(self) -> Iterator[Writer]:
        """Send while the block runs."""
        thread = threading.Thread(target=self._send, name="writer")
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()
        assert not self._failed, self._failed[0]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Pause sending while the block runs. When the block begins, every record sent before has either been
        acknowledged or failed for good."""
        with self._turn:
            yield

    def records(self, count: int) -> list[tuple[bytes, bytes, int, bool]]:
        """Return new records as tuples of value, key, partition, and True if other records share the key."""
        found = []
        for _ in range(count):
            value = b"r%d" % self.made
            hot = self._rng.random() < 0.3
            key = b"hot %d" % self._rng.randrange(_HOT_KEYS) if hot else value
            found.append((value, key, self.made % self.partitions, hot))
            self.made += 1
        return found

    def note(self, value: bytes, partition: int, offset: int, *, hot: bool) -> None:
        """Record the location at which a record was acknowledged."""
        self.logs[-1][value] = Sent(partition, offset, hot)

    def _send(self) -> None:
        try:
            while not self._stop.wait(0.2):
                with self._turn:
                    self._batch(self.records(20))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits for the end
            self._failed.append(error)

    def _batch(self, records: Sequence[tuple[bytes, bytes, int, bool]]) -> None:
        # A new producer for each batch, so that none remembers an earlier log, leader or number of partitions.
        producer = Producer(
            {"bootstrap.servers": self._platform.bootstrap, "linger.ms": 5, "log_level": 0, "message.timeout.ms": 5_000}
        )

        def delivered(error: Any, message: Any, hot: bool) -> None:
            if error is None:
                self.note(message.value(), message.partition(), message.offset(), hot=hot)

        for value, key, partition, hot in records:
            # A refused record may still be in the log, so the judgment does not depend on it.
            producer.produce(self._topic, value, key, partition, on_delivery=lambda e, m, hot=hot: delivered(e, m, hot))
        producer.flush(10)


@dataclass
class _Day:
    platform: Embedded
    topic: str
    writer: Writer
    rng: random.Random
    commands: list[str] = field(default_factory=list)
    aborted: set[bytes] = field(default_factory=set)
    say: Callable[[str], None] = print

    @property
    def changes(self) -> Mapping[str, Callable[[], None]]:
        """The possible changes: maps the name of each change to the function that makes it. Each change is complete
        when its function returns."""
        return {
            "retention overtakes": self.retention,
            "compaction": self.compaction,
            "topic re-created": self.created_again,
            "log truncated": self.truncation,
            "partition added": self.partition,
            "transaction hangs": self.transaction,
            "another cluster": self.cluster,
        }

    @property
    def admin(self) -> AdminClient:
        """Return a new admin client, because an old client may have outdated metadata. Keep a reference to the client:
        its futures fail once it is garbage-collected."""
        return AdminClient({"bootstrap.servers": self.platform.bootstrap, "log_level": 0})

    # --- what happens ---------------------------------------------------------------------------------------------------

    def retention(self) -> None:
        """Delete records in a sealed window before anything can load the window."""
        self.platform.kill("spark")
        try:
            newest = self._newest()
            self._wait("a window is sealed but not loaded", lambda: self._newest() > newest)
            window = self.platform.ledger.windows(self.topic)[-1]
            partition, cut = next((p, r) for p, r in window.ranges.by_partition.items() if r.size > 1)
            upto = cut.start + self.rng.randrange(1, cut.size)
            admin = self.admin
            for future in admin.delete_records([TopicPartition(self.topic, partition, upto)]).values():
                future.result(30)
        finally:
            self.platform.start("spark")

    def compaction(self) -> None:
        """Let the log cleaner remove records that newer records with the same key replace."""
        before = self._cleaned()
        self._configure(_COMPACT)
        self._wait("the log cleaner has run", lambda: self._cleaned() > before)
        self._configure(_KEEP)

    def created_again(self) -> None:
        """Delete and recreate the topic in the middle of a window."""
        with self.writer.held():
            former = self.platform.cluster.topic(self.topic).topic_id
            admin = self.admin
            admin.delete_topics([self.topic])[self.topic].result(30)

            def created() -> bool:
                made = NewTopic(self.topic, self.writer.partitions, 1, config={"retention.ms": "-1"})
                try:
                    admin.create_topics([made])[self.topic].result(30)
                except KafkaException as e:
                    if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise
                    return False
                return True

            self._wait("the topic can be created again", created)
            self._wait("the new topic is known", lambda: self._topic_id() not in (None, former))
            self.writer.logs.append({})

    def truncation(self) -> None:
        """Lose the end of a partition's log, as in an unclean leader election. Other records get the lost offsets."""
        partition = self.rng.randrange(self.writer.partitions)
        self._wait(
            "enough of the partition is sealed", lambda: self._sealed(partition) - self._start(partition) > 2 * _CUT_OFF
        )
        with self.writer.held():
            sealed = self._sealed(partition)
            (folder,) = self.platform.home.kafka.glob(f"{self.topic}-{partition}")
            self.platform.kill("kafka")
            end = cut_off(folder, sealed - self.rng.randrange(_BATCH, _CUT_OFF))
            self.platform.start("kafka")
            self._wait("the log is shorter", lambda: self._ends().get(partition) == end)
            assert end < sealed
            kept = {v: s for v, s in self.writer.logs[-1].items() if s.partition != partition or s.offset < end}
            self.writer.logs.append(kept)

    def partition(self) -> None:
        """Add a partition."""
        with self.writer.held():
            more = self.writer.partitions + 1
            admin = self.admin
            admin.create_partitions([NewPartitions(self.topic, more)])[self.topic].result(30)
            self._wait("the new partition has a leader", lambda: len(self._ends()) == more)
            self.writer.partitions = more

    def transaction(self) -> None:
        """Leave a transaction open past the end of a window, then commit or abort it."""
        producer = Producer(
            {"bootstrap.servers": self.platform.bootstrap, "transactional.id": str(uuid.uuid4()), "log_level": 0,
             "transaction.timeout.ms": 600_000}
        )  # fmt: skip
        producer.init_transactions(30)
        producer.begin_transaction()
        with self.writer.held():
            records, places = self.writer.records(5), dict[bytes, tuple[int, int]]()
        for value, key, partition, _ in records:
            producer.produce(
                self.topic, value, key, partition,
                on_delivery=lambda e, m: places.update({m.value(): (m.partition(), m.offset())} if e is None else {}),
            )  # fmt: skip
        assert not producer.flush(30)
        began = datetime.now(UTC)
        self._wait("the end of a window has passed", lambda: datetime.now(UTC).minute != began.minute)
        time.sleep(self.rng.uniform(1, 10))
        if self.rng.random() < 0.5:
            producer.abort_transaction(30)
            self.aborted.update(value for value, *_ in records)
            return
        producer.commit_transaction(30)
        for value, _, _, hot in records:
            self.writer.note(value, *places[value], hot=hot)

    def cluster(self) -> None:
        """Move the broker's disks to another cluster. Topics, topic ids and offsets stay the same."""
        with self.writer.held():
            self.platform.kill("kafka")
            for file in self.platform.home.kafka.rglob("meta.properties"):
                text = re.sub(r"(?m)^cluster\.id=.*$", f"cluster.id={self._cluster_id}", file.read_text())
                file.write_text(text)
            self.platform.start("kafka")
            self._wait("the brokers answer", lambda: len(self._ends()) == self.writer.partitions)
            self.writer.logs.append(dict(self.writer.logs[-1]))

    # --- what the operator does
    # ---------------------------------------------------------------------------------------------

    def wait_until_complete(self, since: datetime) -> None:
        """Run the commands that `status` recommends until `status` reports no problem and the windows that ended after
        `since` are loaded."""
        deadline, code, text = time.monotonic() + _BOUND, -1, ""
        given_last, given_at = "", 0.0
        while True:
            # Load first, so that the judgment that all is well covers what was loaded.
            done = self._newest() > since and proof.progress(self.platform, [self.topic]).complete
            answer = self.platform.command("status", "--json")
            code, text = answer.code, answer.text
            if done and not code:
                return
            named = _COMMAND.search(_problems(text))
            # The sensor needs a tick to see the result of a command that was just run.
            if named is not None and (named.group(1) != given_last or time.monotonic() > given_at + _PATIENCE):
                given_last, given_at = named.group(1), time.monotonic()
                words = named.group(1).replace('"…"', "obeyed").replace('\\"…\\"', "obeyed").split()
                self.say(f"{self.topic}: platform-assets {' '.join(words)}")
                given = self.platform.command(*words, "--yes")
                assert given.code == 0, f"{words}: {given.text}"
                self.commands.append(words[0])
            if time.monotonic() > deadline:
                raise AssertionError(f"not complete after {_BOUND:g} s; `status` exited with code {code}: {text}")
            time.sleep(1)

    # --- state --------------------------------------------------------------------------------------------------

    @property
    def _cluster_id(self) -> str:
        # Sixteen bytes in base64, the form in which Kafka writes ids.
        return uuid.UUID(int=self.rng.getrandbits(128)).hex[:22]

    def _newest(self) -> datetime:
        return self.platform.ledger.newest_edges([self.topic]).get(self.topic, datetime.fromtimestamp(0, UTC))

    def _topic_id(self) -> str | None:
        try:
            return self.platform.cluster.topic(self.topic).topic_id
        except (TopicMissingError, BrokerUnreachableError):
            return None

    def _ends(self) -> Mapping[int, int]:
        try:
            cluster = self.platform.cluster
            return {p: f.offset for p, f in cluster.high_watermarks(cluster.topic(self.topic)).items()}
        except (TopicMissingError, BrokerUnreachableError):
            return {}

    def _start(self, partition: int) -> int:
        cluster = self.platform.cluster
        return cluster.log_starts(cluster.topic(self.topic))[partition].offset

    def _sealed(self, partition: int) -> int:
        """Return the offset up to which windows of the newest generation are sealed."""
        windows = self.platform.ledger.windows(self.topic)
        newest = windows[-1].ranges.by_partition if windows and windows[-1].generation == len(self.writer.logs) else {}
        return newest[partition].end if partition in newest else 0

    def _configure(self, values: Mapping[str, str]) -> None:
        entries = [ConfigEntry(n, v, incremental_operation=AlterConfigOpType.SET) for n, v in values.items()]
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=entries)
        admin = self.admin
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def _cleaned(self) -> int:
        """Return the sum of the offsets that the log cleaner has reached in the topic's partitions, according to its
        checkpoint file."""
        file = self.platform.home.kafka / "cleaner-offset-checkpoint"
        lines = file.read_text().splitlines()[2:] if file.exists() else []
        return sum(int(line.split()[2]) for line in lines if line.split()[0] == self.topic)

    def _wait(self, what: str, reached: Callable[[], bool]) -> None:
        wait_until(what, reached, seconds=240)


def run(seed: int, root: Path, engine: EngineName, say: Callable[[str], None] = print) -> Outcome:
    """Run one day of a topic on a platform below `root`. Raises AssertionError if following the messages does not
    help."""
    rng, topic, began = random.Random(seed), f"day-{seed}", time.monotonic()
    platform = Embedded(root, root / "lake", properties=_BROKER)
    platform.declare(
        topic, datetime.now(UTC) - timedelta(minutes=1), engine, sensor_interval_seconds=1, max_windows_per_run=2
    )
    with platform.running(("kafka", "spark")):
        create(platform.bootstrap, topic, _PARTITIONS)
        platform.start("dagster-daemon")
        writer = Writer(platform, topic, _PARTITIONS, random.Random(rng.random()))
        day = _Day(platform, topic, writer, rng, say=say)
        order = list(day.changes)
        rng.shuffle(order)
        with writer.sending():
            day.wait_until_complete(datetime.now(UTC))
            for name in order:
                say(f"{topic}: {name}")
                day.changes[name]()
                day.wait_until_complete(datetime.now(UTC))
        proof.healed(platform, [topic], _BOUND)
        found, given_up = _anomalies(platform, topic, writer.logs, day.aborted)
        sent = len({value for log in writer.logs for value in log})
        windows = len(platform.ledger.windows(topic))
        seconds = time.monotonic() - began
        return Outcome(seed, engine, tuple(order), tuple(day.commands), sent, given_up, windows, seconds, tuple(found))


def _anomalies(platform: Embedded, topic: str, logs: Sequence[Log], aborted: set[bytes]) -> tuple[list[str], int]:
    """Return the anomalies of the table, and the number of acknowledged records that are missing from the table."""
    counted = Counter(row.value for row in proof.rows(platform, topic))
    sent = {value for log in logs for value in log}
    found = [f"{value!r} is in {number} rows" for value, number in counted.items() if number > 1]
    found += [f"{value!r} was aborted but is in the table" for value in sorted(aborted & counted.keys())]
    receipts = platform.ledger.receipts(TableRef.raw(topic))
    covered: set[bytes] = set()
    for window in platform.ledger.windows(topic):
        ranges, log = window.ranges.by_partition, logs[window.generation - 1]
        held = {v: s for v, s in log.items() if s.partition in ranges and s.offset in ranges[s.partition]}
        covered |= held.keys()
        # The brokers explain what compaction removed; compaction never removes a record whose key is unique.
        missing = [value for value, s in held.items() if value not in counted and not s.hot]
        accepted = (receipts[window.key].holes or {}).get(ACCEPTED_LOSS, 0)
        if len(missing) > accepted:
            found.append(
                f"window {window.key}: {len(missing)} records have no row, and {accepted} of them were accepted as lost"
            )
    found += [f"{value!r} is in no window" for value in sorted(logs[-1].keys() - covered)[:10]]
    audit = platform.command("audit", f"raw/{topic}", "--deep")
    if audit.code:
        found.append(f"`audit --deep` exited with code {audit.code}: {audit.text}")
    return found + proof.leftovers(platform, topic), len(sent - counted.keys())


def _problems(text: str) -> str:
    """Return all problems in the JSON of `status` as one string."""
    try:
        tables = json.loads(text[text.index("{") :])["tables"]
    except (ValueError, KeyError):
        return ""
    said = [p for t in tables for p in (*t["problems"], t["error"] or "")]
    return "\n".join([*said, *(c["headline"] for t in tables for c in t["checks"] if c["passed"] is False)])
