"""Comparison of decoded numbers and times with the results of readers that share no code with the decoders. Tests
compare some values, and `make soak SCENARIO=decoders` compares as many values as it can in the given time."""

from __future__ import annotations

import base64
import csv
import io
import json
import math
import random
import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any, Final

import fastavro

from platform_assets.decoding.formats import decoder_of
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support import near_powers
from platform_assets_tests.support.avro_data import avro, record, written
from platform_assets_tests.support.avro_data import decoded as avro_decoded
from platform_assets_tests.support.decoding import decoded
from platform_assets_tests.support.proto_data import proto

DEAD: Final = object()
"""Stands for a value that does not fit in any column."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def whole(bits: int, places: int = 0) -> Callable[[str], Any]:
    """Return a reader that multiplies a number by 10 to the power of `places`. The result is DEAD unless it is a whole
    number of at most `bits` bits."""

    def read(text: str) -> Any:
        number = Fraction(text) * 10**places
        fits = number.denominator == 1 and -(1 << (bits - 1)) <= number < 1 << (bits - 1)
        return int(number) if fits else DEAD

    return read


def digits(precision: int, scale: int) -> Callable[[str], Any]:
    """Return a reader that returns a number if it fits in a decimal of this precision and scale, and otherwise DEAD."""

    def read(text: str) -> Any:
        number = Fraction(text) * 10**scale
        return Decimal(text) if number.denominator == 1 and abs(number) < 10**precision else DEAD

    return read


def double(text: str) -> Any:
    """Return the double nearest to the number."""
    number = json.loads(text, parse_int=float)
    return DEAD if math.isinf(number) else number


def single(text: str) -> Any:
    """Round the number to the nearest double, and return the float nearest to that double."""
    try:
        return struct.unpack("<f", struct.pack("<f", double(text)))[0]
    except (OverflowError, struct.error):
        return DEAD


def instant(places: int) -> Callable[[str], Any]:
    """Return a reader that moves the decimal point of a number by `places`, and returns the time that is the resulting
    number of microseconds after 1970."""

    def read(text: str) -> Any:
        micros = whole(64, places)(text)
        try:
            return DEAD if micros is DEAD else EPOCH + timedelta(microseconds=micros)
        except OverflowError:
            return DEAD

    return read


COLUMNS: Final[dict[str, Callable[[str], Any]]] = {
    "DOUBLE": double,
    "FLOAT": single,
    "INT": whole(32),
    "BIGINT": whole(64),
    "DECIMAL(38,0)": digits(38, 0),
    "DECIMAL(38,18)": digits(38, 18),
    "DECIMAL(20,2)": digits(20, 2),
}
TIMESTAMPS: Final = {"seconds": 6, "milliseconds": 3, "microseconds": 0}


def numbers(rng: random.Random) -> list[str]:
    return [text for number in near_powers.wholes(rng, 250) for text in near_powers.texts(rng, number)]


def hold(options: dict[str, Any], format_name: str, values: Sequence[bytes], expected: Sequence[Any]) -> int:
    """Check that both paths give the values in `expected`, or a dead letter if the expected value is DEAD. Return the
    number of values compared."""
    found = decoded(decoder_of(FormatSpec(format_name, options)), values)
    dead = set(found.dead["row"].to_pylist())
    for row, (value, mine, theirs) in enumerate(
        zip(values, found.columns.column(0).to_pylist(), expected, strict=True)
    ):
        assert (row in dead) == (theirs is DEAD), value
        if row not in dead:
            assert mine == theirs, value
            if isinstance(mine, float):
                assert math.copysign(1, mine) == math.copysign(1, theirs), value
    return len(values)


def numbers_of_json(column: str, rng: random.Random) -> int:
    """Compare numbers near powers in a JSON column of this type."""
    texts = numbers(rng)
    return hold(
        {"schema": f"a {column}"},
        "json",
        [b'{"a":%b}' % text.encode() for text in texts],
        [*map(COLUMNS[column], texts)],
    )


def timestamps_of_json(unit: str, rng: random.Random) -> int:
    """Compare numbers near powers as timestamps in JSON."""
    texts = numbers(rng)
    values = [b'{"a":%b}' % text.encode() for text in texts]
    return hold({"schema": "a TIMESTAMP", "timestamps": unit}, "json", values, [*map(instant(TIMESTAMPS[unit]), texts)])


def doubles_that_wrap(rng: random.Random) -> int:
    """Compare numbers at which a 64-bit accumulator wraps around to 0."""
    texts = [f"{times << 64}{tail}" for times in range(1, 6) for tail in ("", ".0", ".000000", "e0", "e-5")]
    texts += [f"{text[:1]}.{text[1:]}" for text in texts[::5]] + [f"0.000{text}00" for text in texts[::5]]
    rng.shuffle(texts)
    values = [b'{"a":%b}' % text.encode() for text in texts]
    return sum(
        hold({"schema": f"a {column}"}, "json", values, [*map(COLUMNS[column], texts)])
        for column in ("DOUBLE", "FLOAT")
    )


def digits_alone(bits: int) -> Callable[[str], Any]:
    """Return the whole number in a string without decimal point and exponent."""
    return lambda text: whole(bits)(text) if text.lstrip("-").isdigit() else DEAD


CSV_COLUMNS: Final = {
    **COLUMNS,
    **{name: digits_alone(bits) for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INT", 32), ("BIGINT", 64))},
}


def numbers_of_csv(column: str, rng: random.Random) -> int:
    """Compare numbers near powers in a column of that type."""
    texts = [field for (field,) in csv.reader([f'"{text}"' if rng.random() < 0.5 else text for text in numbers(rng)])]
    return hold({"schema": f"a {column}"}, "csv", [text.encode() for text in texts], [*map(CSV_COLUMNS[column], texts)])


def moments(rng: random.Random) -> list[str]:
    """Return times in the years 1 to 9999, mostly near month ends, with and without fractions and offsets."""
    found = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"]
    for _ in range(3_000):
        first = datetime(rng.randint(1, 9999), rng.randint(1, 12), 1, tzinfo=UTC)
        try:
            moment = first + timedelta(microseconds=rng.choice((-1, 0, rng.randint(0, 10**13))))
            zone = timezone(timedelta(minutes=rng.choice((0, 0, 330, -719, 1439, -1439))))
            found.append(moment.astimezone(zone).isoformat())
        except OverflowError:
            continue
    return found


def day(text: str) -> date:
    """Return the day with which a string begins."""
    return date.fromisoformat(text[:10])


def times_of_text(format_name: str, rng: random.Random) -> int:
    """Compare days and instants."""
    texts = moments(rng)
    form = '{"a":"%s"}' if format_name == "json" else "%s"
    instants = [datetime.fromisoformat(text).astimezone(UTC) for text in texts]
    judged = hold({"schema": "a TIMESTAMP"}, format_name, [(form % text).encode() for text in texts], instants)
    days = [text[:10] for text in texts]
    return judged + hold(
        {"schema": "a DATE"}, format_name, [(form % text).encode() for text in days], [*map(day, days)]
    )


def avro_hold(kind: Any, given: Sequence[Any]) -> int:
    """Check that fastavro reads back the values that it wrote. Return the number of values compared."""
    schema = record(before="long", a=kind, after="string")
    written_values = [written(schema, {"before": -1, "a": each, "after": "x"}) for each in given]
    parsed = fastavro.parse_schema(schema)
    theirs: list[Any] = [fastavro.schemaless_reader(io.BytesIO(each), parsed, None) for each in written_values]
    rows, rescued, dead = avro_decoded(avro(schema), written_values)
    assert (rows, rescued, dead) == (theirs, [None] * len(theirs), [])
    return len(given)


def whole_numbers_of_avro(kind: str, bits: int, rng: random.Random) -> int:
    """Compare values of the types int and long."""
    return avro_hold(
        kind, [each for each in near_powers.wholes(rng, 1_000) if -(1 << (bits - 1)) <= each < 1 << (bits - 1)]
    )


def reals_of_avro(kind: str, rng: random.Random) -> int:
    """Compare values of the types float and double."""
    reals = [each for each in map(COLUMNS[kind.upper()], numbers(rng)) if each is not DEAD]
    return avro_hold(kind, [*reals, math.inf, -math.inf, 5e-324 if kind == "double" else 1e-45])


def decimals_of_avro(of: dict[str, Any], scale: int, rng: random.Random) -> int:
    """Compare decimals stored as bytes and as fixed."""
    units = [each for each in near_powers.wholes(rng, 1_000) if abs(each) < 10**38]
    decimals = [Decimal((int(each < 0), tuple(map(int, str(abs(each)))), -scale)) for each in units]
    return avro_hold({**of, "logicalType": "decimal", "precision": 38, "scale": scale}, decimals)


def timestamps_of_avro(unit: str, step: int, rng: random.Random) -> int:
    """Compare timestamps in milliseconds and microseconds."""
    found = [instant(0)(str(each * step)) for each in near_powers.wholes(rng, 1_000)]
    return avro_hold({"type": "long", "logicalType": f"timestamp-{unit}"}, [each for each in found if each is not DEAD])


def base_128(number: int) -> bytes:
    """Return a Protobuf varint."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def fits(number: int, bits: int, *, signed: bool) -> bool:
    """Return True if the number fits in `bits` bits."""
    return -(1 << (bits - 1)) <= number < 1 << (bits - 1) if signed else 0 <= number < 1 << bits


