"""Rows as Protobuf, held against Google's own library: schemas from columns, and values that do not fit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from platform_assets.checks.published_schemas import SchemaReader
from platform_assets.checks.published_values import disagreements
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.decoding.protobuf.messages import class_of
from platform_assets.errors import ConfigurationError, UnpublishableValueError
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.encoding import Encoder
from platform_assets_tests.support.typed_rows import typed_rows

TABLE = TableRef("decoded", "orders")


def encoder(rows: pa.Table, **given: Any) -> Encoder:
    return Encoder(PublishDeclaration("orders-clean", TABLE, **given), rows.schema)


def placed(rows: pa.Table) -> pa.Table:
    with_partition = rows.append_column("kafka_partition", pa.array([0] * rows.num_rows, pa.int32()))
    return with_partition.append_column("kafka_offset", pa.array(range(rows.num_rows), pa.int64()))


def wrong(each: Encoder, rows: pa.Table, records: Any) -> list[str]:
    reader = SchemaReader(each.declaration, lambda: each.schemas)
    return list(disagreements(each.declaration, rows, records, frozenset(), reader))


def full(value: Any, kind: pa.DataType) -> Any:
    """Return a value without what Protobuf does not have: null items, and null arrays and maps."""
    if pa.types.is_map(kind):
        return [(k, full(filled(v, kind.item_type), kind.item_type)) for k, v in value or ()]
    if pa.types.is_list(kind):
        return [full(filled(v, kind.value_type), kind.value_type) for v in value or ()]
    if pa.types.is_struct(kind) and value is not None:
        return {field.name: full(value[field.name], field.type) for field in kind}
    return value


def filled(value: Any, kind: pa.DataType) -> Any:
    if value is None and pa.types.is_struct(kind):
        return dict.fromkeys((field.name for field in kind), None)
    return pa.scalar(0, pa.int8()).cast(kind).as_py() if value is None and pa.types.is_primitive(kind) else value


def representable(rows: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns that Protobuf can represent, without the values that it does not have."""
    for name in rows.column_names:
        kind = rows.schema.field(name).type
        try:
            encoder(rows, value=Part("protobuf", (name,)))
        except ConfigurationError:
            continue
        values = [full(value, kind) for value in rows[name].to_pylist()]
        if not any(isinstance(v, list) and None in v for v in values):
            yield name, pa.array(values, kind)


def test_messages_are_those_that_the_library_reads_and_writes() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    found = pa.table(typed_rows(random.Random(seed), 200))
    found = found.drop([name for name in found.column_names if name.startswith("kafka_")])
    rows = placed(pa.table(dict(representable(found))))
    names = tuple(name for name in rows.column_names if not name.startswith("kafka_"))
    assert len(names) >= 20
    each = encoder(rows, key=Part("protobuf", names[:2]), value=Part("protobuf", names))
    each.check(rows)
    encoded = each.encode(rows)
    records: Any = {(0, n): (k, v, []) for n, (k, v) in enumerate(zip(encoded.keys, encoded.values, strict=True))}
    assert wrong(each, rows, records) == []
    moved: Any = {at: (k, encoded.values[(at[1] + 1) % 200], []) for at, (k, _, _) in records.items()}
    assert len(wrong(each, rows, moved)) > 150
    assert each.encode(rows.slice(37, 50)).values == encoded.values[37:87]
    assert each.encode(rows.slice(0, 0)).values == []
    # Without maps, whose order is free, the bytes are the library's.
    flat = tuple(name for name in names if "map" not in str(rows.schema.field(name).type))
    each = encoder(rows, value=Part("protobuf", flat))
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(each.forms["value"].text, {}))
    message = class_of(files.file, "orders_clean")
    for value in each.encode(rows).values:
        assert message.FromString(value).SerializeToString() == value


