"""Messages become rows according to their descriptors, and hostile bytes become dead letters."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
from hypothesis import given
from hypothesis import strategies as st

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.protobuf import ProtobufDecoder
from platform_assets.decoding.schema import ddl_of_schema
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support import decoding

Field = tuple[str, int, int, str]
ONE, MANY = Proto.LABEL_OPTIONAL, Proto.LABEL_REPEATED


def message(
    name: str, *fields: Field, many: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> descriptor_pb2.DescriptorProto:
    """Return a message type with these fields. Each field is given by its name, its number, its type, and the name of
    its type."""
    made = descriptor_pb2.DescriptorProto(name=name)
    for field, number, kind, type_name in fields:
        added = made.field.add(name=field, number=number, type=kind, label=MANY if field in many else ONE)
        if type_name:
            added.type_name = type_name
        if field in optional:
            added.proto3_optional = True
            added.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name="_" + field)
    return made


def described(*messages: descriptor_pb2.DescriptorProto, syntax: str = "proto3") -> descriptor_pb2.FileDescriptorSet:
    """Return a descriptor set with one file and the files that it imports."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax=syntax, message_type=messages)
    file.enum_type.add(name="Colour").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
            for number, name in enumerate(["NONE", "RED"])
        ]
    )
    found = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        module.DESCRIPTOR.CopyToProto(found.file.add())
        file.dependency.append(module.DESCRIPTOR.name)
    found.file.append(file)
    return found


