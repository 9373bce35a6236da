"""The exact path continues at the part at which the kernel stopped. Both report the same fault, and no value is read
twice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pytest

from platform_assets.decoding.avro import exact
from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets_tests.support.avro_data import avro, decoded, record, written

ENUM: Final = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
DECIMAL: Final = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
FIXED_DECIMAL: Final = {"type": "fixed", "name": "D", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 1}
MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
INNER: Final = {"type": "record", "name": "Inner", "fields": [{"name": "text", "type": "string"}]}
NESTED: Final = {"type": "array", "items": {"type": "array", "items": ["null", "Inner"]}}

FIELDS: Final[Mapping[str, tuple[Any, bytes, bytes, str]]] = {
    "number": ("int", b"\x02", b"\x80\x80\x80\x80\x80\x40", "an int of"),
    "union": (["null", "int"], b"\x02\x02", b"\x08", "branch 4 of a union with 2 branches"),
    "text": ("string", b"\x02A", b"\x06A\xffC", "not UTF-8"),
    "colour": (ENUM, b"\x02", b"\x06", "symbol 3 of enum"),
    "truth": ("boolean", b"\x01", b"\x02", "a boolean of 2"),
    "price": (DECIMAL, b"\x02\x01", b"\x06\x7f\xff\xff", "a decimal of 3 bytes"),
    "fixed": (FIXED_DECIMAL, b"\x00\x01", b"\x7f\xff", "a decimal of 2 bytes"),
    "when": (MILLIS, b"\x02", b"\xfe" + b"\xff" * 8 + b"\x01", "ms since 1970"),
    "inner": (INNER, b"\x02A", b"\x02\xff", "not UTF-8"),
    "nested": (NESTED, b"\x02\x02\x02\x02A\x00\x00", b"\x04\x02\x00\x00\x02\x02\x02\xff\x00\x00", "not UTF-8"),
    "block": ({"type": "array", "items": "int"}, b"\x02\x02\x00", b"\x01\x04\x02\x00", "a block that should end"),
    "map": ({"type": "map", "values": "string"}, b"\x02\x02k\x02v\x00", b"\x02\x02k\x02\xff\x00", "not UTF-8"),
}
"""For each field name: the field's type, the bytes of a valid value, the bytes of a broken value, and the error for the
broken value."""
PLACES: Final = {"inner": "$.inner.text", "nested": "$.nested[1][0].text", "map": "$.map[0].value"}


def value_of(broken: tuple[str, ...]) -> bytes:
    """Return a value with all fields. The fields in `broken` have broken bytes."""
    return b"".join(bad if name in broken else good for name, (_, good, bad, _) in FIELDS.items())


@pytest.fixture
def all_fields() -> AvroDecoder:
    """Return a decoder of all fields. The decoder's programs stop at a value that they cannot read."""
    return avro(record(**{name: of for name, (of, _, _, _) in FIELDS.items()}))


def test_each_fault_is_named_with_its_place(all_fields: AvroDecoder) -> None:
    _, _, dead = decoded(all_fields, [value_of((name,)) for name in FIELDS])
    assert [each["row"] for each in dead] == list(range(len(FIELDS)))
    for letter, (name, (_, _, _, detail)) in zip(dead, FIELDS.items(), strict=True):
        assert letter["place"] == PLACES.get(name, f"$.{name}")
        assert detail in letter["detail"]


def test_of_two_faults_in_a_value_the_first_is_named_by_both_paths(all_fields: AvroDecoder) -> None:
    pairs = list(itertools.combinations(FIELDS, 2))
    _, _, dead = decoded(all_fields, [value_of(pair) for pair in pairs])
    assert [each["place"] for each in dead] == [PLACES.get(first, f"$.{first}") for first, _ in pairs]


def test_a_cut_at_any_byte_and_bytes_behind_are_judged_alike(all_fields: AvroDecoder) -> None:
    whole = value_of(())
    rows, _, dead = decoded(all_fields, [*(whole[:size] for size in range(len(whole))), whole, whole + b"\x00"])
    assert [each["row"] for each in dead] == [*range(len(whole)), len(whole) + 1]
    assert rows[len(whole)]["text"] == "A"
    assert dead[-1] | {"row": 0} == {
        "row": 0,
        "reason": "malformed",
        "place": None,
        "detail": f"1 bytes follow the datum, which ends at byte {len(whole)}",
    }


def test_no_value_is_read_a_second_time_where_the_part_at_fault_is_dead(
    all_fields: AvroDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [value_of((name,)) for name in FIELDS] + [value_of(())[:-1], value_of(()) + b"\x00", value_of(())]
    expected = all_fields.decode_exactly(pa.array(values, pa.binary()))
    monkeypatch.setattr(exact, "read", _never)
    found = all_fields.decode(pa.array(values, pa.binary()))
    assert found.dead.to_pylist() == expected.dead.to_pylist()
    assert found.columns.to_pylist() == expected.columns.to_pylist()


def _never(*_: object) -> None:
    raise AssertionError("a value was read by the exact path as a whole")


def test_what_the_kernel_leaves_and_the_exact_path_reads_stands_between_dead_values() -> None:
    numbers = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}
    writer = record(a=["int", "long"], price=numbers, b="string")
    of = avro(record(a="double", price=numbers, b="string"), writer)
    long_zero = b"\x28" + b"\x00" * 19 + b"\x07"  # a decimal of 20 bytes; the kernel reads at most 16
    text = b"\x02A"
    values = [
        b"\x02\x06" + b"\x02\x01" + b"\x02\xff",  # another branch, then invalid text
        b"\x00\x02" + b"\x02\x01" + b"\x02\xff",
        b"\x02\x06" + b"\x02\x01" + text,  # another branch
        b"\x00\x02" + long_zero + text,
        b"\x00\x02" + long_zero + b"\x04A",
        b"\x00\x02" + b"\x02\x01" + text,
    ]
    rows, _, dead = decoded(of, values)
    assert [(each["row"], each["place"]) for each in dead] == [(0, "$.b"), (1, "$.b"), (4, "$.b")]
    assert [rows[row]["a"] for row in (2, 3, 5)] == [3.0, 1.0, 1.0]
    assert int(rows[3]["price"]) == 7


def test_fields_that_the_reader_lacks_are_named_as_they_were_written() -> None:
    writer = record(dropped={"type": "array", "items": "string"}, variant=["int", "string"], a="int")
    _, _, dead = decoded(
        avro(record(a="int"), writer),
        [b"\x02\x02\xff\x00" + b"\x00\x02\x02", b"\x00" + b"\x02\x02\xff\x02", b"\x00\x06\x02", b"\x00\x00\x02"],
    )
    assert [(each["row"], each["place"]) for each in dead] == [
        (0, "$.dropped[0]"),
        (1, "$.variant"),
        (2, "$.variant"),
        (3, "$.a"),
    ]


def test_a_value_that_is_too_large_is_judged_without_being_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    of = avro(record(a="string"), max_bytes=10)
    monkeypatch.setattr(exact, "fault_at", _never)
    found = of.decode(pa.array([written(record(a="string"), {"a": "x" * 20})], pa.binary()))
    assert found.dead.to_pylist() == [
        {"row": 0, "reason": "too_large", "place": None, "detail": "21 bytes, but max_bytes is 10"}
    ]