def test_the_schema_of_columns_is_a_proto_file() -> None:
    schema = pa.schema([
        ("id", pa.int64()), ("ship_to", pa.struct([("city", pa.string()), ("at", pa.timestamp("us", "UTC"))])),
        ("tags", pa.map_(pa.string(), pa.int32())), ("legs", pa.list_(pa.struct([("km", pa.int16())]))),
    ])  # fmt: skip
    part = Part("protobuf", name="shop.Order")
    assert Encoder(PublishDeclaration("clean", TABLE, value=part), schema).forms["value"].text.splitlines() == [
        'syntax = "proto3";', "package shop;", 'import "google/protobuf/timestamp.proto";', "",
        "message Order {",
        "  message ShipToMessage {", "    optional string city = 1;", "    optional google.protobuf.Timestamp at = 2;", "  }",
        "  message LegsMessage {", "    optional int32 km = 1;", "  }",
        "  optional int64 id = 1;", "  optional ShipToMessage ship_to = 2;", "  map<string, int32> tags = 3;",
        "  repeated LegsMessage legs = 4;", "}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        (pa.list_(pa.int8()), None, "column c of decoded/orders is null, which a repeated field cannot be"),
        (pa.list_(pa.int8()), [1, None], "column c[] of decoded/orders is null, which Protobuf cannot represent"),
        (pa.map_(pa.string(), pa.int8()), [("a", None)], "column c{} of decoded/orders is null"),
        (pa.struct([("x", pa.list_(pa.int8()))]), {"x": None}, "column c.x of decoded/orders is null"),
        (pa.timestamp("us", "UTC"), 253_402_300_800_000_000, "column c of decoded/orders is a time outside the years"),
        (pa.date32(), 2_932_897, "column c of decoded/orders is a date outside the years"),
    ],
)
def test_a_value_that_does_not_fit_is_named(kind: pa.DataType, value: Any, says: str) -> None:
    first: Any = {"x": []} if pa.types.is_struct(kind) else 0 if pa.types.is_temporal(kind) else []
    rows = placed(pa.table({"c": pa.array([first, value], kind)}))
    each = encoder(rows, value=Part("protobuf", ("c",)))
    with pytest.raises(UnpublishableValueError) as caught:
        each.check(rows)
    assert says in str(caught.value)
    assert "in the row of partition 0 and offset 1." in str(caught.value)
    each.check(rows.slice(0, 1))


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part("protobuf", ("deep",)), "column 'deep' has an array or a map directly in another one"),
        (Part("protobuf", ("odd",)), "column 'odd' has a map with keys of type int64"),
        (Part("protobuf", ("span",)), "column 'span' has type duration"),
        (Part("protobuf", ("a b",)), "column 'a b' cannot be a field in Protobuf"),
        (Part("protobuf", ("a_b", "aB")), "the columns give no valid Protobuf schema"),
        (Part("protobuf", ("aB",), name="a-b"), "message 'a-b' is not a name in Protobuf"),
        (Part("protobuf", ("aB",), "message A {}"), "a Protobuf schema comes from the columns: leave out `schema`"),
    ],
)
def test_what_a_message_cannot_have_is_refused_at_once(part: Part, says: str) -> None:
    columns = pa.schema([
        ("deep", pa.list_(pa.list_(pa.int8()))), ("odd", pa.map_(pa.int64(), pa.int8())), ("span", pa.duration("us")),
        ("a b", pa.int8()), ("a_b", pa.int8()), ("aB", pa.int8()),
    ])  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        Encoder(PublishDeclaration("orders-clean", TABLE, value=part), columns)
    assert says in str(caught.value)


def test_small_decimals_and_times_before_1970_are_exact() -> None:
    rows = placed(pa.table({
        "n": pa.array([Decimal("0.0000000001"), Decimal("-0.5")], pa.decimal128(38, 10)),
        "at": pa.array([datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)], pa.timestamp("us", "UTC")),
    }))  # fmt: skip
    each = encoder(rows, value=Part("protobuf", ("n", "at")))
    records: Any = {(0, n): (None, value, []) for n, value in enumerate(each.encode(rows).values)}
    assert wrong(each, rows, records) == []
