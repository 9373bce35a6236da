"""The queries in docs/guide/order.md, on flights that are sent to a topic, against the notes of their producer."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from platform_assets.demo import dataset
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.walk import fences
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker

pytestmark = pytest.mark.broker

FLIGHTS: Final = 3_000
PARTITIONS: Final = 3
SEED: Final = 7


def queries(language: str) -> list[str]:
    """Return the page's queries in one language, in order."""
    page = (CHECKOUT / "docs" / "guide" / "order.md").read_text()
    return [text for _, of, _, text in fences(page) if of == language]


@dataclass(frozen=True, slots=True)
class Note:
    """A record as its producer noted it. The offset is the number of records that it sent to the partition before."""

    key: bytes | None
    partition: int
    offset: int
    at: datetime


@dataclass(frozen=True, slots=True)
class Sent:
    """The notes, in the order of sending, and the raw table that has the records."""

    notes: tuple[Note, ...]
    table: Path

    def total(self) -> list[tuple[int, int, int, timedelta | None]]:
        """Return (place, partition, offset, late by) in the total order."""
        newest: dict[int, datetime] = {}
        late: dict[Note, timedelta | None] = {}
        for note in self.notes:
            before = newest.get(note.partition, note.at)
            late[note] = before - note.at if note.at < before else None
            newest[note.partition] = max(before, note.at)
        ordered = sorted(self.notes, key=lambda n: (n.at, n.partition, n.offset))
        return [(place, n.partition, n.offset, late[n]) for place, n in enumerate(ordered, 1)]

    def kept(self) -> list[tuple[int, int]]:
        """Return (partition, offset) in the order that keeps the order of each partition."""
        newest: dict[int, datetime] = {}
        reached = []
        for note in self.notes:
            newest[note.partition] = max(newest.get(note.partition, note.at), note.at)
            reached.append((newest[note.partition], note.partition, note.offset))
        return [(partition, offset) for _, partition, offset in sorted(reached)]

    def of_keys(self) -> set[tuple[bytes | None, int, int, int, bool]]:
        """Return (key, place, partition, offset, scattered)."""
        found = set()
        for key, group in groupby(sorted(self.notes, key=_key), key=_key):
            own = list(group)
            scattered = len({n.partition for n in own}) > 1
            own.sort(key=(lambda n: (n.at, n.partition, n.offset)) if scattered else (lambda n: n.offset))
            found |= {(key[1], place, n.partition, n.offset, scattered) for place, n in enumerate(own, 1)}
        return found


def _key(note: Note) -> tuple[bool, bytes | None]:
    return note.key is not None, note.key


@pytest.fixture(scope="module")
def sent(broker: Broker, connection: Callable[[], SparkSession], tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Flights in the order of the file, with the scheduled departure as timestamp. Most keys have a partition of their
    own; the records of some keys are spread over all partitions."""
    import uuid

    from confluent_kafka.admin import AdminClient, NewTopic

    from testbed.clients import librdkafka

    name = f"order-{uuid.uuid4().hex[:12]}"
    admin = AdminClient(librdkafka(broker.bootstrap))
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
    rng = random.Random(SEED)
    flights = dataset.load("flights")
    first = len(flights.broken)
    notes: list[Note] = []
    records: list[Record] = []
    counts = dict.fromkeys(range(PARTITIONS), 0)
    for value in flights.values[first : first + FLIGHTS].to_pylist():
        row = json.loads(value)
        key = row["tailnum"].encode() if row["tailnum"] else None
        partition = rng.randrange(PARTITIONS) if key is None or key[-1] % 4 == 0 else key[-1] % PARTITIONS
        at = datetime(row["year"], row["month"], row["day"], row["hour"], row["minute"], tzinfo=UTC)
        notes.append(Note(key, partition, counts[partition], at))
        records.append(Record(value, key, partition, timestamp=int(at.timestamp()) * 1000))
        counts[partition] += 1
    lake = TopicLake(broker.bootstrap, name, tmp_path_factory.mktemp("order"), connection)
    lake.load(lake.window_of(records))
    return Sent(tuple(notes), lake.table)


Run = Callable[[str], Iterable[tuple[Any, ...]]]


@pytest.fixture(params=["duckdb", "spark"])
def run(request: pytest.FixtureRequest, sent: Sent, connection: Callable[[], SparkSession]) -> Run:
    """Return a function that runs a query of the page on the table, with DuckDB or with Spark."""
    if request.param == "duckdb":
        orders = DeltaTable(sent.table).to_pyarrow_table()
        database = duckdb.connect()
        database.register("orders", orders)
        return lambda query: database.sql(query).fetchall()
    spark = connection()
    spark.read.format("delta").load(str(sent.table)).createOrReplaceTempView("orders")
    return lambda query: [tuple(row) for row in spark.sql(query).collect()]


def test_the_total_order_names_late_records(sent: Sent, run: Run) -> None:
    expected = sent.total()
    late = [each for *_, each in expected if each is not None]
    assert len(late) > 50, "the flights have no late records: the test shows nothing"
    assert list(run(queries("sql")[0])) == expected


def test_the_other_order_keeps_the_order_of_every_partition(sent: Sent, run: Run) -> None:
    found = list(run(queries("sql")[1]))
    assert found == sent.kept()
    for partition in range(PARTITIONS):
        offsets = [offset for p, offset in found if p == partition]
        assert offsets == sorted(offsets)


def test_the_events_of_a_key_are_in_order_across_partitions(sent: Sent, run: Run) -> None:
    expected = sent.of_keys()
    assert {scattered for *_, scattered in expected} == {True, False}
    assert {(None if k is None else bytes(k), *rest) for k, *rest in run(queries("sql")[2])} == expected


def test_polars_gives_the_same_orders(sent: Sent) -> None:
    orders = pl.scan_delta(str(sent.table))
    total, of_key = queries("python")
    names: dict[str, Any] = {"orders": orders}
    exec(total, names)
    assert names["ordered"].rows() == sent.total()
    exec(of_key, names)
    assert set(names["of_key"].rows()) == sent.of_keys()
