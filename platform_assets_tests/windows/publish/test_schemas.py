"""Published keys and values that name their schema: which ids they name after restarts, changes and losses of the
registry; and the way back, from the published topic into a table."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from platform_assets.checks import published_keys
from platform_assets.checks.published import gather
from platform_assets.decoding.registry.cache import Registered
from platform_assets.errors import (
    ConfigurationError,
    PublishedSchemaChangedError,
    RegistryRefusedError,
    RegistryUnreachableError,
    Retryable,
    SchemaNotRegisteredError,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.derived import DerivedRef
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.windows.publish import protobuf
from platform_assets.windows.publish.keyed import KeyedPublisher
from platform_assets.windows.publish.publishing import Publisher
from platform_assets.windows.publish.schema_ids import SchemaIds, known
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.fake_registry import FakeRegistry, fake_registry
from platform_assets_tests.support.published import Message, consumed
from testbed.clients import client_settings

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

KEY = Part("avro", ("id",), '"long"', registry=True, register=True)
VALUE = Part("avro", ("id", "amount"), registry=True, register=True)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """Return a registry whose address is in the environment. Its first id is 7."""
    with fake_registry() as made:
        made.first_id = 7
        monkeypatch.setenv("SCHEMA_REGISTRY_URL", made.url)
        yield made


def orders(root: Path, count: int) -> DecodedTopic:
    """Return a topic with a decoded window of this many rows, and one of a row that is not decoded yet."""
    made = DecodedTopic(root / "lake", "orders")
    made.load([order(n) for n in range(count)], [order(count)])
    made.decode(made.windows[0].key)
    return made


def decode_next(made: DecodedTopic) -> None:
    made.decode(made.windows[1].key)


def publisher(broker: Broker, made: DecodedTopic, target: str, **changes: Any) -> Publisher:
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=KEY, value=VALUE, transaction_rows=10)
    return Publisher(replace(declared, **changes), made.ledger, Cluster.connect(client_settings(broker.bootstrap)))


def read(registry: FakeRegistry, datum: bytes | None) -> Any:
    """Return a datum as a plain consumer reads it: with the registry's schema of the id that it names."""
    assert datum is not None
    assert datum[0] == 0
    kind, text = registry.schemas[int.from_bytes(datum[1:5], "big")]
    assert kind == "AVRO"
    return fastavro.schemaless_reader(io.BytesIO(datum[5:]), json.loads(text), None)


def rows_of(registry: FakeRegistry, messages: list[Message]) -> dict[int, Any]:
    return {read(registry, m.key): None if m.value is None else read(registry, m.value) for m in messages}


def test_a_published_topic_is_a_table_again(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 25), topic(partitions=2)
    each = publisher(broker, made, target)
    assert each.run().records == 25
    assert each.run().records == 0
    messages = consumed(broker.bootstrap, target)
    assert rows_of(registry, messages) == {n: {"id": n, "amount": Decimal(f"{n}.50")} for n in range(25)}
    assert registry.subjects == {f"{target}-key": [7], f"{target}-value": [8]}
    found = gather(each)
    assert (found.problems, found.not_read, found.judged) == ([], [], 25)

    declared = FormatSpec("avro", {"schema": json.loads(registry.schemas[8][1]), "registry": True})
    back = DecodedTopic(tmp_path / "back", "clean", DecodeDeclaration(declared))
    back.load([m.value for m in messages])
    back.decode()
    columns = ["id", "amount"]
    there, here = (
        each.lake.table(each.declaration.decoded_table).delta().to_pyarrow_table(columns=columns).sort_by("id")
        for each in (made, back)
    )
    assert here.cast(there.schema) == there
    assert back.lake.table(back.declaration.dead_letter_table).delta().to_pyarrow_table().num_rows == 0