LEG = message("Leg", ("to", 1, Proto.TYPE_STRING, ""), ("km", 2, Proto.TYPE_INT32, ""), optional=("km",))
ENTRY = message("CountsEntry", ("key", 1, Proto.TYPE_STRING, ""), ("value", 2, Proto.TYPE_INT32, ""))
ENTRY.options.map_entry = True
ALL = message(
    "All",
    ("id", 1, Proto.TYPE_INT64, ""),
    ("name", 2, Proto.TYPE_STRING, ""),
    ("raw", 3, Proto.TYPE_BYTES, ""),
    ("big", 4, Proto.TYPE_UINT64, ""),
    ("maybe", 5, Proto.TYPE_DOUBLE, ""),
    ("colour", 6, Proto.TYPE_ENUM, ".t.Colour"),
    ("at", 7, Proto.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
    ("wrapped", 8, Proto.TYPE_MESSAGE, ".google.protobuf.UInt64Value"),
    ("leg", 9, Proto.TYPE_MESSAGE, ".t.Leg"),
    ("legs", 10, Proto.TYPE_MESSAGE, ".t.Leg"),
    ("counts", 11, Proto.TYPE_MESSAGE, ".t.All.CountsEntry"),
    ("flags", 12, Proto.TYPE_BOOL, ""),
    many=("legs", "counts", "flags"),
    optional=("maybe",),
)
ALL.nested_type.append(ENTRY)
SET = described(LEG, ALL)


def decoder(found: descriptor_pb2.FileDescriptorSet = SET, name: str = "t.All", **options: Any) -> ProtobufDecoder:
    made = decoder_of(
        FormatSpec(
            "protobuf",
            {"descriptor_set": base64.b64encode(found.SerializeToString()).decode(), "message": name, **options},
        )
    )
    assert isinstance(made, ProtobufDecoder)
    return made


def class_of(found: descriptor_pb2.FileDescriptorSet, name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_each_kind_of_field_and_what_is_not_there() -> None:
    whole = class_of(SET, "t.All")(
        id=-5, name="Zürich", raw=b"\0\xff", big=(1 << 64) - 1, maybe=0.0, colour=1, wrapped={"value": 1 << 63}, leg={"to": "A"},
        legs=[{"to": "B", "km": 0}], counts={"b": 2, "a": 1}, flags=[True, False],
    )  # fmt: skip
    whole.at.FromMicroseconds(-1)
    found = decoding.decoded(decoder(), [whole.SerializeToString(), b"", None])
    one, empty, null = found.columns.to_pylist()
    assert one == {
        "id": -5, "name": "Zürich", "raw": b"\0\xff", "big": Decimal((1 << 64) - 1), "maybe": 0.0, "colour": "RED",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "wrapped": Decimal(1 << 63), "leg": {"to": "A", "km": None},
        "legs": [{"to": "B", "km": 0}], "counts": [{"key": "a", "value": 1}, {"key": "b", "value": 2}], "flags": [True, False],
    }  # fmt: skip
    assert empty == {
        "id": 0, "name": "", "raw": b"", "big": 0, "maybe": None, "colour": "NONE", "at": None, "wrapped": None, "leg": None,
        "legs": [], "counts": [], "flags": [],
    }  # fmt: skip
    assert set(null.values()) == {None}
    assert [field.name for field in decoder().fields if field.nullable] == ["maybe", "at", "wrapped", "leg"]
    assert found.rescued.to_pylist() == [None] * 3


def test_maps_with_text_keys_become_map_columns_if_the_declaration_wants_them() -> None:
    leg = message("Leg", ("to", 1, Proto.TYPE_STRING, ""))
    text = message("LegsEntry", ("key", 1, Proto.TYPE_STRING, ""), ("value", 2, Proto.TYPE_MESSAGE, ".t.Leg"))
    whole = message("NumbersEntry", ("key", 1, Proto.TYPE_INT64, ""), ("value", 2, Proto.TYPE_UINT64, ""))
    inside = (
        ("legs", 1, Proto.TYPE_MESSAGE, ".t.Inner.LegsEntry"),
        ("numbers", 2, Proto.TYPE_MESSAGE, ".t.Inner.NumbersEntry"),
    )
    inner = message("Inner", *inside, many=("legs", "numbers"))
    for entry in (text, whole):
        entry.options.map_entry = True
        inner.nested_type.append(entry)
    types = described(leg, inner, message("Outer", ("inner", 1, Proto.TYPE_MESSAGE, ".t.Inner")))
    value = class_of(types, "t.Outer")(
        inner={"legs": {"b": {"to": "B"}, "a": {"to": "A"}}, "numbers": {2: 1 << 63, 1: 0}}
    )
    of = decoder(types, "t.Outer", maps="map")
    assert ddl_of_schema(of.fields) == (
        "inner STRUCT<legs: MAP<STRING, STRUCT<to: STRING NOT NULL>> NOT NULL, "
        "numbers: ARRAY<STRUCT<key: BIGINT NOT NULL, value: DECIMAL(20,0) NOT NULL>> NOT NULL>"
    )
    later = value.SerializeToString() + b"\x0a\x07\x0a\x05\x0a\x01a\x12\x00"
    found = decoding.decoded(of, [value.SerializeToString(), b"", later, b"\x0a\x07\x0a\x05\x0a\x01\xff\x12\x00"])
    one, empty, again, _ = found.columns["inner"].to_pylist(maps_as_pydicts="strict")
    numbers = [{"key": 1, "value": 0}, {"key": 2, "value": 1 << 63}]
    assert one == {"legs": {"a": {"to": "A"}, "b": {"to": "B"}}, "numbers": numbers}
    assert empty is None
    assert again["legs"] == {"a": {"to": ""}, "b": {"to": "B"}}, (
        "of a key that is there twice, the last value counts in Protobuf"
    )
    assert [each["row"] for each in found.dead.to_pylist()] == [3]


def test_fields_that_the_type_lacks_are_rescued_by_number() -> None:
    newer_leg = message("Leg", ("to", 1, Proto.TYPE_STRING, ""), ("gate", 7, Proto.TYPE_STRING, ""))
    newer = described(
        newer_leg,
        message(
            "All",
            ("id", 1, Proto.TYPE_INT64, ""),
            ("more", 99, Proto.TYPE_SINT32, ""),
            ("legs", 10, Proto.TYPE_MESSAGE, ".t.Leg"),
            many=("legs",),
        ),
    )
    value = class_of(newer, "t.All")(id=1, more=3, legs=[{"to": "A"}, {"to": "B", "gate": "G"}]).SerializeToString()
    found = decoding.decoded(decoder(), [value])
    assert json.loads(found.rescued[0].as_py()) == {"99": [6], "legs": [None, {"7": ["Rw=="]}]}


def test_values_that_are_no_messages_are_dead_letters() -> None:
    bad = [
        b"\xff", b"\x12\xff\xff\xff\xff\x0f", b"\x12\x02\xc3\x28", b"\x0b" * 10_000, b"\x4a\x05ab", b"\x30\x07",
        b"\x3a\x0a\x08" + b"\x80" * 8 + b"\x10", b"\x3a\x02\x10\x01",
    ]  # fmt: skip
    found = decoding.decoded(decoder(), [b"\x08\x01", *bad, b"\x12\x65" + b"x" * 101])
    reasons = [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()]
    assert reasons[:5] == [(row, "malformed", None) for row in range(1, 6)]
    assert reasons[5:7] == [(6, "wrong_type", "$.colour"), (7, "out_of_range", "$.at")]
    assert reasons[7:] == [(8, "out_of_range", "$.at")]
    assert decoding.decoded(decoder(max_bytes=50), [b"\x12\x65" + b"x" * 101]).dead["reason"].to_pylist() == [
        "too_large"
    ]


def test_a_required_field_of_an_older_syntax() -> None:
    old = message("Old", ("id", 1, Proto.TYPE_INT32, ""))
    old.field[0].label = Proto.LABEL_REQUIRED
    of = decoder(described(old, syntax="proto2"), "t.Old")
    assert not of.fields.field("id").nullable
    found = decoding.decoded(of, [b"\x08\x07", b""])
    assert found.columns["id"].to_pylist() == [7, None]
    assert found.dead.to_pylist()[0]["reason"] == "missing"


def test_declarations_that_are_wrong_are_refused() -> None:
    endless = message("Endless", ("inner", 1, Proto.TYPE_MESSAGE, ".t.Endless"))
    with pytest.raises(ConfigurationError, match=r"t\.Endless\.inner: t\.Endless contains itself"):
        decoder(described(endless), "t.Endless")
    with pytest.raises(ConfigurationError, match="which 'descriptor_set' does not contain"):
        decoder(name="t.Other")
    with pytest.raises(ConfigurationError, match="run protoc with --include_imports"):
        decoder(descriptor_pb2.FileDescriptorSet(file=[SET.file[-1]]))
    with pytest.raises(ConfigurationError, match="has no fields"):
        decoder(described(message("None")), "t.None")
    for text in ("?", "AAAA"):
        with pytest.raises(ConfigurationError, match="not a descriptor set in base64"):
            decoder_of(FormatSpec("protobuf", {"descriptor_set": text, "message": "t.All"}))
    doubling = [message("M0", ("a", 1, Proto.TYPE_INT32, ""))]
    for level in range(1, 40):
        inner = f".t.M{level - 1}"
        doubling.append(message(f"M{level}", ("a", 1, Proto.TYPE_MESSAGE, inner), ("b", 2, Proto.TYPE_MESSAGE, inner)))
    with pytest.raises(ConfigurationError, match="more than 10000 parts"):
        decoder(described(*doubling), "t.M39")


@decoding.UNTIMED
@given(st.lists(st.none() | st.binary(max_size=40), max_size=5))
def test_any_bytes_become_rows_or_dead_letters(values: list[bytes | None]) -> None:
    assert isinstance(decoding.decoded(decoder(), values).columns, pa.RecordBatch)


def entry(key: bytes, value: bytes) -> bytes:
    """Return an encoded entry of the map in field 1."""
    inside = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(value)]) + value
    return b"\x0a" + bytes([len(inside)]) + inside


