"""Column values for Python, whose datetime type does not go beyond the year 9999."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from platform_assets.lake.parquet import python_values

FAR = 1 << 60
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
UTC_TIMES = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, None]), [1, None]),
        (pa.array([FIRST, LAST, None], UTC_TIMES), [FIRST, LAST, None]),
        (pa.array([FAR, 0, None, -FAR], pa.int64()).cast(UTC_TIMES), [FAR, datetime(1970, 1, 1, tzinfo=UTC), None, -FAR]),
        (pa.array([20_260_101, -719_162, 2_932_896, 2_932_897], pa.int32()).cast(pa.date32()),
         [20_260_101, date(1, 1, 1), date(9999, 12, 31), 2_932_897]),
        (pa.array([{"at": FAR, "n": 1}, None], pa.struct([("at", pa.int64()), ("n", pa.int32())])).cast(
            pa.struct([("at", UTC_TIMES), ("n", pa.int32())])), [{"at": FAR, "n": 1}, None]),
        (pa.array([[0], [FAR], None, []], pa.list_(pa.int64())).cast(pa.list_(UTC_TIMES)), [[0], [FAR], None, []]),
        (pa.array([[LAST]], pa.list_(UTC_TIMES)), [[LAST]]),
    ],
)  # fmt: skip
def test_times_that_python_has_not_are_numbers(column: Any, expected: list[Any]) -> None:
    assert python_values(column) == expected
    assert python_values(column.slice(1)) == expected[1:]


def test_texts_that_are_not_utf8_are_bytes_at_any_depth() -> None:
    texts = pa.array([b"a\xff", b"b", None], pa.binary())
    wrong = pa.Array.from_buffers(pa.string(), 3, texts.buffers())
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), wrong)
    structs = pa.StructArray.from_arrays([wrong, pa.array([b"c", b"d", None])], ["text", "bytes"])
    maps = pa.MapArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), pa.array(["x", "y", "z"]), wrong)
    assert python_values(wrong) == [b"a\xff", "b", None]
    assert python_values(lists) == [[b"a\xff", "b"], [], [None]]
    assert python_values(structs) == [
        {"text": b"a\xff", "bytes": b"c"}, {"text": "b", "bytes": b"d"}, {"text": None, "bytes": None},
    ]  # fmt: skip
    assert python_values(maps) == [[("x", b"a\xff"), ("y", "b")], [], [("z", None)]]