def test_a_topic_of_protobuf_is_a_table_again(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 25), topic(partitions=2)
    key, value = (
        Part("protobuf", columns, name=name, registry=True, register=True)
        for columns, name in ((("id",), "shop.Id"), (("id", "amount"), "shop.Order"))
    )
    each = publisher(broker, made, target, key=key, value=value)
    assert each.run().records == 25
    assert each.run().records == 0
    messages = consumed(broker.bootstrap, target)
    assert registry.schemas[8][0] == "PROTOBUF"
    assert {(m.key or b"")[:6] for m in messages} == {b"\0\0\0\0\7\0"}
    found = gather(each)
    assert (found.problems, found.not_read, found.judged) == ([], [], 25)

    options = {"schema": "id BIGINT NOT NULL, amount STRING", "message": "shop.Order", "registry": True}
    back = DecodedTopic(tmp_path / "back", "clean", DecodeDeclaration(FormatSpec("protobuf", options)))
    back.load([m.value for m in messages])
    back.decode()
    rows = back.lake.table(back.declaration.decoded_table).delta().to_pyarrow_table(columns=["id", "amount"])
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == [{"id": n, "amount": f"{n}.50"} for n in range(25)]
    assert back.lake.table(back.declaration.dead_letter_table).delta().to_pyarrow_table().num_rows == 0


