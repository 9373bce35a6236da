"""Records without a header that identifies them: sent once, to the partitions that other clients choose, and proved by
the offsets that the progress names."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer

from platform_assets.checks.published import gather
from platform_assets.checks.published_spans import Unnamed, match
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Placed, Span
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.windows.publish.encoding import partitions
from platform_assets.windows.publish.loads import Load
from platform_assets.windows.publish.progress import Progress
from platform_assets.windows.publish.publishing import Publisher
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.published import consumed
from testbed import samples
from testbed.clients import client_settings, librdkafka

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker


def publisher(broker: Broker, made: DecodedTopic, target: str, **given: Any) -> Publisher:
    declared = PublishDeclaration(target, made.declaration.raw_table, Part("text", ("kafka_offset",)),
                                  Part("bytes", ("value",)), tombstones=True, identity="progress")  # fmt: skip
    cluster = Cluster.connect(client_settings(broker.bootstrap))
    return Publisher(replace(declared, **{"transaction_rows": 10, **given}), made.ledger, cluster)


def loaded(made: DecodedTopic, name: str, **values: bytes | None) -> None:
    """Load the window with 30 rows; `o7=b"x"` is another value at offset 7, and None leaves out the row."""
    window = made.windows[-1]
    held = {(0, n): values.get(f"o{n}", b"%d" % n) for n in range(30)}
    kept = {0: [o for (_, o), value in held.items() if value is not None]}
    samples.loaded(made.root, window, kept, load_id=name, values=held, holes={"compacted": 30 - len(kept[0])})


@pytest.mark.broker
def test_rows_have_no_header_and_corrections_have_one(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic(partitions=3)
    made.load([], [order(n) for n in range(30)])
    loaded(made, "a", o29=None)
    each = publisher(broker, made, target)
    assert each.run().records == 29
    proved = gather(each)
    assert (proved.headline, proved.judged) == (
        "29 records of 1 windows are on the topic once, in order, and as in the table.", 29,
    )  # fmt: skip
    rows = consumed(broker.bootstrap, target)
    assert {m.window for m in rows} == {""}
    assert sorted(int(m.value or b"") for m in rows) == list(range(29))
    since = {p: f.offset for p, f in each.cluster.last_stable_offsets(each.cluster.topic(target)).items()}
    before = each.known(each.cluster.topic(target).topic_id)
    loaded(made, "b", o3=b"changed", o7=None)
    assert each.run().records == 3
    for found in (gather(each), gather(each, since=since, before=before), gather(each, since=dict.fromkeys(since, 0))):
        assert (found.problems, found.not_read) == ([], [])
    named = [m for m in consumed(broker.bootstrap, target) if m.window]
    assert sorted((m.kind, m.key, m.value) for m in named) == [
        ("added", b"29", b"29"), ("changed", b"3", b"changed"), ("removed", b"7", None),
    ]  # fmt: skip


@pytest.mark.broker
def test_a_begun_window_is_finished_as_it_was_begun(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic(partitions=2)
    made.load([], [order(n) for n in range(30)])
    loaded(made, "a")
    each = publisher(broker, made, target)

    def stop(step: str) -> None:
        if step == "next":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace(each, before_step=stop).run()
    other = replace(each, declaration=replace(each.declaration, identity="header"))
    assert other.run().records == 20
    assert {m.window for m in consumed(broker.bootstrap, target)} == {""}
    assert gather(other).headline.startswith("30 records of 1 windows are on the topic once")
    producer = Producer(librdkafka(broker.bootstrap))
    producer.produce(target, b"1", b"1")
    producer.flush()
    assert "did not send" in gather(other).headline


@pytest.mark.broker
def test_keys_have_the_partitions_of_other_clients(broker: Broker, topic: TopicMaker) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, target = random.Random(seed), topic(partitions=7)
    keys = [rng.randbytes(n % 23) for n in range(300)]
    producer = Producer({**librdkafka(broker.bootstrap), "partitioner": "murmur2_random"})
    for n, key in enumerate(keys):
        producer.produce(target, b"%d" % n, key)
    producer.flush()
    found = {int(m.value or b""): m.partition for m in consumed(broker.bootstrap, target)}
    column = pa.array([b"before", *keys], pa.large_binary()).slice(1)
    assert partitions(column, pa.table({}), 7).tolist() == [found[n] for n in range(300)]


def test_records_without_a_key_are_spread_by_position() -> None:
    rows = pa.table({"kafka_partition": pa.array([0, 0, 1, 1], pa.int32()), "kafka_offset": [0, 256, 0, 511]})
    keys = pa.array([None, None, None, b"21"], pa.large_binary())
    assert partitions(keys, rows, 1000).tolist()[:3] == [0, 1, 1]
    assert partitions(keys, rows, 3)[3] == partitions(pa.array([b"21"], pa.large_binary()), rows, 3)[0]


def records(values: list[int]) -> Unnamed:
    found = Unnamed()
    for offset, value in enumerate(values):
        found.add((0, offset), value, (None, b"%d" % value, []), 3)
    return found


@pytest.mark.parametrize(
    ("values", "held", "surplus"),
    [
        ([5, 6, 7, 5], {0: 5, 1: 6, 2: 7, 3: 5}, []),
        ([5, 6, 9, 5], {0: 5, 1: 6, 2: 9, 3: 5}, []),  # A different record takes the place of its row.
        ([6, 7, 5], {1: 6, 2: 7, 3: 5}, []),
        ([7, 5], {2: 7, 3: 5}, []),
        ([5, 7, 5], {0: 5, 2: 7, 3: 5}, []),  # Compaction removed one.
        ([7, 6, 5], {1: 6, 3: 5}, [0]),  # Out of order.
        ([5, 6, 6, 7, 5], {0: 5, 1: 6, 2: 7, 3: 5}, [2]),  # Sent twice.
        ([], {}, []),
    ],
)
def test_each_record_is_matched_with_the_row_of_its_place(
    values: list[int], held: dict[int, int], surplus: list[int]
) -> None:
    rows = [(0, n) for n in range(4)]
    state = Progress(Load("a", 1, 4), None, 4, 4, spans=(Span(0, 0, 4, 4),), dealt=((0, 1),))
    found = match(records(values), state, rows, [5, 6, 7, 5], np.zeros(4, np.int32))
    assert found.held == {(0, n): value for n, value in held.items()}
    assert found.surplus == [(0, offset) for offset in surplus]
    assert len(found.sample) <= 3


def test_spans_that_only_a_marker_separates_are_one() -> None:
    def sent(*spans: Span) -> Placed:
        return Placed([], np.zeros(sum(span.records for span in spans), np.int32), 2, spans)

    first = Progress(Load("a", 1, 9), None, 4, 9).with_spans(None, [sent(Span(0, 0, 3, 3)), sent(Span(1, 5, 6, 1))], 0)
    assert first.spans == (Span(0, 0, 3, 3), Span(1, 5, 6, 1))
    then = replace(first, sent=9, spans=()).with_spans(first, [sent(Span(0, 4, 8, 4)), sent(Span(1, 9, 10, 1))], 4)
    assert then.spans == (Span(0, 0, 8, 7), Span(1, 5, 6, 1), Span(1, 9, 10, 1))
    assert Progress.from_bytes(then.to_bytes()) == then
