"""The guide's steps for a topic that moves to another cluster or to another name, between two real clusters.

Loads read from the brokers with the columnar engine's own code, in this process. The tests compare the results with
what a plain consumer reads.
"""

from __future__ import annotations

import base64
import shutil
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.engines.columnar import task
from platform_assets.engines.columnar.engine import ColumnarEngine, Plan
from platform_assets.engines.protocol import LoadEngine
from platform_assets.engines.shared.reports import Report
from platform_assets.errors import ClusterChangedError, PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef
from platform_assets.services import brokers, platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.home import Home
from platform_assets.services.platform import UpOptions
from platform_assets_tests.support import answers
from platform_assets_tests.support.erasures import found_in
from platform_assets_tests.support.local_engine import LocalEngine
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, follow
from testbed.clients import client_settings, librdkafka
from testbed.homes import home_at, service_environment
from testbed.loads import Record, Row, TopicLake, committed, records, send, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = [pytest.mark.cluster, pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

ERASED, NEEDLE = b"customer-4711", b"zebra-in-pyjamas"
FORGOTTEN = b"customer-4712"
WHY = ("--reason", "asked to be forgotten", "--yes")


class HereEngine(ColumnarEngine):
    """The columnar engine without Spark: its tasks run in this process."""

    def _reports(self, plan: Plan, records_per_file: int) -> Generator[Report, None, None]:
        yield from task.reports(self._work(plan, records_per_file), range(len(plan.shares)))

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `LoadEngine`."""
        return LocalEngine(self.lake).measure(table, keys, version)


class HereLake(TopicLake):
    """A topic and its lake, loaded by this process."""

    @property
    def engine(self) -> LoadEngine:
        """The engine that loads use."""
        return HereEngine(self.lake, lambda: self.settings, self.spark)

    def on(self, bootstrap: str, topic: str = "") -> HereLake:
        """Return the same lake with the brokers at `bootstrap` and, if given, another topic."""
        return HereLake(bootstrap, topic or self.topic, self.root, self.spark, closed=self.closed)

    def shell(self) -> Shell:
        """Return a shell in which only this topic is declared."""
        return Shell.of_lake(self.root.parent / "project", self, "sc://127.0.0.1:1")

    def shell_does(self, *arguments: str) -> str:
        """Run `platform-assets` with these arguments; return its output."""
        done = self.shell().run(*arguments)
        assert done.exit_code == 0, done.output
        return done.output


@dataclass(frozen=True)
class Other:
    """Another cluster with one broker, which a test can stop and start."""

    home: Home

    def start(self) -> None:
        """Start the broker with its existing data; return when the broker answers."""
        options = UpOptions(services=("kafka",), broker=BrokerSettings(heap="384m"))
        platform.up(self.home, options, report=lambda _: None, environ=service_environment())

    def stop(self) -> None:
        """Stop the broker gracefully; its data stays."""
        platform.down(self.home, report=lambda _: None)

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return brokers.remembered_addresses(self.home)

    def create(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; return when its partitions have leaders."""
        admin = AdminClient({**librdkafka(self.bootstrap), "log_level": 2})
        admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(30)
        self.wait_for(topic, dict.fromkeys(range(partitions), 0))

    def wait_for(self, topic: str, ends: Mapping[int, int]) -> None:
        """Wait until the partitions of a topic have leaders and end at these offsets."""

        def reached() -> bool:
            try:
                cluster = Cluster.connect(client_settings(self.bootstrap))
                found = cluster.high_watermarks(cluster.topic(topic))
            except PlatformError:
                return False
            return {p: f.offset for p, f in found.items()} == ends

        wait_until(f"topic {topic} ends at {ends}", reached)

    def folder(self, topic: str, partition: int) -> Path:
        """Return the folder of a partition's log."""
        return self.home.root / "kafka" / f"{topic}-{partition}"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Other]:
    made = Other(home_at(tmp_path_factory.mktemp("other") / "cluster"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def lk(broker: Broker, topic: TopicMaker, tmp_path: Path) -> HereLake:
    """A topic with two partitions and no window yet."""
    return HereLake(broker.bootstrap, topic(partitions=2), tmp_path / "lake", answers.nothing_answers)


def people(stem: str, partitions: int = 2) -> list[Record]:
    """Return twenty-two records for each partition: two records of a person to erase, two of a person to forget, and
    eighteen others."""
    found = []
    for partition in range(partitions):
        for number in range(20):
            text = f"{stem}-{partition}-{number}".encode()
            key = FORGOTTEN if number in (5, 15) else b"k%d" % number
            found.append(Record(b"value-" + text, key, partition, (("trace", text),)))
        found[-11:-11] = [Record(NEEDLE, ERASED, partition), Record(NEEDLE, ERASED, partition)]
    return found


def as_record(row: Row) -> Record:
    """Convert a record that a consumer has read into a record to send elsewhere."""
    return Record(row.value, row.key, row.partition, row.headers, row.timestamp)


def mirror(rows: Sequence[Row], bootstrap: str, topic: str, *, timestamps: bool = True) -> None:
    """Send the records that a consumer has read, in the same order and to the same partitions."""
    producer = Producer({**librdkafka(bootstrap), "enable.idempotence": True})
    sent = [as_record(row) for row in rows]
    send(producer, topic, sent if timestamps else [Record(r.value, r.key, r.partition, r.headers) for r in sent])


def mirrored(other: Other, broker: Broker, lk: HereLake) -> None:
    other.create(lk.topic, 2)
    mirror(lk.committed(), other.bootstrap, lk.topic)


def copied(other: Other, broker: Broker, lk: HereLake) -> None:
    """Copy the first broker's segments into the other broker's folders, as if the disk had been copied."""
    other.create(lk.topic, 2)
    ends = lk.high_watermarks()
    other.stop()
    (other.home.root / "kafka" / ".kafka_cleanshutdown").unlink()
    for partition in ends:
        folder = other.folder(lk.topic, partition)
        for path in folder.glob("*.*index"):
            path.unlink()
        shutil.copyfile(broker.segment(lk.topic, partition), folder / f"{0:020}.log")
    other.start()
    other.wait_for(lk.topic, ends)


def cluster_id(bootstrap: str) -> str:
    """Return the id of a cluster, using a new client."""
    return str(AdminClient(librdkafka(bootstrap)).list_topics(timeout=30).cluster_id)


def refused(lk: HereLake, keys: Sequence[str], ids: Sequence[str]) -> ClusterChangedError:
    """Check that cuts and loads of a window are refused, and that the error names both clusters."""
    before = lk.snapshot()
    with pytest.raises(ClusterChangedError) as cutting:
        lk.on(lk.bootstrap).close_window()
    for key in keys:
        with pytest.raises(ClusterChangedError) as loading:
            lk.load(key)
        assert str(loading.value) == str(cutting.value)
    assert all(each in str(cutting.value) for each in ids)
    assert lk.snapshot() == before
    return cutting.value


# --- to another cluster, with its offsets ---------------------------------------------------------------------------


@pytest.mark.parametrize("move", [mirrored, copied])
@pytest.mark.parametrize("emptied", [False, True])
def test_a_topic_that_keeps_its_offsets_goes_on(
    lk: HereLake, broker: Broker, other: Other, move: Callable[[Other, Broker, HereLake], None], emptied: bool
) -> None:
    """The previous cluster's windows are loaded first, as the guide says, except a window that waits."""
    first = lk.window_of(people("first"))
    assert lk.load(first).receipt.rows == 44
    if move is copied:
        lk.abort(people("aborted"))
        lk.commit(people("committed"))
    second = lk.window_of(people("second"))
    rows_of_second = 88 if move is copied else 44
    if emptied:
        assert lk.load(second).receipt.rows == rows_of_second
    at = next(r.offset for r in lk.committed() if r.value == b"value-second-0-3")
    lk.shell_does("erase", lk.topic, "--offsets", f"0:{at}-{at + 1}", *WHY)
    lk.shell_does("erase", lk.topic, "--key", ERASED.decode(), *WHY)
    former = lk.committed()
    move(other, broker, lk)

    there = lk.on(other.bootstrap)
    assert records(there.committed()) == records(former)
    error = refused(there, [first, second], [cluster_id(broker.bootstrap), cluster_id(other.bootstrap)])
    told = follow(there.shell(), error, "--yes")
    assert (second in told) is not emptied
    assert "are not compared with the new log" in told
    there.send(people("third"))
    there.send([Record(b"after the erasure", ERASED, 1)])
    third = there.close_window()
    assert there.load(third).outcome == "loaded"
    if not emptied:
        assert there.load(second).receipt.rows == 0

    until = {p: max(r.offset for r in former if r.partition == p) for p in (0, 1)}
    expected = [
        r
        for r in there.committed()
        if (r.key != ERASED or r.offset > until[r.partition]) and r.value != b"value-second-0-3"
    ]
    assert records(there.rows()) == records(expected)
    assert [there.load(key).outcome for key in (first, third)] == ["kept", "unchanged"]
    assert there.load(second).outcome == ("kept" if emptied else "unchanged")
    assert records(there.rows()) == records(expected)


def test_a_topic_on_copied_disks_keeps_its_id_and_is_compared(other: Other, tmp_path: Path) -> None:
    topic = f"copied-{uuid.uuid4().hex[:12]}"
    other.create(topic, 2)
    lk = HereLake(other.bootstrap, topic, tmp_path / "lake", answers.nothing_answers)
    lk.abort(people("aborted"))
    first = lk.window_of(people("first"))
    assert lk.load(first).receipt.rows == 44
    second = lk.window_of(people("second"))
    lk.shell_does("erase", topic, "--key", ERASED.decode(), *WHY)
    former, left = cluster_id(other.bootstrap), records(lk.rows())
    assert len(left) == 40

    copy = Other(home_at(tmp_path / "copy"))
    other.stop()
    shutil.copytree(other.home.root / "kafka", copy.home.root / "kafka")
    other.start()
    meta = copy.home.root / "kafka" / "meta.properties"
    new = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "a")
    meta.write_text(meta.read_text().replace(former, new))
    try:
        copy.start()
        there = lk.on(copy.bootstrap)
        error = refused(there, [second], [former, new])
        with pytest.raises(ClusterChangedError):
            there.load(first)
        assert "its digests are compared" in follow(there.shell(), error, "--yes")
        third = there.window_of([Record(b"after the erasure", ERASED, 1), Record(b"another", b"k1", 0)])
        assert [there.load(key).receipt.rows for key in (second, third)] == [40, 2]
        expected = records(r for r in there.committed() if r.value != NEEDLE)
        assert len(expected) == 82
        assert records(there.rows()) == expected
        assert not found_in(there.root, NEEDLE)
        assert [there.load(key).outcome for key in (first, second, third)] == ["unchanged"] * 3
        assert records(there.rows()) == expected
    finally:
        copy.stop()


# --- to another cluster, with other offsets -------------------------------------------------------------------------


@pytest.mark.parametrize("stamped", ["by the producer", "by the broker", "anew by the mirror"])
def test_a_topic_whose_offsets_change_starts_a_generation_without_erased_people(
    lk: HereLake, broker: Broker, other: Other, stamped: str
) -> None:
    lk.abort(people("aborted"))
    first = lk.window_of(people("first"))
    assert lk.load(first).receipt.rows == 44
    second = lk.window_of(people("second"))
    at = next(r.offset for r in lk.committed() if r.value == b"value-first-0-3")
    lk.shell_does("erase", lk.topic, "--offsets", f"0:{at}-{at + 1}", *WHY)
    lk.shell_does("erase", lk.topic, "--key", FORGOTTEN.decode(), "--forget-keys", *WHY)
    lk.shell_does("erase", lk.topic, "--key", ERASED.decode(), *WHY)
    left = records(lk.rows(first))
    assert len(left) == 44 - 1 - 4 - 4
    config = {"message.timestamp.type": "LogAppendTime"} if stamped == "by the broker" else {}
    other.create(lk.topic, 2, config)
    former = lk.committed()
    mirror(former, other.bootstrap, lk.topic, timestamps=stamped != "anew by the mirror")

    there = lk.on(other.bootstrap)
    assert there.high_watermarks() == {0: 44, 1: 44}
    assert lk.high_watermarks() != {0: 44, 1: 44}
    refused(there, [first, second], [cluster_id(broker.bootstrap), cluster_id(other.bootstrap)])
    told = there.shell_does("accept-generation", lk.topic, "--reason", "mirrored", "--yes")
    assert "moved to another cluster" in told
    assert f"window {second} was never loaded" in told
    there.send([Record(b"after the erasure", ERASED, 1)])
    third = there.close_window()
    there.load(third)
    log = there.committed()
    came = [r for r in log if r.key != ERASED or (stamped == "by the producer" and r.offset >= 44)]
    if stamped == "anew by the mirror":
        came = log
    assert records(there.rows(third)) == records(came)
    assert records(there.rows(first)) == left
    assert there.load(second).receipt.rows == 0
    # As the guide says of what was erased by offset or with --forget-keys.
    assert sum(r.key == FORGOTTEN for r in there.rows(third)) == 8
    there.shell_does("erase", lk.topic, "--key", FORGOTTEN.decode(), *WHY)
    if stamped == "anew by the mirror":
        there.shell_does("erase", lk.topic, "--key", ERASED.decode(), *WHY)
        came = [r for r in came if r.key != ERASED]
    expected = records(r for r in came if r.key != FORGOTTEN)
    assert records(there.rows(third)) == expected
    assert not found_in(there.root, NEEDLE)
    assert [there.load(key).outcome for key in (first, third)] == ["kept", "unchanged"]
    assert records(there.rows(third)) == expected
    assert records(there.rows(first)) == left


# --- to another name ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken_over", ["before the first cut", "before the first load", "after the first load"])
def test_a_topic_under_another_name_is_loaded_without_erased_people(
    lk: HereLake, topic: TopicMaker, taken_over: str
) -> None:
    first = lk.window_of(people("first"))
    assert lk.load(first).receipt.rows == 44
    lk.shell_does("erase", lk.topic, "--key", ERASED.decode(), *WHY)
    shutil.rmtree(lk.root.parent / "project")
    new = lk.on(lk.bootstrap, topic(partitions=2, stem="renamed"))
    mirror(lk.committed(), new.bootstrap, new.topic)

    def take_over() -> None:
        new.shell_does("erase", new.topic, "--rules-of", lk.topic, "--reason", "renamed", "--yes")

    if taken_over == "before the first cut":
        take_over()
    second = new.close_window()
    if taken_over == "before the first load":
        take_over()
    loaded = new.load(second).receipt.rows
    if taken_over == "after the first load":
        assert loaded == 44
        take_over()
    else:
        assert loaded == 40
    third = new.window_of([Record(b"after the erasure", ERASED, 1), Record(b"another", b"k1", 0)])
    assert new.load(third).receipt.rows == 2
    expected = [r for r in committed(new.settings, new.topic) if r.value != NEEDLE]
    assert records(new.rows()) == records(expected)
    assert not found_in(new.root, NEEDLE)
    assert [new.load(key).outcome for key in (second, third)] == ["unchanged"] * 2
    assert len(lk.rows()) == 40