@pytest.mark.parametrize("others", [b"", entry(b"a", b"x")])
def test_a_key_that_is_not_utf_8_is_a_dead_letter(others: bytes) -> None:
    texts = message("NamesEntry", ("key", 1, Proto.TYPE_STRING, ""), ("value", 2, Proto.TYPE_STRING, ""))
    texts.options.map_entry = True
    top = message("Top", ("names", 1, Proto.TYPE_MESSAGE, ".t.Top.NamesEntry"), many=("names",))
    top.nested_type.append(texts)
    of = decoder(described(top, syntax="proto2"), "t.Top")
    found = decoding.decoded(of, [entry(b"b", b"y"), entry(b"\xff", b"x") + others, entry(b"a", b"\xff")])
    assert found.columns["names"].to_pylist() == [[{"key": "b", "value": "y"}], None, None]
    letters = [(each["row"], each["reason"], each["place"]) for each in found.dead.to_pylist()]
    assert letters == [(1, "malformed", "$.names{}"), (2, "malformed", "$.names")]


def extended(package: str) -> descriptor_pb2.FileDescriptorSet:
    """Return a file with a message that has a field `note`, and with three extensions: an extension that is also named
    `note`, an extension that is nested in a message, and a repeated extension."""
    dot = f".{package}." if package else "."
    leg = message("Leg", ("to", 1, Proto.TYPE_STRING, ""))
    top = message(
        "Top",
        ("id", 1, Proto.TYPE_INT32, ""),
        ("note", 2, Proto.TYPE_STRING, ""),
        ("leg", 3, Proto.TYPE_MESSAGE, f"{dot}Leg"),
    )
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package=package, syntax="proto2", message_type=[leg, top])
    for each in file.message_type:
        each.extension_range.add(start=100, end=200)
    file.extension.add(name="note", number=100, type=Proto.TYPE_STRING, label=ONE, extendee=f"{dot}Top")
    file.extension.add(name="gates", number=101, type=Proto.TYPE_INT32, label=MANY, extendee=f"{dot}Leg")
    file.extension.add(
        name="via", number=102, type=Proto.TYPE_MESSAGE, label=ONE, extendee=f"{dot}Top", type_name=f"{dot}Leg"
    )
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.mark.parametrize("package", ["t", ""])
def test_extensions_are_rescued_by_full_name(package: str) -> None:
    of = decoder(extended(package), f"{package}.Top".lstrip("."))
    value = b"\x08\x05\x12\x01f\x1a\x09\x0a\x01Z\xa8\x06\x01\xa8\x06\x02\xa2\x06\x01e\xb2\x06\x03\x0a\x01V"
    found = decoding.decoded(of, [value, b"\x08\x06"])
    assert found.columns.to_pylist() == [
        {"id": 5, "note": "f", "leg": {"to": "Z"}}, {"id": 6, "note": None, "leg": None}
    ]  # fmt: skip
    rescued = json.loads(found.rescued[0].as_py())
    assert rescued == {"leg": {f"{package}.gates": [1, 2]}, f"{package}.note": "e", f"{package}.via": {"to": "V"}}
    assert found.rescued[1].as_py() is None
