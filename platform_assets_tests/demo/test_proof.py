"""The proof finds each kind of damage, which is introduced one kind at a time, and raises no false alarms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from platform_assets.demo.dataset import Dataset
from platform_assets.demo.proof import Exactness, compare
from platform_assets.demo.topic_log import TopicLog

ROWS = 1_000
Record = tuple[int, int, bytes | None]
Damage = Callable[[list[Record]], None]


def value(row: int) -> bytes:
    return b'{"row":%d,"flight":%d}' % (row, row % 7)


DATASET = Dataset("flights", pa.array([value(row) for row in range(ROWS)], pa.binary()), None)
# Every fifth offset is a transaction marker.
RECORDS: list[Record] = [(row % 3, row // 3 + row // 12, value(row)) for row in range(ROWS)]
LOG = TopicLog(
    "flights",
    np.array([p for p, _, _ in RECORDS], dtype=np.int32),
    np.array([o for _, o, _ in RECORDS], dtype=np.int64),
    np.arange(ROWS, dtype=np.int64),
)


def check(folder: Path, records: list[Record], log: TopicLog = LOG) -> Exactness:
    """Write the records to a raw table in several files, and compare the table."""
    for part in range(4):
        rows = records[part::4]
        columns = {
            "kafka_partition": pa.array([p for p, _, _ in rows], pa.int32()),
            "kafka_offset": pa.array([o for _, o, _ in rows], pa.int64()),
            "value": pa.array([v for _, _, v in rows], pa.binary()),
            "window": pa.array(["2013-01-01-00:00"] * len(rows)),
        }
        write_deltalake(folder / "flights", pa.table(columns), mode="append", partition_by=["window"])
    return compare(folder / "flights", DATASET, log)


def test_an_exact_table_passes(tmp_path: Path) -> None:
    result = check(tmp_path, RECORDS)
    assert result.exact
    assert result.faults() == []
    assert result.rows == ROWS


def test_the_order_of_log_and_table_does_not_matter(tmp_path: Path) -> None:
    order = np.random.default_rng(7).permutation(ROWS)
    log = TopicLog("flights", LOG.partitions[order], LOG.offsets[order], LOG.rows[order])
    assert check(tmp_path, RECORDS[::-1], log).exact


def missing(records: list[Record]) -> None:
    del records[417]


def doubled(records: list[Record]) -> None:
    records.append(records[417])


def doubled_elsewhere(records: list[Record]) -> None:
    records.append((2, 5_000, records[417][2]))


def swapped_for_another(records: list[Record]) -> None:
    """Replace one row with a copy of another row. This leaves the counts unchanged."""
    partition, offset, _ = records[417]
    records[417] = (partition, offset, value(3))


def altered(records: list[Record]) -> None:
    partition, offset, _ = records[417]
    records[417] = (partition, offset, value(417)[:-1] + b" }")


def foreign(records: list[Record]) -> None:
    records.append((1, 5_000, b"hello"))


def null(records: list[Record]) -> None:
    partition, offset, _ = records[417]
    records[417] = (partition, offset, None)


def beyond(records: list[Record]) -> None:
    records.append((1, 5_000, value(ROWS)))


def exchanged(records: list[Record]) -> None:
    """Swap two rows. Every row and every offset still occurs once."""
    (p, o, v), (q, u, w) = records[10], records[20]
    records[10], records[20] = (p, o, w), (q, u, v)


@pytest.mark.parametrize(
    ("damage", "faults"),
    [
        (missing, ["1 rows missing: 417", "1 committed records are not in the table"]),
        (doubled, ["1 rows doubled: 417", "1 offsets are in the table more than once"]),
        (doubled_elsewhere, ["1 rows doubled: 417", "1 rows do not match any committed record of the topic"]),
        (
            swapped_for_another,
            ["1 rows missing: 417", "1 rows doubled: 3", "1 rows do not match any committed record of the topic"],
        ),
        (altered, ["1 rows altered: 417"]),
        (
            foreign,
            ["1 values do not match any row of the data", "1 rows do not match any committed record of the topic"],
        ),
        (
            null,
            [
                "1 rows missing: 417",
                "1 values do not match any row of the data",
                "1 rows do not match any committed record of the topic",
            ],
        ),
        (
            beyond,
            ["1 values do not match any row of the data", "1 rows do not match any committed record of the topic"],
        ),
        (exchanged, ["2 rows do not match any committed record of the topic"]),
    ],
)
def test_damage_is_found_and_named(tmp_path: Path, damage: Damage, faults: list[str]) -> None:
    records = list(RECORDS)
    damage(records)
    result = check(tmp_path, records)
    assert result.faults() == faults
    assert not result.exact


def test_no_table_is_a_table_without_rows(tmp_path: Path) -> None:
    result = compare(tmp_path / "nothing", DATASET, LOG)
    assert result.rows == 0
    assert result.faults() == ["1,000 rows missing: 0–999", "1,000 committed records are not in the table"]


def test_a_topic_that_lacks_rows_is_not_exact(tmp_path: Path) -> None:
    """The table agrees with the topic, but both lack a row that should have been sent."""
    log = TopicLog("flights", LOG.partitions[:900], LOG.offsets[:900], LOG.rows[:900])
    assert check(tmp_path, RECORDS[:900], log).faults() == ["100 rows missing: 900–999"]


def test_a_topic_that_holds_a_row_twice_is_not_exact(tmp_path: Path) -> None:
    log = TopicLog(
        "flights", np.append(LOG.partitions, np.int32(0)), np.append(LOG.offsets, 5_000), np.append(LOG.rows, 3)
    )
    assert check(tmp_path, [*RECORDS, (0, 5_000, value(3))], log).faults() == ["1 rows doubled: 3"]


def test_many_faults_are_named_in_ranges_and_cut_short(tmp_path: Path) -> None:
    kept = [record for row, record in enumerate(RECORDS) if row % 100 not in (7, 8)]
    assert check(tmp_path, kept).faults()[0] == "20 rows missing: 7–8, 107–108, 207–208, 307–308, 407–408 …"
