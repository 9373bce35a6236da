"""Rows as Avro, held against fastavro's own writer and reader: schemas from columns, declared schemas, and values that do
not fit."""

from __future__ import annotations

import io
import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from platform_assets.checks.published_schemas import SchemaReader
from platform_assets.checks.published_values import disagreements
from platform_assets.errors import ConfigurationError, UnpublishableValueError
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.publish.encoding import Encoder
from platform_assets_tests.support.typed_rows import typed_rows

TABLE = TableRef("decoded", "orders")


def record(named: str = "r", **fields: Any) -> str:
    """Return the schema of a record as text."""
    return json.dumps(
        {"type": "record", "name": named, "fields": [{"name": n, "type": of} for n, of in fields.items()]}
    )


def encoder(rows: pa.Table, **given: Any) -> Encoder:
    return Encoder(PublishDeclaration("orders-clean", TABLE, **given), rows.schema)


def written(schema: Any, value: Any) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(schema), plain(value))
    return into.getvalue()


def plain(value: Any) -> Any:
    """Return a value with the digits of decimals as Java writes them: fastavro writes one byte more for some."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, Decimal):
        return value
    digits = int("".join(map(str, value.as_tuple().digits))) * (-1 if value.is_signed() else 1)
    return digits.to_bytes((digits if digits >= 0 else digits + 1).bit_length() // 8 + 1, "big", signed=True)


def placed(rows: pa.Table) -> pa.Table:
    rows = rows.drop([name for name in rows.column_names if name.startswith("kafka_")])
    with_partition = rows.append_column("kafka_partition", pa.array([0] * rows.num_rows, pa.int32()))
    return with_partition.append_column("kafka_offset", pa.array(range(rows.num_rows), pa.int64()))


def wrong(each: Encoder, rows: pa.Table, records: dict[tuple[int, int], Any]) -> list[str]:
    return list(
        disagreements(
            each.declaration, rows, records, frozenset(), SchemaReader(each.declaration, lambda: each.schemas)
        )
    )


def test_data_are_those_that_fastavro_writes() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rows = placed(pa.table(typed_rows(random.Random(seed), 200)))
    names = tuple(n for n in rows.column_names if not n.startswith("kafka_"))
    each = encoder(rows, key=Part("avro", names[:2]), value=Part("avro", names))
    schema = json.loads(each.forms["value"].text)
    encoded = each.encode(rows)
    for at, row in enumerate(rows.select(names).to_pylist(maps_as_pydicts="strict")):
        assert encoded.values[at] == written(schema, row), at
    records: Any = {(0, n): (k, v, []) for n, (k, v) in enumerate(zip(encoded.keys, encoded.values, strict=True))}
    assert wrong(each, rows, records) == []
    # The judge has to notice a record of another row.
    moved: Any = {at: (k, encoded.values[(at[1] + 1) % 200], []) for at, (k, _, _) in records.items()}
    assert len(wrong(each, rows, moved)) > 150
    # A part of the rows, in which every array has an offset.
    assert each.encode(rows.slice(37, 50)).values == encoded.values[37:87]
    assert each.encode(rows.slice(0, 0)).values == []


def test_times_that_python_does_not_have_are_published_and_judged() -> None:
    far = pa.array([253_402_300_800_000_000, -(2**63), None], pa.timestamp("us", "UTC"))
    rows = placed(pa.table({"at": far}))
    each = encoder(rows, value=Part("avro", ("at",)))
    each.check(rows)
    encoded = each.encode(rows)
    records: Any = {(0, n): (None, value, []) for n, value in enumerate(encoded.values)}
    assert wrong(each, rows, records) == []
    assert len(wrong(each, rows, {(0, 0): records[0, 1], (0, 2): records[0, 0]})) == 2


@pytest.mark.parametrize(
    ("part", "topic", "name", "namespace"),
    [
        (Part("avro", ("a",)), "orders-clean", "orders_clean", None),
        (Part("avro", ("a",)), "1.orders", "_1_orders", None),
        (Part("avro", ("a",), name="shop.Order"), "clean", "Order", "shop"),
    ],
)
def test_the_schema_of_columns_is_the_same_each_time(part: Part, topic: str, name: str, namespace: str | None) -> None:
    schema = pa.schema([("a", pa.struct([("b", pa.list_(pa.struct([("c", pa.int8())])))])), ("b", pa.int64())])
    found = Encoder(PublishDeclaration(topic, TABLE, value=part), schema).forms["value"]
    document = json.loads(found.text)
    assert (document["name"], document.get("namespace")) == (name, namespace)
    (field,) = document["fields"]
    assert field["default"] is None
    assert field["type"][1]["name"] == f"{name}_a"
    assert field["type"][1]["fields"][0]["type"][1]["items"][1]["name"] == f"{name}_a_b"
    assert not found.may_refuse
    fastavro.parse_schema(document)


KIND = {"type": "enum", "name": "Kind", "symbols": ["NEW", "PAID"]}
PRICE = {"type": "fixed", "name": "Price", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 2}
DECLARED = {"namespace": "shop", **json.loads(record(
    "Order",
    small="int",
    kind=[KIND, "null"],
    code=["null", {"type": "fixed", "name": "Code", "size": 2}],
    at={"type": "long", "logicalType": "timestamp-millis"},
    price=PRICE,
    key={"type": "string", "logicalType": "uuid"},
    x="double",
    legs={"type": "array", "items": json.loads(record("Leg", km="int"))},
    first=["null", "Leg"],
    tags={"type": "map", "values": "string"},
))}  # fmt: skip
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
LEG = pa.struct([("km", pa.int64())])
ROW: dict[str, Any] = {
    "small": 7, "kind": "PAID", "code": b"ab", "at": datetime(2026, 1, 2, 3, 4, 5, 6000, UTC), "price": Decimal("-12.50"),
    "key": "00000000-0000-0000-0000-00000000000f", "x": 0.5, "legs": [{"km": 1}, {"km": -2}], "first": {"km": 3},
    "tags": [("a", "b")],
}  # fmt: skip
TYPES = {
    "small": pa.int64(), "kind": pa.string(), "code": pa.binary(), "at": pa.timestamp("us", "UTC"), "price": pa.decimal128(18, 2),
    "key": pa.string(), "x": pa.float32(), "legs": pa.list_(LEG), "first": LEG, "tags": pa.map_(pa.string(), pa.string()),
}  # fmt: skip


def declared_rows(**last: Any) -> pa.Table:
    """Return two rows of the columns in `DECLARED`, of which the last one has these values."""
    rows = [ROW, {**ROW, **last}]
    return placed(
        pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in reversed(TYPES.items())})
    )


def test_a_declared_schema_decides_about_order_and_types() -> None:
    rows = declared_rows(kind=None, code=None, first=None, legs=[], tags=[])
    each = encoder(rows, value=Part("avro", schema=json.dumps(DECLARED)))
    each.check(rows)
    encoded = each.encode(rows)
    for value, row in zip(encoded.values, rows.select(list(TYPES)).to_pylist(maps_as_pydicts="strict"), strict=True):
        assert value == written(DECLARED, {**row, "price": (-1250).to_bytes(9, "big", signed=True)})
    records: Any = {(0, n): (None, value, []) for n, value in enumerate(encoded.values)}
    assert wrong(each, rows, records) == []


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("small", 2**31, "column small of decoded/orders does not fit into 32 bits"),
        ("small", None, "column small of decoded/orders is null, which its schema does not allow"),
        ("kind", "LOST", "column kind of decoded/orders is not a symbol of shop.Kind"),
        ("code", b"abc", "column code of decoded/orders does not have 2 bytes"),
        ("at", datetime(2026, 1, 1, 0, 0, 0, 1, UTC), "column at of decoded/orders is not a whole millisecond"),
        ("key", "a", "column key of decoded/orders is not a UUID"),
        ("legs", [{"km": 1}, {"km": 2**40}], "column legs[].km of decoded/orders does not fit into 32 bits"),
        ("legs", [{"km": 1}, None], "column legs[] of decoded/orders is null"),
        ("first", {"km": None}, "column first.km of decoded/orders is null"),
        ("tags", [("a", None)], "column tags{} of decoded/orders is null"),
    ],
)
def test_a_value_that_does_not_fit_is_named(column: str, value: Any, says: str) -> None:
    rows = declared_rows(**{column: value})
    each = encoder(rows, value=Part("avro", schema=json.dumps(DECLARED)))
    for call in (each.check, each.encode):
        with pytest.raises(UnpublishableValueError) as caught:
            call(rows)
        assert says in str(caught.value)
        assert "in the row of partition 0 and offset 1." in str(caught.value)
    each.check(rows.slice(0, 1))


def test_a_key_may_be_a_plain_datum() -> None:
    rows = placed(pa.table({"id": pa.array([1, -64, None], pa.int64())}))
    each = encoder(rows, key=Part("avro", ("id",), '["long", "null"]'), value=Part("avro", ("id",)))
    encoded = each.encode(rows)
    assert encoded.keys == [b"\0\2", b"\0\x7f", b"\2"]
    records: Any = {(0, n): (k, v, []) for n, (k, v) in enumerate(zip(encoded.keys, encoded.values, strict=True))}
    assert wrong(each, rows, records) == []


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (Part("avro", ("gaps",)), "column 'gap s' cannot be a field in Avro"),
        (Part("avro", ("odd",)), "column 'odd' has a map with keys of type int64"),
        (Part("avro", ("span",)), "column 'span' has type duration"),
        (Part("avro", ("a", "a_b")), "two nested columns would both have the record name 'orders_clean_a_b'"),
        (Part("avro", ("n",), name="a-b"), "name 'a-b' is not an Avro name"),
        (Part("avro", ("n",), '{"type": "record"}'), "schema is not a valid Avro schema"),
        (Part("avro", ("n",), '"int'), "schema is not a valid Avro schema"),
        (Part("avro", (), '"int"'), "schema is not a record, so `columns` must name exactly one column"),
        (Part("avro", ("n",), '"string"'), "column n has type int64, which does not fit string in the schema"),
        (Part("avro", ("n",), '["int", "string"]'), "n is a union in the schema"),
        (Part("avro", ("n",), record()), "schema is a record without fields"),
        (Part("avro", (), record(z="int")), "schema has field 'z', but the table has no such column"),
        (Part("avro", ("a",), record(n="int")), "columns and schema differ in a, n"),
        (Part("avro", ("a",), record(a=json.loads(record("s")))), "a: schema and column differ in b"),
        (Part("avro", ("money",), json.dumps(DECIMAL)), "column money has type decimal128(5, 2)"),
    ],
)  # fmt: skip
def test_what_a_schema_cannot_have_is_refused_at_once(part: Part, says: str) -> None:
    inner = pa.struct([("b", pa.struct([("c", pa.int8())]))])
    columns = pa.schema([
        ("n", pa.int64()), ("gaps", pa.struct([("gap s", pa.int8())])), ("odd", pa.map_(pa.int64(), pa.int8())),
        ("span", pa.duration("us")), ("a", inner), ("a_b", pa.struct([("c", pa.int8())])), ("money", pa.decimal128(5, 2)),
    ])  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        Encoder(PublishDeclaration("orders-clean", TABLE, value=part), columns)
    assert says in str(caught.value)


def test_the_value_of_a_tombstone_need_not_fit() -> None:
    rows = placed(pa.table({
        "id": pa.array([None, 2], pa.int64()), "key": pa.array([1, 2], pa.int64()), "tombstone": pa.array([True, False]),
    }))  # fmt: skip
    each = encoder(rows, key=Part("avro", ("key",), '"long"'), value=Part("avro", ("id",), '"long"'))
    each.check(rows)
    assert (each.encode(rows).keys, each.encode(rows).values) == ([b"\2", b"\4"], [None, b"\4"])


@pytest.mark.parametrize("kind", ["whole", "single"])
def test_a_tombstone_has_the_key_that_a_declared_schema_names(kind: str) -> None:
    keys = pa.array([{"id": 1}, {"id": 2}]) if kind == "whole" else pa.array([1, 2])
    rows = placed(pa.table({
        "id": pa.array([None, 2], pa.int64()), "key": keys, "tombstone": pa.array([True, False]),
    }))  # fmt: skip
    each = encoder(rows, key=Part("avro", schema=record(id=["null", "long"])), value=Part("avro", ("id",)))
    each.check(rows)
    encoded = each.encode(rows)
    assert encoded.keys == [b"\2\2", b"\2\4"]
    records: Any = {(0, n): (k, v, []) for n, (k, v) in enumerate(zip(encoded.keys, encoded.values, strict=True))}
    assert wrong(each, rows, records) == []


def test_bytes_alone_are_not_published_with_a_registry() -> None:
    rows = placed(pa.table({"id": pa.array([b"a"])}))
    assert encoder(rows, value=Part("avro", ("id",), '"bytes"')).encode(rows).values == [b"\2a"]
    assert encoder(rows, value=Part("avro", ("id",), '["null", "bytes"]', registry=True)).encode(rows).values == [
        b"\2\2a"
    ]
    with pytest.raises(ConfigurationError, match="`bytes` alone"):
        encoder(rows, value=Part("avro", ("id",), '"bytes"', registry=True))


def test_rows_are_checked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from platform_assets.windows.publish import encoding

    monkeypatch.setattr(encoding, "_CHECKED", 8)
    monkeypatch.setattr(encoding, "_CHECKED_BYTES", 64)
    rows = placed(pa.table({"id": pa.array([*range(20), 2**40], pa.int64())}))
    each = encoder(rows, value=Part("avro", ("id",), '"int"'))
    with pytest.raises(UnpublishableValueError, match="in the row of partition 0 and offset 20"):
        each.check(rows)
    each.check(rows.slice(0, 20))


def test_what_does_not_change_records_does_not_change_their_form() -> None:
    rows = placed(pa.table({"id": pa.array([1], pa.int64())}))
    given = Part("avro", ("id",), registry=True)
    first = encoder(rows, value=given).digest
    assert encoder(rows, value=Part("avro", ("id",), registry=True, register=True, subject="s")).digest == first
    assert encoder(rows, value=Part("avro", ("id",), registry=True, name="other")).digest != first
    assert encoder(rows, value=Part("avro", ("id",))).digest != first
    assert repr(Part("json", ("id",))) == "Part(format='json', columns=('id',))"