PROTOBUF_KINDS: Final[dict[str, tuple[int, bool, int, Callable[[int], bytes]]]] = {
    "int32": (32, True, 0, lambda number: base_128(number % (1 << 64))),
    "int64": (64, True, 0, lambda number: base_128(number % (1 << 64))),
    "uint32": (32, False, 0, base_128),
    "uint64": (64, False, 0, base_128),
    "sint32": (32, True, 0, lambda number: base_128(2 * number if number >= 0 else -2 * number - 1)),
    "sint64": (64, True, 0, lambda number: base_128(2 * number if number >= 0 else -2 * number - 1)),
    "fixed32": (32, False, 5, lambda number: number.to_bytes(4, "little")),
    "fixed64": (64, False, 1, lambda number: number.to_bytes(8, "little")),
    "sfixed32": (32, True, 5, lambda number: number.to_bytes(4, "little", signed=True)),
    "sfixed64": (64, True, 1, lambda number: number.to_bytes(8, "little", signed=True)),
}


def whole_numbers_of_protobuf(rng: random.Random) -> int:
    """Compare whole numbers. The decoder uses the Protobuf library, so this function builds the bytes according to the
    specification."""
    candidates = near_powers.wholes(rng, 1_000)
    fields = " ".join(f"{kind} {kind}_ = {number};" for number, kind in enumerate(PROTOBUF_KINDS, 1))
    content = descriptor_set(proto(f"message All {{ {fields} }}"), {})
    of = decoder_of(
        FormatSpec("protobuf", {"descriptor_set": base64.b64encode(content).decode(), "message": "shop.All"})
    )
    columns = {
        kind: [each for each in candidates if fits(each, bits, signed=signed)]
        for kind, (bits, signed, _, _) in PROTOBUF_KINDS.items()
    }
    rows = [{kind: rng.choice(column) for kind, column in columns.items()} for _ in range(2_000)]
    values = [
        b"".join(
            base_128(number << 3 | wire) + encode(row[kind])
            for number, (kind, (_, _, wire, encode)) in enumerate(PROTOBUF_KINDS.items(), 1)
        )
        for row in rows
    ]
    found = decoded(of, values)
    assert found.columns.to_pylist() == [{f"{kind}_": each for kind, each in row.items()} for row in rows]
    assert found.dead.num_rows == 0
    return len(values)


