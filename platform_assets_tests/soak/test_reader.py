"""The reader distinguishes incomplete windows and windows with duplicates from complete windows, and remembers states
that no longer exist."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from platform_assets_tests.soak.reader import Reader, Sight
from testbed.loads import wait_until

COLUMNS = pa.schema([("window", pa.string()), ("kafka_partition", pa.int32()), ("kafka_offset", pa.int64())])


def rows(window: str, *offsets: int) -> pa.Table:
    return pa.Table.from_pylist(
        [{"window": window, "kafka_partition": 0, "kafka_offset": offset} for offset in offsets], COLUMNS
    )


def test_a_partial_and_a_doubled_window_are_seen_although_they_were_mended(tmp_path: Path) -> None:
    with Reader(tmp_path).reading() as reader:
        for number, written in enumerate((rows("a", 0), rows("a", 1), rows("b", 2), rows("b", 2)), start=1):
            write_deltalake(tmp_path, written, mode="append")
            wait_until("it was seen", lambda number=number: reader.versions >= number)  # type: ignore[misc]
        DeltaTable(tmp_path).delete("window = 'b'")
        write_deltalake(tmp_path, rows("b", 2), mode="append")
        wait_until("the last one was seen", lambda: Sight("b", 1, 1) in reader.sights)
    assert reader.sights == {Sight("a", 1, 1), Sight("a", 2, 2), Sight("b", 1, 1), Sight("b", 2, 1)}
    assert reader.wrong({"a": 2, "b": 1}) == [
        "a reader saw 1 rows with 1 offsets in window a, which has 2 records",
        "a reader saw 2 rows with 1 offsets in window b, which has 1 records",
    ]