def test_the_evidence_finds_a_record_of_another_row(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from platform_assets.windows.publish import avro

    made, target = orders(tmp_path, 3), topic()
    numbers = avro._plain
    with monkeypatch.context() as patched:
        # Both the publisher and the expected rows have it.
        patched.setattr(avro, "_plain", lambda column, of, place, alive: numbers(column[::-1], of, place, alive))
        each = publisher(broker, made, target)
        each.run()
        assert "is not that of row" in gather(each).problems[0]


def test_corrections_are_only_rows_that_differ(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 12), topic()
    each = publisher(broker, made, target, tombstones=True)
    each.run()
    # Values of 27 bytes become dead letters.
    options = {**made.declared.value.options, "max_bytes": 26}
    made.declared = replace(made.declared, value=FormatSpec("json", options))
    made.decode(made.windows[0].key)
    done = each.run()
    assert (done.records, done.corrections) == (2, 2)
    assert [(m.kind, read(registry, m.key), m.value) for m in consumed(broker.bootstrap, target)[12:]] == [
        ("removed", 10, None), ("removed", 11, None),
    ]  # fmt: skip
    assert gather(each).problems == []


def test_ids_are_the_same_after_restarts_and_while_the_registry_is_down(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 3), topic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("platform_assets.decoding.registry.client._FIRST_PAUSE", 0)
        registry.has(f"POST /subjects/{target}-key/versions", {}, status=503)
        with pytest.raises(RegistryUnreachableError, match="HTTP 503") as caught:
            publisher(broker, made, target).run()
        assert isinstance(caught.value, Retryable)
        assert consumed(broker.bootstrap, target) == []
        registry.answers.clear()
        assert publisher(broker, made, target).run().records == 3
        # Known ids do not need the registry.
        decode_next(made)
        registry.has(f"POST /subjects/{target}-key/versions", {}, status=503)
        registry.has(f"POST /subjects/{target}-value/versions", {}, status=503)
        assert publisher(broker, made, target).run().records == 1
    assert {m.value[:5] for m in consumed(broker.bootstrap, target) if m.value} == {b"\0\0\0\0\x08"}


def test_a_registry_with_other_ids_is_refused(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 3), topic()
    publisher(broker, made, target).run()
    registry.forget_all(first_id=40)
    decode_next(made)
    with pytest.raises(PublishedSchemaChangedError, match="gives it id 40, but records name it by id 7"):
        publisher(broker, made, target).run()
    assert len(consumed(broker.bootstrap, target)) == 3
    # The remedy: the earlier ids again.
    registry.forget_all(first_id=7)
    assert publisher(broker, made, target).run().records == 1


def test_a_changed_schema_is_for_later_windows_and_never_for_keys(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 3), topic()
    publisher(broker, made, target).run()
    assert publisher(broker, made, target, value=replace(VALUE, columns=("id",))).run().records == 0
    decode_next(made)
    with pytest.raises(PublishedSchemaChangedError, match="the schema of each key cannot be used: it is another one"):
        publisher(broker, made, target, key=replace(KEY, schema=None)).run()
    each = publisher(broker, made, target, value=replace(VALUE, columns=("id",)))
    assert each.run().records == 1
    values = [read(registry, m.value) for m in consumed(broker.bootstrap, target)]
    assert values[3] == {"id": 3}
    assert values[:3] == [{"id": n, "amount": Decimal(f"{n}.50")} for n in range(3)]
    found = gather(each)
    assert found.problems == []
    assert found.notes == [f"window {made.windows[0].key}: values of its records, which were published in another form"]


def test_without_register_the_subject_must_have_the_schema(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path
) -> None:
    made, target = orders(tmp_path, 3), topic()
    value = replace(VALUE, register=False, subject="shared/orders")
    each = publisher(broker, made, target, key=None, value=value)
    with pytest.raises(
        SchemaNotRegisteredError, match=r"subject 'shared/orders' .* the subject does not have this schema"
    ):
        each.run()
    text = each.schemas["value"].text
    registry.schemas[3] = ("AVRO", text)
    registry.subjects["shared%2Forders"] = [3]
    registry.has("/schemas/ids/3", {"schema": json.dumps(json.loads(text), indent=2)})
    assert each.run().records == 3
    assert {m.value[:5] for m in consumed(broker.bootstrap, target) if m.value} == {b"\0\0\0\0\3"}
    assert gather(each).problems == []


@pytest.mark.parametrize(
    ("path", "answer", "status", "error", "says"),
    [
        ("POST", {"id": True}, 200, RegistryRefusedError, "its answer has no schema id"),
        ("POST", {"id": 2**31}, 200, RegistryRefusedError, "its answer has no schema id"),
        ("POST", [], 200, RegistryRefusedError, "its answer has no schema id"),
        ("POST", {"id": 5}, 200, RegistryRefusedError, "it does not return the schema to which it gave id 5"),
        ("POST", {"message": "not \x1b[1m compatible"}, 409, SchemaNotRegisteredError, r"not compatible .*not \\x1b\[1m comp"),
        ("POST", {}, 401, RegistryRefusedError, "it answered with HTTP 401"),
        ("GET", {"schema": '"int"'}, 200, RegistryRefusedError, "its schema with id 7 is not the one for which it gave"),
        ("GET", {"schema": "[" * 10_000}, 200, RegistryRefusedError, "its schema with id 7 is not the one for which it gave"),
    ],
)  # fmt: skip
def test_an_answer_of_the_registry_is_not_trusted(
    registry: FakeRegistry, tmp_path: Path, path: str, answer: Any, status: int, error: type[Exception], says: str
) -> None:
    made = orders(tmp_path, 1)
    declared = PublishDeclaration("target", made.declaration.decoded_table, value=VALUE)
    schemas = Publisher(declared, made.ledger, None).schemas  # type: ignore[arg-type]
    name = "POST /subjects/target-value/versions" if path == "POST" else "/schemas/ids/7"
    if path == "GET":
        registry.post("/subjects/target-value/versions", json.dumps({"schema": schemas["value"].text}).encode(), {})
    registry.has(name, answer, status=status)
    with pytest.raises(error, match=says):
        SchemaIds(declared, made.lake, "T").heads(schemas, send=True)
    assert known(made.lake, "target", "T").ids == {}


def test_data_without_a_registry_have_no_head(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = orders(tmp_path, 3), topic()
    each = publisher(broker, made, target, key=None, value=Part("avro", ("id",), '"long"'), identity="progress")
    each.run()
    assert [m.value for m in consumed(broker.bootstrap, target)] == [b"\0", b"\2", b"\4"]
    found = gather(each)
    assert (found.problems, found.judged) == ([], 3)


def test_a_table_without_windows_is_published_as_upserts_and_tombstones(
    broker: Broker, topic: TopicMaker, registry: FakeRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, root = topic(partitions=2), tmp_path / "lake"
    write(root, {n: f"{n}.50" for n in range(4)})
    declared = PublishDeclaration(target, DerivedRef("totals"), key=KEY, value=VALUE, transaction_rows=3)
    each = KeyedPublisher(declared, Ledger(Lake.at(root)), Cluster.connect(client_settings(broker.bootstrap)))
    assert each.run().records == 4
    write(root, {0: "0.50", 1: "9.00", 3: "3.50"})
    assert each.run().records == 2
    assert each.run().records == 0
    messages = consumed_by_key(broker, target)
    assert {read(registry, key): value and read(registry, value) for key, value in messages.items()} == {
        0: {"id": 0, "amount": Decimal("0.50")}, 1: {"id": 1, "amount": Decimal("9.00")}, 2: None,
        3: {"id": 3, "amount": Decimal("3.50")},
    }  # fmt: skip
    found = published_keys.gather(each)
    assert (found.problems, found.not_read, found.judged) == ([], [], 3)
    # A registry that was created again does not lead to all rows once more.
    registry.forget_all(first_id=40)
    write(root, {0: "0.50", 1: "9.00", 3: "3.00"})
    with pytest.raises(PublishedSchemaChangedError, match="gives it id 40"):
        each.run()
    registry.forget_all(first_id=7)
    assert each.run().records == 1
    changed = replace(each, declaration=replace(declared, value=replace(VALUE, columns=("id",))))
    assert changed.run().records == 3
    assert "3 of 3 rows differ and are sent" in caplog.text
    assert published_keys.gather(changed).problems == []


def write(root: Path, amounts: dict[int, str]) -> None:
    """Write the next version of a derived table."""
    columns = {
        "id": pa.array(amounts, pa.int64()),
        "amount": pa.array(map(Decimal, amounts.values()), pa.decimal128(12, 2)),
    }
    write_deltalake(str(root / "derived" / "totals"), pa.table(columns), mode="overwrite")


def consumed_by_key(broker: Broker, target: str) -> dict[bytes, bytes | None]:
    return {m.key or b"": m.value for m in consumed(broker.bootstrap, target)}


def test_a_subject_leads_to_no_other_path(registry: FakeRegistry, tmp_path: Path) -> None:
    made = orders(tmp_path, 1)
    declared = PublishDeclaration("target", made.declaration.decoded_table, value=replace(VALUE, subject=".."))
    schemas = Publisher(declared, made.ledger, None).schemas  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="would lead to another path"):
        SchemaIds(declared, made.lake, "T").heads(schemas, send=True)
    assert registry.asked == []


def schema(**columns: pa.DataType) -> Registered:
    """Return a schema of Protobuf."""
    return Registered("PROTOBUF", protobuf.derived([pa.field(*each) for each in columns.items()], "Order"))


def test_another_registry_is_noticed_when_the_schema_changes(registry: FakeRegistry, tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    ids = SchemaIds(PublishDeclaration("target", DerivedRef("totals"), key=KEY, value=VALUE), lake, "T")
    first, later = Registered("AVRO", '"int"'), Registered("AVRO", '"long"')
    assert ids.heads({"value": first}, send=True) == {"value": b"\0\0\0\0\x07"}
    registry.forget_all(first_id=7)
    with pytest.raises(PublishedSchemaChangedError, match="gives it id 7, by which records name another"):
        ids.heads({"value": later}, send=True)
    # Now it has this id.
    with pytest.raises(PublishedSchemaChangedError, match="has another schema with id 7 than that of the records"):
        ids.heads({"value": later}, send=True)
    registry.forget_all(first_id=7)
    assert ids.heads({"value": first}, send=True) == {"value": b"\0\0\0\0\x07"}
    assert ids.heads({"value": later}, send=True) == {"value": b"\0\0\0\0\x08"}
    assert list(known(lake, "target", "T").of("value").values()) == [7, 8]


def test_a_schema_with_which_nothing_was_sent_may_change(registry: FakeRegistry, tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    ids = SchemaIds(PublishDeclaration("target", DerivedRef("totals"), key=KEY, value=VALUE), lake, "T")
    ids.heads({"key": Registered("AVRO", '"int"')}, send=True)
    later = {"key": Registered("AVRO", '"long"')}
    with pytest.raises(PublishedSchemaChangedError, match="it is another one"):
        ids.heads(later, send=True)  # type: ignore[arg-type]
    assert replace(ids, is_unused=lambda: True).heads(later, send=True) == {"key": b"\0\0\0\0\x08"}  # type: ignore[arg-type]
    assert ids.heads(later, send=True) == {"key": b"\0\0\0\0\x08"}  # type: ignore[arg-type]


def test_fields_of_protobuf_keep_their_numbers(registry: FakeRegistry, tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    ids = SchemaIds(PublishDeclaration("target", DerivedRef("totals"), key=KEY, value=VALUE), lake, "T")
    text = pa.string()
    ids.heads({"value": schema(a=text, b=pa.struct([("x", text), ("y", text)]))}, send=True)
    for moved, name in (
        (schema(c=text, a=text, b=pa.struct([("x", text), ("y", text)])), "a"),
        (schema(a=text, b=pa.struct([("y", text), ("x", text)])), "BMessage.x"),
    ):
        with pytest.raises(PublishedSchemaChangedError, match=f"field {name} would have another number"):
            ids.heads({"value": moved}, send=True)
    assert len(registry.posted) == 1
    added = schema(a=text, b=pa.struct([("x", text), ("y", text), ("z", text)]), c=text)
    assert ids.heads({"value": added}, send=True) == {"value": b"\0\0\0\0\x08"}