JUDGES: Final[dict[str, Callable[[random.Random], int]]] = {
    **{f"json {column}": partial(numbers_of_json, column) for column in COLUMNS},
    **{f"json TIMESTAMP, {unit}": partial(timestamps_of_json, unit) for unit in TIMESTAMPS},
    "json, multiples of 2^64": doubles_that_wrap,
    **{f"csv {column}": partial(numbers_of_csv, column) for column in CSV_COLUMNS},
    **{f"{name} times": partial(times_of_text, name) for name in ("json", "csv")},
    **{f"avro {kind}": partial(whole_numbers_of_avro, kind, bits) for kind, bits in (("int", 32), ("long", 64))},
    **{f"avro {kind}": partial(reals_of_avro, kind) for kind in ("float", "double")},
    **{
        f"avro decimal, {of['type']}, {scale}": partial(decimals_of_avro, of, scale)
        for of in ({"type": "bytes"}, {"type": "fixed", "name": "F", "size": 16})
        for scale in (0, 5, 38)
    },
    **{
        f"avro timestamp-{unit}": partial(timestamps_of_avro, unit, step)
        for unit, step in (("millis", 1_000), ("micros", 1))
    },
    "protobuf whole numbers": whole_numbers_of_protobuf,
}
"""Functions that compare random values. Each returns the number of values compared, and raises AssertionError for a
wrong value."""
