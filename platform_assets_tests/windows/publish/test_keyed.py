"""Changes of tables without windows on a Kafka topic: an upsert per changed key, a tombstone per deleted one, each once,
also after kills."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from deltalake import DeltaTable, Schema, write_deltalake

from platform_assets.checks.published_keys import gather
from platform_assets.errors import ConfigurationError, PublishingInterruptedError, UnpublishableTextError
from platform_assets.kafka import publisher as publisher_module
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Headers
from platform_assets.lake import datasets, derived_table
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.derived import DerivedRef
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import StateRef
from platform_assets.orchestration import published
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.windows.publish.encoding import Encoder
from platform_assets.windows.publish.keyed import Change, KeyedPublisher, difference, digest_of, parts
from platform_assets_tests.support.made_changes import DAYS, MadeChanges, change
from platform_assets_tests.support.published import with_columns
from platform_assets_tests.support.streams import create_again
from testbed.clients import client_settings, librdkafka

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

TABLE = DerivedRef("totals")
Rows = Mapping[int, str | None]


class Stopped(Exception):
    """Ends a fold, as a kill does."""


def publisher(broker: Broker, root: Path, target: str) -> KeyedPublisher:
    declared = PublishDeclaration(target, TABLE, Part("text", ("id",)), transaction_rows=4)
    return KeyedPublisher(declared, Ledger(Lake.at(root)), Cluster.connect(client_settings(broker.bootstrap)))


def write(root: Path, rows: Rows) -> None:
    columns = {"id": pa.array(list(rows), pa.int64()), "text": pa.array(list(rows.values()), pa.string())}
    write_deltalake(str(root / "derived" / "totals"), pa.table(columns), mode="overwrite")


def held(broker: Broker, target: str) -> tuple[dict[bytes, bytes], int]:
    """Return what a plain read_committed consumer holds in the end, and the number of records that it has read."""
    cluster = Cluster.connect(client_settings(broker.bootstrap))
    state = cluster.topic(target)
    options = {"group.id": "judge", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**librdkafka(broker.bootstrap), **options})
    consumer.assign([TopicPartition(target, p, OFFSET_BEGINNING) for p in state.partitions])
    waiting, found, number = set(state.partitions), dict[bytes, bytes](), 0
    while waiting:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            waiting.discard(message.partition())
            continue
        number += 1
        if (value := message.value()) is None:
            del found[message.key() or b""]
        else:
            found[message.key() or b""] = value
    consumer.close()
    return found, number


def as_records(rows: Rows) -> dict[bytes, bytes]:
    texts = {n: "null" if text is None else f'"{text}"' for n, text in rows.items()}
    return {b"%d" % n: f'{{"id":{n},"text":{text}}}'.encode() for n, text in texts.items()}


@pytest.mark.broker
def test_changes_are_published_once_and_deleted_keys_become_tombstones(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    target = topic(partitions=3)
    each = publisher(broker, tmp_path, target)
    assert (each.plan().behind, each.run().records) == (0, 0)
    first: Rows = {n: f"row {n}" for n in range(10)}
    write(tmp_path, first)
    assert (each.plan().behind, each.plan().rows) == (1, 10)
    assert (each.run().records, each.plan().behind) == (10, 0)
    second = {n: "changed" if n == 3 else text for n, text in first.items() if n != 7} | {11: None}
    write(tmp_path, second)
    done = each.run()
    assert (done.records, done.transactions) == (3, 1)
    assert held(broker, target) == (as_records(second), 13)
    write(tmp_path, second)  # A new version with the same rows.
    assert (each.plan().behind, each.run().records, each.plan().behind) == (1, 0, 0)
    evidence = gather(each)
    assert (evidence.headline, evidence.passed) == (
        "13 records of 2 versions are on the topic once, in order, and as in the table.", True,
    )  # fmt: skip
    create_again(broker, target)
    evidence = gather(each)
    assert evidence.not_read == [
        "the topic was deleted and created again since the table was published; run `platform-assets publish "
        f"{target}`, which sends all rows that it lacks"
    ]
    assert each.run().records == 10
    assert held(broker, target)[0] == as_records(second)
    assert (gather(each).not_read, gather(each).passed) == ([], True)


@pytest.mark.broker
def test_a_topic_that_is_created_again_while_it_is_published_ends_the_run_and_the_next_one_sends_all_rows(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    target, rows = topic(), {n: f"row {n}" for n in range(10)}
    write(tmp_path, rows)
    steps: list[str] = []

    def replaced(step: str) -> None:
        steps.append(step)
        if steps.count("first") == 2 and step == "first":
            create_again(broker, target)

    each = publisher(broker, tmp_path, target)
    with pytest.raises(PublishingInterruptedError, match="created again, and the next run sends everything"):
        replace(each, before_step=replaced).run()
    assert steps.count("commit") == 1
    assert held(broker, target) == ({}, 0)
    assert each.run().records == 10
    assert held(broker, target) == (as_records(rows), 10)
    assert (gather(each).not_read, gather(each).passed) == ([], True)


@pytest.mark.broker
def test_an_audit_during_which_the_topic_is_created_again_is_undecided(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = topic()
    monkeypatch.setattr(publisher_module, "_PATIENCE", 1.0)
    each = publisher(broker, tmp_path, target)
    write(tmp_path, {1: "a"})
    each.run()
    evidence = gather(each, lambda text: create_again(broker, target))
    assert (evidence.problems, evidence.not_read) == ([], ["the topic was deleted and created again meanwhile"])


@pytest.mark.broker
def test_a_sample_is_judged_without_the_encoder(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = publisher(broker, tmp_path, topic(partitions=2))
    write(tmp_path, {1: "one", 2: "two", 3: None})
    each.run()
    write(tmp_path, {1: "one", 2: "TWO", 3: None, 4: "four"})
    each.run()
    assert ((found := gather(each)).judged, found.problems) == (4, [])
    with_columns(monkeypatch, "text", pc.utf8_upper)
    write(tmp_path, {1: "one", 2: "TWO", 3: None})
    each.run()
    (problem,) = gather(each).problems
    assert problem == 'the value b\'{"id":1,"text":"ONE"}\' is not that of the row with key b\'1\''


@pytest.mark.broker
def test_killed_publishers_send_each_change_once(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, target = random.Random(seed), topic(partitions=2)
    each = publisher(broker, tmp_path, target)
    rows: Rows = {}
    for _ in range(3):
        rows = {n: f"{rng.randrange(3)}" for n in range(12) if rng.random() < 0.8}
        write(tmp_path, rows)
        step, left = rng.choice(["first", "flush", "commit", "next"]), [rng.randint(1, 3)]

        def stop(name: str, step: str = step, left: list[int] = left) -> None:
            left[0] -= name == step
            if not left[0]:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt):
            replace(each, before_step=stop).run()
    each.run()
    assert held(broker, target)[0] == as_records(rows)
    evidence = gather(each)
    assert (evidence.problems, evidence.not_read) == ([], [])


@pytest.mark.broker
def test_a_publisher_that_was_overtaken_stops_and_nothing_is_sent_twice(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    target = topic()
    each = publisher(broker, tmp_path, target)
    write(tmp_path, dict.fromkeys(range(10), "text"))
    overtaken: list[int] = []

    def overtake(step: str) -> None:
        if step == "commit" and not overtaken:
            overtaken.append(each.run().records)

    with pytest.raises(PublishingInterruptedError, match="another publisher has taken over"):
        replace(each, before_step=overtake).run()
    assert overtaken == [10]
    assert held(broker, target)[1] == 10
    assert gather(each).passed


@pytest.mark.broker
def test_a_record_of_another_program_is_named_and_its_row_is_sent_again(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    target = topic()
    each = publisher(broker, tmp_path, target)
    write(tmp_path, {1: "a", 2: "b"})
    each.run()
    producer = Producer(librdkafka(broker.bootstrap))
    producer.produce(target, b"foreign", b"2")
    producer.produce(target, b"foreign", b"3")
    producer.flush()
    assert "did not send" in gather(each).headline
    assert "1 records differ from their rows" in gather(each).headline
    write(tmp_path, {1: "a", 2: "b"})
    assert each.run().records == 1
    assert held(broker, target) == ({**as_records({1: "a", 2: "b"}), b"3": b"foreign"}, 5)


@pytest.mark.broker
def test_a_key_that_two_rows_have_is_refused(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    target = topic()
    each = publisher(broker, tmp_path, target)
    columns = {"id": pa.array([1, 1], pa.int64()), "text": pa.array(["a", "b"])}
    write_deltalake(str(tmp_path / "derived" / "totals"), pa.table(columns))
    with pytest.raises(ConfigurationError, match="1 rows of derived/totals have the key of another row"):
        each.run()
    assert held(broker, target) == ({}, 0)


@pytest.mark.broker
def test_the_asset_publishes_the_newest_version_and_its_check_passes(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    each = publisher(broker, tmp_path, topic())
    made = published.build_definitions(each.declaration, group="g", description=None, owners=(), sensor_running=False)
    (asset,), (sensor,) = made.assets or (), made.sensors or ()
    assert isinstance(asset, dg.AssetsDefinition)
    assert isinstance(sensor, dg.SensorDefinition)
    resources = {
        "kafka": KafkaResource(bootstrap_servers=broker.bootstrap), "lake": LakeResource(root=str(tmp_path)),
    }  # fmt: skip
    write(tmp_path, {1: "a", 2: "b"})
    ago = datetime.now(UTC) + timedelta(hours=1)
    assert [text.partition(", with")[0] for text in published.problems([each.declaration], each.ledger, each.cluster, ago)] == [
        f"published/{each.declaration.topic}: the newest version of derived/totals"
    ]  # fmt: skip
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([asset], resources=resources, instance=instance)
        assert [check.passed for check in done.get_asset_check_evaluations()] == [True]
        (event,) = done.get_asset_materialization_events()
        assert event.materialization.metadata["records"].value == 2
        with dg.build_sensor_context(instance, resources=resources) as context:
            found = sensor(context)
        assert isinstance(found, dg.SensorResult)
    assert published.problems([each.declaration], each.ledger, each.cluster, ago) == []


def test_a_difference_is_what_turns_one_state_into_another() -> None:
    rows: dict[bytes, tuple[bytes, Headers]] = {b"a": (b"1", []), b"b": (b"2", []), b"c": (b"3", [("h", b"1")])}
    before = {b"b": digest_of(b"2", []), b"c": digest_of(b"3", [("h", b"2")]), b"d": digest_of(b"4", [])}
    assert list(difference(rows, before)) == [
        ("added", b"a", b"1", []), ("changed", b"c", b"3", [("h", b"1")]), ("removed", b"d", None, []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"key": None}, "needs a `key`"),
        ({"value": Part("text", ("id",))}, "needs a value in the format json"),
        ({"identity": "progress"}, "identity is for tables with windows"),
        ({"corrections": "hold"}, "corrections is for tables with windows"),
        ({"start": "2026-01-01-00:00"}, "start is for tables with windows"),
        ({"table": StateRef("state_deleted", "planes")}, "name state/planes"),
        ({"table": StateRef("state", "target")}, "the topic from which it is made"),
    ],
)
def test_what_a_table_without_windows_lacks_is_refused(given: dict[str, object], says: str) -> None:
    fields: dict[str, object] = {"topic": "target", "table": TABLE, "key": Part("text", ("id",)), **given}
    with pytest.raises(ConfigurationError, match=says):
        PublishDeclaration(**fields)  # type: ignore[arg-type]


@pytest.mark.broker
def test_a_restored_table_with_the_same_number_of_commits_is_published(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    target, folder = topic(), tmp_path / "derived" / "totals"
    each = publisher(broker, tmp_path, target)
    write(tmp_path, {1: "a"})
    shutil.copytree(folder, tmp_path / "backup")
    write(tmp_path, {1: "b"})
    each.run()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    write(tmp_path, {1: "c"})
    assert (each.plan().behind, each.run().records) == (1, 1)
    assert held(broker, target)[0] == as_records({1: "c"})


@pytest.mark.broker
def test_a_changed_declaration_is_published_at_once(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    target = topic()
    each = publisher(broker, tmp_path, target)
    write(tmp_path, {1: "a", 2: "b"})
    each.run()
    changed = replace(each, declaration=replace(each.declaration, value=Part("json", ("text",))))
    assert (changed.plan().behind, changed.run().records, changed.plan().behind) == (1, 2, 0)
    assert (gather(changed).problems, gather(changed).not_read) == ([], [])
    assert held(broker, target)[0] == {b"1": b'{"text":"a"}', b"2": b'{"text":"b"}'}


@pytest.mark.broker
def test_empty_keys_and_headers_are_sent_once(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    target = topic()
    each = publisher(broker, tmp_path, target)
    each = replace(each, declaration=replace(each.declaration, key=Part("text", ("text",)), headers=(("h", "text"),)))
    write(tmp_path, {1: "", 2: "b"})
    assert each.run().records == 2
    write(tmp_path, {1: "", 2: "b"})
    assert each.run().records == 0
    assert (gather(each).problems, gather(each).not_read) == ([], [])


@pytest.mark.broker
def test_progress_of_another_program_does_not_count_and_that_of_a_later_release_is_refused(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    target = topic()
    each = publisher(broker, tmp_path, target)
    write(tmp_path, {1: "a"})
    each.run()
    key = f'["{each.cluster.topic(target).topic_id}","derived/totals",""]'.encode()
    producer = Producer(librdkafka(broker.bootstrap))
    for value in (b"no JSON", b"[]", b'{"version":1}'):
        producer.produce(each.target.progress_topic, value, key, partition=0)
        producer.flush()
        assert (each.plan().behind, each.run().records, each.plan().behind) == (1, 0, 0)
    producer.produce(each.target.progress_topic, b'{"version":2}', key, partition=0)
    producer.flush()
    with pytest.raises(ConfigurationError, match="Upgrade platform-assets"):
        each.run()


@pytest.mark.broker
def test_a_table_that_changes_all_the_time_is_late_since_its_first_change(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    each = publisher(broker, tmp_path, topic())
    write(tmp_path, {1: "a"})
    each.run()
    first = datetime.now(UTC)
    for text in "bcd":
        write(tmp_path, {1: text})
    newest = each.ledger.lake.table(TABLE).delta().history(1)[0]["timestamp"] / 1000
    assert first.timestamp() - 1 < each.changed_at().timestamp() < newest


def test_a_transaction_ends_at_its_rows_or_bytes() -> None:
    changes: list[Change] = [("added", b"k", b"x" * size, []) for size in (1, 9, 1, 1, 1)]
    assert [len(part) for part in parts(changes, 2, 10)] == [2, 2, 1]
    assert [len(part) for part in parts(changes, 9, 10)] == [2, 3]
    assert [list(part) for part in parts([], 9, 10)] == [[]]
    assert len(list(parts(changes[:2], 2, 10))) == 1


@pytest.mark.broker
def test_files_that_a_newer_version_has_replaced_are_read_again(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = publisher(broker, tmp_path, topic())
    write(tmp_path, {1: "a"})
    opened, of = list[object](), datasets.of

    def erased_once(delta: DeltaTable) -> Any:
        data = of(delta)
        if len(opened) == 1:
            write(tmp_path, {2: "b"})
            for name in data.files:
                (tmp_path / "derived" / "totals" / name).unlink()
        opened.append(data)
        return data

    monkeypatch.setattr(datasets, "of", erased_once)
    assert each.run().records == 1
    assert len(opened) > 2
    assert held(broker, each.declaration.topic)[0] == as_records({2: "b"})


def of_state(broker: Broker, root: Path, target: str) -> KeyedPublisher:
    declared = PublishDeclaration(
        target, StateRef("state", "orders"), Part("text", ("id",)), Part("json", ("id", "name"))
    )
    return KeyedPublisher(declared, Ledger(Lake.at(root)), Cluster.connect(client_settings(broker.bootstrap)))


@pytest.mark.broker
def test_no_key_is_deleted_while_a_lost_state_is_made_again(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    each, made, day = of_state(broker, tmp_path, topic()), MadeChanges(tmp_path), DAYS[0]
    made.load(day, [change(n, day, n, f"row {n}") for n in range(3)])
    made.state().fold()
    assert each.run().records == 3
    # Backups leave states out.
    for kind in ("state", "state_deleted"):
        shutil.rmtree(tmp_path / kind)

    def killed(step: str) -> None:
        assert each.run().records == 0
        assert each.version() is None
        raise Stopped(step)

    for killed_at in ("state_deleted", "state"):
        with pytest.raises(Stopped, match=f"^{killed_at}$"):
            made.state(lambda step, at=killed_at: killed(step) if step == at else None).fold()  # type: ignore[misc]
        evidence = gather(each)
        assert (evidence.passed, evidence.not_read) == (
            True, ["state/orders was not made yet: run `platform-assets fold orders`"],
        )  # fmt: skip
    made.state().fold()
    assert (each.run().records, held(broker, each.declaration.topic)[1]) == (0, 3)
    assert (gather(each).passed, gather(each).not_read) == (True, [])


@pytest.mark.broker
def test_a_state_that_a_fold_left_empty_deletes_all_keys(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    each, made = of_state(broker, tmp_path, topic()), MadeChanges(tmp_path)
    made.load(DAYS[0], [change(1, DAYS[0], 0, "one")])
    made.state().fold()
    each.run()
    made.load(DAYS[1], [change(1, DAYS[1], 1, None)])
    made.state().fold()
    assert (each.run().records, held(broker, each.declaration.topic)[0]) == (1, {})


@pytest.mark.broker
def test_a_derived_table_that_was_only_created_is_not_published(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    each = publisher(broker, tmp_path, topic())
    write(tmp_path, {1: "a"})
    each.run()
    folder = each.ledger.lake.table(TABLE)
    columns = Schema.from_arrow(datasets.of(folder.delta()).schema)
    shutil.rmtree(folder.uri)
    derived_table.create(folder, TABLE, columns)
    assert (each.run().records, each.version()) == (0, None)
    assert gather(each).not_read == ["derived/totals was not made yet: run `platform-assets derive totals`"]
    write(tmp_path, {1: "a", 2: "b"})
    assert (each.run().records, held(broker, each.declaration.topic)[0]) == (1, as_records({1: "a", 2: "b"}))


@pytest.mark.broker
@pytest.mark.parametrize("value", [Part("json"), Part("avro"), Part("json", ("id",))])
@pytest.mark.parametrize(
    "values", [pa.array([True, False, None]), pa.array(["granite", "slate", ""]), pa.array([3, 0, None])]
)
def test_a_column_named_tombstone_is_one_like_any_other(
    broker: Broker, topic: TopicMaker, tmp_path: Path, values: pa.Array, value: Part
) -> None:
    each = publisher(broker, tmp_path, topic())
    each = replace(each, declaration=replace(each.declaration, value=value))
    columns = {"id": pa.array([1, 2, 3]), "tombstone": values, "key": pa.array(["x", None, "z"])}
    write_deltalake(str(tmp_path / "derived" / "totals"), pa.table(columns))
    assert each.run().records == 3
    evidence = gather(each)
    assert (evidence.passed, evidence.not_read, evidence.judged) == (True, [], 3)
    found = held(broker, each.declaration.topic)[0]
    assert found.keys() == {b"1", b"2", b"3"}
    if value == Part("json"):
        shown = json.loads(found[b"1"])
        assert shown == {"id": 1, "tombstone": values[0].as_py(), "key": "x"}


def test_only_tables_with_a_column_named_tombstone_have_a_new_form() -> None:
    """So rows whose keys an earlier version deleted are sent, although the table has the same version."""
    declared = PublishDeclaration("t", TABLE, Part("text", ("id",)))

    def digest(name: str, kind: pa.DataType) -> str:
        return Encoder(declared, pa.schema([pa.field("id", pa.int64()), pa.field(name, kind)])).digest

    assert digest("tombstone", pa.bool_()) != "60046104813845d625a398ddb776f856"
    assert digest("text", pa.string()) == "9270c9b494f4400547e29278e1660407"


WRONG = b"a\xff"


def write_wrong(root: Path, texts: Sequence[bytes], *, nested: bool = False) -> None:
    """Write texts as they are, as Spark does."""
    plain = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    lists = pa.ListArray.from_arrays(pa.array(range(len(texts) + 1), pa.int32()), plain)
    rows = {"id": pa.array(range(len(texts)), pa.int64()), "text": lists if nested else plain}
    write_deltalake(str(root / "derived" / "totals"), pa.table(rows), mode="overwrite", schema_mode="overwrite")


@pytest.mark.broker
def test_a_text_that_is_not_utf8_is_refused_and_named(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    plain = publisher(broker, tmp_path, topic())
    write(tmp_path, {0: "a", 1: "b"})
    assert plain.run().records == 2
    forms: Sequence[dict[str, Any]] = (
        {},
        {"value": Part("avro")},
        {"value": Part("protobuf")},
        {"value": Part("json", ("id",)), "headers": (("text", "text"),)},
    )
    for nested in (False, True):
        write_wrong(tmp_path, [b"a", b"b", WRONG], nested=nested)
        for form in forms[:3] if nested else forms:
            each = replace(plain, declaration=replace(plain.declaration, **form))
            with pytest.raises(
                UnpublishableTextError, match=r"column 'text' of derived/totals .* in the row with id = 2,"
            ):
                each.run()
    write_wrong(tmp_path, [b"a", b"b", WRONG])
    by_text = replace(plain, declaration=replace(plain.declaration, key=Part("text", ("text",))))
    with pytest.raises(UnpublishableTextError, match=r"in the row with text = b'a\\xff',"):
        by_text.run()
    # The ways on: leave out the column, or correct the text.
    without = replace(plain, declaration=replace(plain.declaration, value=Part("json", ("id",))))
    assert (without.run().records, gather(without).passed) == (3, True)
    write_wrong(tmp_path, [b"a", b"b", "a\ufffd".encode()])
    assert (plain.run().records, gather(plain).passed) == (3, True)


@pytest.mark.broker
@pytest.mark.parametrize("value", [Part("json"), Part("avro"), Part("protobuf")])
def test_the_evidence_names_a_text_that_is_not_utf8_and_was_published_before(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Part
) -> None:
    each = publisher(broker, tmp_path, topic())
    each = replace(each, declaration=replace(each.declaration, value=value))
    write_wrong(tmp_path, [b"a", WRONG])
    with monkeypatch.context() as earlier:
        earlier.setattr(Encoder, "_check_texts", lambda self, rows: None)
        assert each.run().records == 2
    (problem,) = gather(each).problems
    assert problem.endswith("is not that of the row with key b'1'")
