"""Malicious values become dead letters, and the cost of decoding each value is proportional to its size."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets_tests.support.avro_data import avro, decoded, record, written

LARGEST = bytes([0xFE, *[0xFF] * 8, 0x01])
LEAST = bytes([0xFF, *[0xFF] * 8, 0x01])


@pytest.mark.parametrize(
    "count", [LARGEST, LEAST + b"\x00", LEAST + LARGEST, b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x80" * 30]
)
@pytest.mark.parametrize(
    "kind", ["int", "string", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}], ids=str
)
def test_counts_and_sizes_that_lie_allocate_nothing(kind: Any, count: bytes) -> None:
    of = avro(record(a={"type": "array", "items": kind}, b="bytes"))
    decoded(of, [b"\x00\x00"])
    tracemalloc.start()
    _, _, dead = decoded(of, [count, b"\x02" + count, b"\x00" + count, count + b"\x00" * 20])
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [each["reason"] for each in dead] == ["malformed"] * 4
    assert used < 4 << 20


def test_items_without_bytes_that_the_reader_lacks_cost_nothing() -> None:
    nothing = {"type": "record", "name": "Nothing", "fields": [{"name": "n", "type": "null"}]}
    writer = record(a="int", bombs={"type": "array", "items": nothing})
    began = time.monotonic()
    rows, rescued, dead = decoded(
        avro(record(a="int"), writer), [b"\x02" + LARGEST + b"\x00", b"\x02" + LEAST + b"\x00\x00"]
    )
    assert rows == [{"a": 1}, {"a": 1}]
    assert (rescued, dead) == ([None, None], [])
    assert time.monotonic() - began < 60  # counted one by one, it would take years


@pytest.mark.parametrize("item", ["null", {"type": "fixed", "name": "F", "size": 0}], ids=str)
def test_items_without_bytes_are_no_column(item: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"null|take no bytes"):
        avro(record(a={"type": "array", "items": item}))


def test_a_schema_that_doubles_with_each_name_is_refused_at_once() -> None:
    schema: Any = "int"
    for level in range(60):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": "int" if level == 0 else f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(ConfigurationError, match="more than 10000 parts"):
        avro(schema)
    with pytest.raises(ConfigurationError, match="more than 10000 parts"):
        avro(record(z=("int", 0)), {"type": "record", "name": "R", "fields": [{"name": "big", "type": schema}]})


def test_schemas_too_deep_are_refused() -> None:
    schema: Any = "int"
    for _ in range(101):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ConfigurationError, match="more than 100 types nested in one another"):
        avro(schema)
    text = '{"type":"array","items":' * 100_000
    with pytest.raises(ConfigurationError, match="is not a valid Avro schema"):
        avro(text)


def test_a_value_that_is_too_large_is_not_read() -> None:
    schema = record(a="string")
    _, _, dead = decoded(
        avro(schema, max_bytes=100), [written(schema, {"a": "x" * 90}), written(schema, {"a": "x" * 100})]
    )
    assert [(each["row"], each["reason"], each["detail"]) for each in dead] == [
        (1, "too_large", "102 bytes, but max_bytes is 100")
    ]


def test_a_list_grows_far_beyond_its_first_room() -> None:
    schema = record(a={"type": "array", "items": ["null", "string"]}, b={"type": "array", "items": "long"})
    value = {"a": ["x", None, "yz"] * 20_000, "b": list(range(50_000))}
    rows, _, dead = decoded(
        avro(schema), [written(schema, {"a": [], "b": [1]}), written(schema, value), written(schema, value)[:-5]]
    )
    assert rows[:2] == [{"a": [], "b": [1]}, value]
    assert [each["row"] for each in dead] == [2]
