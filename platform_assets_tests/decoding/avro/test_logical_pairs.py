"""Every plain and logical type that a writer can use, combined with every type that can be declared for a column."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets_tests.support.avro_data import avro, decoded, record, written

DEAD: Final = "a dead letter"
REFUSED: Final = "a schema that is refused"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LOGICAL: Final[dict[str, list[str]]] = {
    "int": ["date", "time-millis"],
    "long": [
        "time-micros", "timestamp-millis", "timestamp-micros", "timestamp-nanos", "local-timestamp-millis",
        "local-timestamp-micros", "local-timestamp-nanos",
    ],
    "string": ["uuid"],
    "bytes": ["decimal", "big-decimal"],
    "fixed": ["decimal", "duration"],
}  # fmt: skip
PLAIN: Final = ["boolean", "int", "long", "float", "double", "string", "bytes", "fixed"]
PROMOTED: Final[dict[str, list[str]]] = {
    "int": ["long", "float", "double"],
    "long": ["float", "double"],
    "float": ["double"],
    "string": ["bytes"],
    "bytes": ["string"],
}
NANOSECONDS: Final = {"timestamp-millis": 1_000_000, "timestamp-micros": 1_000, "timestamp-nanos": 1}
WITHOUT_COLUMN: Final = ("local-timestamp-millis", "local-timestamp-micros")
VALUES: Final[dict[str, list[Any]]] = {
    "boolean": [True],
    "int": [0, 5, -1, 19_782],
    "long": [0, 5, -1, 1_700_000_000_123, -1_000],
    "float": [0.5],
    "double": [-0.25],
    "string": ["ab"],
    "bytes": [b"\x01\x02"],
    "fixed": [b"\0" * 10 + b"\x01\x02"],
}


@dataclass(frozen=True)
class Kind:
    """A plain type and its logical type."""

    plain: str
    logical: str | None

    def schema(self) -> Any:
        """Return the Avro schema."""
        base: dict[str, Any] = {"type": self.plain}
        if self.plain == "fixed":
            base |= {"name": "F", "size": 12}
        if self.logical is not None:
            base |= {"logicalType": self.logical}
        return base | ({"precision": 9, "scale": 2} if self.logical == "decimal" else {})

    def values(self) -> list[Any]:
        """Return some values as encoded bytes."""
        more = [1_700_000_000_123_456_000, 1_700_000_000_123_456_001] if self.logical == "timestamp-nanos" else []
        return VALUES[self.plain] + more

    def __str__(self) -> str:
        return f"{self.plain}-{self.logical}" if self.logical else self.plain


KINDS: Final = [Kind(plain, None) for plain in PLAIN] + [
    Kind(plain, logical) for plain, names in LOGICAL.items() for logical in names
]


def is_readable(writer: Kind, reader: Kind) -> bool:
    """Return True if Avro's promotions allow this pair and the logical types do not contradict each other."""
    if reader.plain != writer.plain and reader.plain not in PROMOTED.get(writer.plain, []):
        return False
    if reader.plain != writer.plain and {writer.plain, reader.plain} == {"bytes", "string"}:
        return {writer.logical, reader.logical} <= {None, "uuid"}
    if writer.logical is None or reader.logical is None or writer.logical == reader.logical:
        return True
    return writer.logical in NANOSECONDS and reader.logical in ("timestamp-millis", "timestamp-micros")


def expected(value: Any, writer: Kind, reader: Kind) -> Any:
    """Return the value that is expected in a column of type `reader` for a readable value written as `writer`."""
    if reader.logical in ("timestamp-millis", "timestamp-micros"):
        unit = NANOSECONDS[writer.logical or reader.logical]
        micros, rest = divmod(value * unit, 1_000)
        return DEAD if rest else EPOCH + timedelta(microseconds=micros)
    if reader.logical == "date":
        return date(1970, 1, 1) + timedelta(days=value)
    if reader.logical == "decimal":
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-2)
    if reader.plain == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if reader.plain == "double":
        return float(value)
    if reader.plain == "bytes" and isinstance(value, str):
        return value.encode()
    return value.decode() if reader.plain == "string" and isinstance(value, bytes) else value


def found(writer: Kind, reader: Kind) -> list[Any]:
    """Return the result for each value. Both paths must give the same results."""
    plain = record(a=Kind(writer.plain, None).schema())
    try:
        of = avro(record(a=reader.schema()), record(a=writer.schema()))
    except ConfigurationError:
        return [REFUSED] * len(writer.values())
    rows, _, dead = decoded(of, [written(plain, {"a": value}) for value in writer.values()])
    reasons = {each["row"]: (each["reason"], each["place"]) for each in dead}
    assert set(reasons.values()) <= {("out_of_range", "$.a")}
    return [DEAD if number in reasons else row["a"] for number, row in enumerate(rows)]


@pytest.mark.parametrize("reader", [kind for kind in KINDS if kind.logical not in WITHOUT_COLUMN], ids=str)
def test_each_pair_has_the_value_that_was_meant_or_is_refused(reader: Kind) -> None:
    for writer in KINDS:
        readable = is_readable(writer, reader)
        wanted = [expected(value, writer, reader) if readable else REFUSED for value in writer.values()]
        assert found(writer, reader) == wanted, f"{writer} as {reader}"


def test_a_pair_that_is_refused_is_read_as_it_was_written_by_the_remedy_that_the_error_names() -> None:
    day, moment = Kind("int", "date"), Kind("long", "timestamp-millis")
    why = r"\$\.a: .* int \(date\), which does not mean the same as .* declare int without a logical type"
    with pytest.raises(ConfigurationError, match=why):
        avro(record(a=moment.schema()), record(a=day.schema()))
    rows, _, dead = decoded(avro(record(a="int"), record(a=day.schema())), [written(record(a="int"), {"a": 19_782})])
    assert (rows, dead) == ([{"a": 19_782}], [])
