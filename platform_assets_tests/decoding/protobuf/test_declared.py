"""The fields of messages with a registered schema become the declared columns of the same names, and hostile bytes
become dead letters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.protobuf import declared
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.decoding.protobuf.declared import DeclaredDecoder
from platform_assets.decoding.registry.cache import PROTOBUF, Registered
from platform_assets.decoding.registry.readers import ProtobufReader
from platform_assets.decoding.schema import schema_of_ddl
from platform_assets_tests.support import decoding
from platform_assets_tests.support.proto_data import class_of, indexed, proto, varint

ORDER = proto(
    """message Order {
      int64 id = 1; string name = 2; bytes raw = 3; uint64 big = 4; optional double maybe = 5; Colour colour = 6;
      google.protobuf.Timestamp at = 7; google.protobuf.UInt64Value wrapped = 8; Leg leg = 9; repeated Leg legs = 10;
      map<string, Leg> by_name = 11; repeated bool flags = 12; uint32 small = 13; float single = 14; Order inner = 15;
    }
    message Leg { string to = 1; optional int32 km = 2; message Stop { int32 n = 1; } }
    enum Colour { NONE = 0; RED = 1; }""",
    imports=("google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"),
)
LEG = "STRUCT<to: STRING, km: BIGINT>"
DDL = (
    "id BIGINT NOT NULL, name STRING NOT NULL, raw BINARY, big DECIMAL(20, 0), maybe DOUBLE, colour STRING, at TIMESTAMP, "
    f"wrapped BIGINT, leg {LEG}, legs ARRAY<{LEG}>, by_name ARRAY<STRUCT<key: STRING, value: {LEG}>>, flags ARRAY<BOOLEAN>, "
    "small SMALLINT, single DOUBLE, unwritten STRING"
)


def decoder(
    ddl: str = DDL,
    text: str = ORDER,
    message: str = "shop.Order",
    references: Mapping[str, str] | None = None,
    max_bytes: int = 1 << 20,
) -> DeclaredDecoder:
    """Return a decoder for values of one registered schema."""
    reader = ProtobufReader(message, schema_of_ddl(ddl), max_bytes)
    return reader.decoder_for(Registered(PROTOBUF, text, references or {}))


def test_each_kind_of_field_and_what_is_not_there() -> None:
    whole = class_of(ORDER, "shop.Order")(
        id=-5, name="Zürich", raw=b"\0\xff", big=(1 << 64) - 1, maybe=0.0, colour=1, wrapped={"value": 7}, leg={"to": "A"},
        legs=[{"to": "B", "km": 0}], by_name={"b": {"to": "B"}, "a": {"to": "A"}}, flags=[True, False], small=3, single=0.5,
    )  # fmt: skip
    whole.at.FromMicroseconds(-1)
    found = decoding.decoded(decoder(), [indexed(whole), indexed(whole, 0), b"\0", None])
    one, same, empty, null = found.columns.to_pylist()
    assert one == same == {
        "id": -5, "name": "Zürich", "raw": b"\0\xff", "big": Decimal((1 << 64) - 1), "maybe": 0.0, "colour": "RED",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "wrapped": 7, "leg": {"to": "A", "km": None},
        "legs": [{"to": "B", "km": 0}],
        "by_name": [{"key": "a", "value": {"to": "A", "km": None}}, {"key": "b", "value": {"to": "B", "km": None}}],
        "flags": [True, False], "small": 3, "single": 0.5, "unwritten": None,
    }  # fmt: skip
    assert empty == {
        "id": 0, "name": "", "raw": b"", "big": 0, "maybe": None, "colour": "NONE", "at": None, "wrapped": None, "leg": None,
        "legs": [], "by_name": [], "flags": [], "small": 0, "single": 0.0, "unwritten": None,
    }  # fmt: skip
    assert set(null.values()) == {None}
    assert found.rescued.to_pylist() == [None] * 4


def test_what_the_columns_lack_is_rescued_by_name_and_what_the_schema_lacks_by_number() -> None:
    newer = ORDER.replace("string to = 1;", "string to = 1; bytes gate = 7;")
    kind = class_of(newer, "shop.Order")
    value = kind(id=1, name="n", small=9, legs=[{"to": "A"}, {"to": "B", "gate": b"G"}], by_name={"x": {"gate": b"G"}})
    value.inner.inner.single = float("nan")
    value.inner.colour = 1
    lacking = decoder(f"id BIGINT, legs ARRAY<{LEG}>, by_name ARRAY<STRUCT<key: STRING, value: {LEG}>>")
    found = decoding.decoded(lacking, [indexed(value)])
    assert json.loads(found.rescued[0].as_py()) == {
        "name": "n", "small": 9, "legs": [None, {"7": ["Rw=="]}], "by_name": {"x": {"7": ["Rw=="]}},
        "inner": {"colour": "RED", "inner": {"single": "nan"}},
    }  # fmt: skip
    known = decoder(f"id BIGINT, legs ARRAY<{LEG}>", newer)
    assert json.loads(decoding.decoded(known, [indexed(value)]).rescued[0].as_py())["legs"] == [None, {"gate": "Rw=="}]


def test_a_map_with_text_keys_may_be_a_map() -> None:
    newer = ORDER.replace("string to = 1;", "string to = 1; bytes gate = 7;")
    value = class_of(newer, "shop.Order")(by_name={"b": {"to": "B"}, "a": {"to": "A", "gate": b"G"}})
    found = decoding.decoded(decoder(f"by_name MAP<STRING, {LEG}>", newer), [indexed(value), b"\0"])
    assert found.columns["by_name"].to_pylist() == [
        [("a", {"to": "A", "km": None}), ("b", {"to": "B", "km": None})],
        [],
    ]
    assert json.loads(found.rescued[0].as_py()) == {"by_name": {"a": {"gate": "Rw=="}}}
    with pytest.raises(BadSchema, match=r"\$\.m\{\}.*int32.*STRING"):
        decoder("m MAP<STRING, INT>", proto("message Order { map<int32, int32> m = 1; }"))


def test_values_that_do_not_fit_are_dead_letters_with_their_place() -> None:
    kind = class_of(ORDER, "shop.Order")
    bad = [
        b"", b"\x02", varint(65), varint(-1), varint(1) + varint(2), varint(1) + varint(1), varint(2) + varint(1) + varint(0),
        b"\x80" * 9, b"\0\xff", b"\0\x12\x02\xc3\x28", b"\0" + b"\x7a\x80" * 10_000,
        indexed(kind(small=1 << 15)), indexed(kind(colour=7)), indexed(kind(wrapped={"value": 1 << 63})),
    ]  # fmt: skip
    far = kind()
    far.at.nanos = 1
    found = decoding.decoded(decoder(), [*bad, indexed(far)])
    letters = [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()]
    assert letters == [
        *[(row, "malformed", None) for row in range(5)], (5, "wrong_type", None), (6, "wrong_type", None),
        *[(row, "malformed", None) for row in range(7, 11)], (11, "out_of_range", "$.small"), (12, "wrong_type", "$.colour"),
        (13, "out_of_range", "$.wrapped"), (14, "out_of_range", "$.at"),
    ]  # fmt: skip
    details = found.dead["detail"].to_pylist()
    assert "message index [2] does not exist in its schema" in details[4]
    assert "it is a shop.Leg message, but shop.Order is declared" in details[5]
    assert "shop.Leg.Stop" in details[6]
    assert decoding.decoded(decoder(max_bytes=4), [b"\0" * 5]).dead["reason"].to_pylist() == ["too_large"]


def test_places_within_lists_and_structs_are_named() -> None:
    value = class_of(ORDER, "shop.Order")(legs=[{"km": 1}, {"km": 300}], by_name={"x": {}})
    of = decoder("legs ARRAY<STRUCT<km: TINYINT>>")
    assert decoding.decoded(of, [indexed(value)]).dead["place"].to_pylist() == ["$.legs[1].km"]
    of = decoder("by_name ARRAY<STRUCT<key: STRING, value: STRUCT<km: INT NOT NULL>>>")
    assert decoding.decoded(of, [indexed(value)]).dead.to_pylist()[0]["place"] == "$.by_name{}.km"


def test_text_of_the_older_syntax_that_is_not_utf_8() -> None:
    old = proto("message Old { optional string a = 1; required int32 n = 2; }", syntax="proto2")
    found = decoding.decoded(decoder("a STRING, n INT NOT NULL", old, "shop.Old"), [b"\0\x0a\x01\xff\x10\x07", b"\0"])
    assert [(each["reason"], each["place"]) for each in found.dead.to_pylist()] == [
        ("malformed", "$.a"),
        ("missing", "$.n"),
    ]
    kept = decoding.decoded(decoder("n INT", old, "shop.Old"), [b"\0\x0a\x01\xff\x10\x07"])
    assert kept.rescued.to_pylist() == ['{"a":"/w=="}']


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("nothing INT NOT NULL", r"\$\.nothing: shop.Order has no such field, but the column is NOT NULL"),
        ("id STRING", r"\$\.id: the writer's type is int64, which cannot be read as STRING"),
        ("id DOUBLE", "int64"), ("maybe FLOAT", "double"), ("name BINARY", "string"), ("raw STRING", "bytes"),
        ("colour INT", "enum shop.Colour"), ("at STRING", "google.protobuf.Timestamp"), ("leg STRING", "shop.Leg"),
        ("flags BOOLEAN", "repeated bool"), ("id ARRAY<BIGINT>", "int64"), ("by_name STRING", "it is a map"),
        ("by_name ARRAY<STRUCT<key: STRING>>", "it is a map"), ("legs ARRAY<STRUCT<km: STRING>>", r"\$\.legs\[\]\.km"),
    ],
)  # fmt: skip
def test_schemas_that_cannot_be_read_as_declared_are_named(ddl: str, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        decoder(ddl)


def test_references_and_their_types() -> None:
    money = proto("message Money { string currency = 1; int64 units = 2; }")
    order = proto("message Order { Money price = 1; }", imports=("shop/money.proto",))
    references = {"shop/money.proto": money}
    value = class_of(order, "shop.Order", references)(price={"currency": "CHF", "units": 5})
    found = decoding.decoded(decoder("price STRUCT<units: INT>", order, references=references), [indexed(value)])
    assert found.columns.to_pylist() == [{"price": {"units": 5}}]
    assert found.rescued.to_pylist() == ['{"price":{"currency":"CHF"}}']


def test_indexes_count_messages_as_the_text_has_them() -> None:
    text = proto("message A { map<string, int32> m = 1; message B { message C {} } message D {} }")
    file = FileDescriptorSet.FromString(descriptor_set(text, {})).file[-1]
    assert declared.names_of(file) == {
        (0,): "shop.A",
        (0, 0): "shop.A.B",
        (0, 0, 0): "shop.A.B.C",
        (0, 1): "shop.A.D",
    }


@decoding.UNTIMED
@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1), min_size=1, max_size=declared.MOST_LEVELS), st.binary())
def test_indexes_are_read_as_they_were_written(path: list[int], rest: bytes) -> None:
    head = b"".join(map(varint, (len(path), *path)))
    assert declared.read(head + rest) == (tuple(path), len(head))
    with pytest.raises(DecodeFault):
        declared.read(head[:-1])


@decoding.UNTIMED
@given(st.lists(st.none() | st.binary(max_size=40) | st.binary(max_size=40).map(lambda more: b"\0" + more), max_size=5))
def test_any_bytes_become_rows_or_dead_letters(values: list[bytes | None]) -> None:
    found = decoding.decoded(ANY, values)
    assert len(found.columns) == len(values)


ANY = decoder()


OLDER = proto(
    """message Top {
      optional int32 id = 1; optional string note = 2; map<string, string> names = 3; map<string, Top> inner = 4;
      extensions 100 to 200;
    }
    extend Top { optional string note = 100; repeated Top others = 101; }
    message Scope { extend Top { optional int32 id = 102; } }""",
    syntax="proto2",
)
EXTENDED = b"\0\x08\x05\x12\x01f" + b"\xa2\x06\x01e" + b"\xaa\x06\x05\x08\x07\xa2\x06\x00" + b"\xb0\x06\x09"
BAD_KEY = b"\0\x1a\x06\x0a\x01\xff\x12\x01x\x1a\x06\x0a\x01a\x12\x01x"
BAD_INNER_KEY = b"\0\x22\x07\x0a\x01\xff\x12\x02\x08\x01"


@pytest.mark.parametrize("ddl", ["id BIGINT, note STRING", "id BIGINT"])
def test_extensions_are_rescued_by_full_name_next_to_fields_of_their_name(ddl: str) -> None:
    found = decoding.decoded(decoder(ddl, OLDER, "shop.Top"), [EXTENDED])
    columns = found.columns.to_pylist()[0]
    assert columns == {"id": 5} | ({"note": "f"} if "note" in columns else {})
    extensions = {"shop.note": "e", "shop.others": [{"id": 7, "shop.note": ""}], "shop.Scope.id": 9}
    assert json.loads(found.rescued[0].as_py()) == extensions | ({} if "note" in columns else {"note": "f"})


@pytest.mark.parametrize(
    "ddl",
    [
        "id INT",
        "names ARRAY<STRUCT<key: STRING, value: STRING>>",
        "inner ARRAY<STRUCT<key: STRING, value: STRUCT<id: INT>>>",
    ],
)
def test_keys_that_are_not_utf_8_are_dead_letters_whether_declared_or_not(ddl: str) -> None:
    found = decoding.decoded(decoder(ddl, OLDER, "shop.Top"), [BAD_KEY, b"\0", BAD_INNER_KEY])
    letters = [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()]
    assert letters == [(0, "malformed", "$.names{}"), (2, "malformed", "$.inner{}")]
