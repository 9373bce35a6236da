"""Limits of the kernels' accumulators: for each limit, the last value that fits and the first value that does not fit."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.json.decoder import JsonDecoder
from platform_assets.decoding.json.fast import find
from platform_assets.kernels import arrow, conversion, hashing, json_scalars, json_times, records
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support.avro_data import avro, decoded, record

TWO_64: Final = 1 << 64
MILLIS: Final = {"type": "long", "logicalType": "timestamp-millis"}
DECIMAL: Final = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}


def padded(text: str) -> tuple[Any, int, int]:
    """Return a string in the form that the JSON kernels need."""
    return np.frombuffer(text.encode() + bytes(json_scalars.PADDING), np.uint8), 0, len(text)


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (str(1 << 53), True),
        (str((1 << 53) + 1), False),
        ("1" + "0" * 15, True),
        *[(f"{times * TWO_64}", False) for times in range(1, 6)],
        *[(f"1.{digits}", False) for digits in ("8446744073709551616", "84467440737095516160000")],
        ("0." + "0" * 22, True),
        ("0." + "0" * 21 + "1", True),
        ("0." + "0" * 22 + "1", False),
        ("1e22", True),
        ("1e23", False),
        ("1e-22", True),
        ("1e-23", False),
        ("0e99999999999999999999999", True),
        ("1e1099511627776", False),
        ("1e99999999999999999999999", False),
        ("1e-99999999999999999999999", False),
    ],
)
def test_doubles_that_are_read_are_those_that_two_exact_ones_give(text: str, is_read: bool) -> None:
    real, end, later = json_scalars.read_real(*padded(text))
    assert (end, later) == (len(text), json_scalars.READ if is_read else json_scalars.LATER)
    assert not is_read or real == float(text)


@pytest.mark.parametrize(
    ("text", "scale", "expected"),
    [
        (str((1 << 63) - 1), 0, (1 << 63) - 1),
        (str(1 - (1 << 63)), 0, 1 - (1 << 63)),
        *[(str(number), 0, None) for number in (1 << 63, -(1 << 63), TWO_64 - 1, 10**19 - 1, 10**19)],
        *[(str(times * TWO_64 + near), 0, None) for times in range(1, 6) for near in (-1, 0, 1)],
        ("9223372036854.775807", 6, (1 << 63) - 1),
        ("9223372036854.775808", 6, None),
        ("18446744073709.551616", 6, None),
        ("1.8446744073709551616", 19, None),
        ("9.223372036854775807", 18, (1 << 63) - 1),
        ("9", 18, 9 * 10**18),
        ("10", 18, None),
        ("0.0000000000000000000", 38, None),
        ("0", 38, 0),
    ],
)
def test_whole_numbers_that_are_read_have_64_bits(text: str, scale: int, expected: int | None) -> None:
    schema = f"a DECIMAL(38,{scale})"
    of = decoder_of(FormatSpec("json", {"schema": schema}))
    assert isinstance(of, JsonDecoder)
    found = find(pa.array([b'{"a":%b}' % text.encode()], pa.binary()), of.dialect)
    assert found.undecided.tolist() == [expected is None]
    if expected is not None:
        assert int(found.columns[0][0].as_py().scaleb(scale)) == expected


def test_fractions_of_seconds_have_six_digits() -> None:
    for text, expected in (
        ("1970-01-01T00:00:00.999999Z", 999_999),
        ("1970-01-01T00:00:00.999999000000000000000000000Z", 999_999),
        ("9999-12-31T23:59:59.999999Z", conversion.LAST_TIME),
        ("0001-01-01T00:00:00Z", conversion.FIRST_TIME),
    ):
        assert json_times.read_instant(*padded(text), 0) == (expected, len(text))
    assert json_times.read_instant(*padded("1970-01-01T00:00:00.9999991Z"), 0)[1] == json_scalars.BAD


def test_integers_of_text_have_18_digits() -> None:
    texts = ["9" * 18, "-" + "9" * 18, "+" + "9" * 18, "1" + "0" * 18, str(TWO_64), "0" * 19, "", "-"]
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    sizes = np.array([len(text) for text in texts], np.int32)
    starts = (np.cumsum(sizes) - sizes).astype(np.int32)
    values, undecided = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.uint8)
    conversion.integers(data, starts, sizes, -(1 << 63), (1 << 63) - 1, values, undecided)
    assert undecided.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert values[:3].tolist() == [10**18 - 1, 1 - 10**18, 10**18 - 1]


@pytest.mark.parametrize(
    ("kind", "datum", "expected"),
    [
        ("long", b"\xfe" + b"\xff" * 8 + b"\x01", (1 << 63) - 1),
        ("long", b"\xff" * 9 + b"\x01", -(1 << 63)),
        ("long", b"\xff" * 9 + b"\x02", None),
        ("long", b"\x80" * 9 + b"\x02", None),
        ("long", b"\x80" * 10 + b"\x01", None),
        ("int", b"\xfe\xff\xff\xff\x0f", (1 << 31) - 1),
        ("int", b"\x80\x80\x80\x80\x10", None),
        (DECIMAL, b"\x20" + (10**38 - 1).to_bytes(16, "big"), 10**38 - 1),
        (DECIMAL, b"\x20" + (10**38).to_bytes(16, "big"), None),
        (DECIMAL, b"\x20" + (1 - 10**38).to_bytes(16, "big", signed=True), 1 - 10**38),
        (DECIMAL, b"\x20" + (-(10**38)).to_bytes(16, "big", signed=True), None),
        (DECIMAL, b"\x20\x80" + bytes(15), None),
    ],
    ids=str,
)
def test_numbers_of_avro_have_the_bits_of_their_type(kind: Any, datum: bytes, expected: int | None) -> None:
    rows, _, dead = decoded(avro(record(a=kind)), [datum])
    assert rows == [{"a": expected}]
    assert len(dead) == (expected is None)


@pytest.mark.parametrize("sign", [1, -1])
def test_milliseconds_of_avro_that_64_bits_hold_as_microseconds(sign: int) -> None:
    most = sign * 9_223_372_036_854_775
    of = avro(record(a=MILLIS))
    values = [zigzag(most), zigzag(most + sign), zigzag(sign * (1 << 62))]
    found = of.decode(pa.array(values, pa.binary()))
    assert found.columns["a"].cast(pa.int64()).to_pylist() == [most * 1_000, None, None]
    assert found.dead["reason"].to_pylist() == ["out_of_range"] * 2


def zigzag(number: int) -> bytes:
    """Return a varint in the encoding that Avro and Kafka use."""
    rest, found = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def found_records(body: bytes, *, base: int = 0, last: int = 0) -> tuple[int, int, int]:
    """Return the result of `find_records` for a batch with one record."""
    one = [np.array([number], np.int64) for number in (0, len(body), 1, base, last, 0, 0, 0)]
    longs, ints = np.zeros((2, 4), np.int64), np.zeros((7, 4), np.int32)
    data = np.frombuffer(body, np.uint8)
    find: Any = records.find_records
    count, wrong, where = find(data, *one, 0, (1 << 63) - 1, 1 << 30, *longs, *ints)
    return count, wrong, where


@pytest.mark.parametrize("headers", [1 << 62, (1 << 62) + 1, (1 << 63) - 1, 2, 1, -1])
def test_a_count_of_headers_that_the_record_has_no_room_for(headers: int) -> None:
    inside = b"\0" + zigzag(0) + zigzag(0) + zigzag(-1) + zigzag(-1) + zigzag(headers)
    assert found_records(zigzag(len(inside)) + inside)[:2] == (0, records.CONTRADICTION)


@pytest.mark.parametrize("delta", [(1 << 63) - 1, -(1 << 63), 1, -1])
def test_an_offset_that_its_batch_does_not_hold(delta: int) -> None:
    inside = b"\0" + zigzag(0) + zigzag(delta) + zigzag(-1) + zigzag(-1) + zigzag(0)
    end = (1 << 63) - 2
    assert found_records(zigzag(len(inside)) + inside, base=end, last=end)[:2] == (0, records.CONTRADICTION)


@pytest.mark.parametrize("size", [(1 << 63) - 1, -(1 << 63), 1 << 62])
def test_a_record_of_a_size_that_its_batch_does_not_have(size: int) -> None:
    assert found_records(zigzag(size) + bytes(9))[:2] == (0, records.CUT_OFF)


def test_sums_of_hashes_hold_two_to_the_32_rows() -> None:
    most = (1 << 32) - 1
    sums = np.full(2, most * most, np.uint64)  # as many rows with the largest possible hash
    hashing.add_halves(np.array([TWO_64 - 1], np.uint64), sums, np.int64(0))
    assert sums.tolist() == [most * (1 << 32)] * 2


def test_sums_of_sizes_have_64_bits() -> None:
    sizes = np.full(8, (1 << 31) - 1, np.int32)
    assert arrow.total_size(sizes) == 8 * ((1 << 31) - 1)


def test_timestamps_of_kafka_that_64_bits_hold_as_microseconds() -> None:
    most = 9_223_372_036_854_775
    times = np.array([most, -most, most + 1], np.int64)
    assert arrow.to_microseconds(times) == 2
    assert times[:2].tolist() == [most * 1_000, -most * 1_000]
