"""Comparison of two raw tables: differences are reported by partition, offsets and columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets.engines.shared.digests import measured
from platform_assets.lake import holdings, raw_table
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.windows.replay import comparing
from platform_assets.windows.replay.comparing import WindowComparison
from testbed import samples

TOPIC = "orders"
WINDOW = samples.sealed(TOPIC, "2026-01-01-00:00", p0=(0, 20), p1=(5, 9))
Change = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True)
class Tables:
    """A live lake and a replay's lake, each with one window."""

    live: Path
    fresh: Path

    def fill(self, root: Path, *changes: Change, files: int = 1, window: SealedWindow = WINDOW) -> None:
        """Load the window's rows with `changes` into `files` files."""
        made = samples.rows(window.key, {p: range(r.start, r.end) for p, r in window.ranges.items()})
        for change in changes:
            made = change(made)
        ledger = Ledger(Lake.at(root))
        ledger.create()
        path = root / "raw" / TOPIC
        raw_table.create(Folder.at(path), TOPIC)
        size = -(-made.num_rows // files)
        for start in range(0, made.num_rows, size):
            write_deltalake(path, made.slice(start, size), mode="append")
        digests = sum((measured(b) for b in made.to_batches()), Measured.of_nothing())
        entry = samples.receipt(
            window,
            {p: offsets_in(made, p) for p in window.ranges.by_partition},
            version=DeltaTable(path).version(),
            content_digest=digests.content.total,
            files_digest=holdings.files_of(Folder.at(path), window.key).digest,
        )
        ledger.record_receipts([entry])

    def compared(self, window: SealedWindow = WINDOW) -> WindowComparison:
        return comparing.compare(window, Ledger(Lake.at(self.live)), Ledger(Lake.at(self.fresh)))


def offsets_in(rows: pa.Table, partition: int) -> list[int]:
    found: list[int] = rows.filter(pc.equal(rows["kafka_partition"], partition))["kafka_offset"].to_pylist()
    return found


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    return Tables(tmp_path / "live", tmp_path / "fresh")


def with_value(offset: int, name: str, value: object, partition: int = 0) -> Change:
    """Return the rows with one value of one row changed."""

    def change(rows: pa.Table) -> pa.Table:
        at = pc.and_(pc.equal(rows["kafka_partition"], partition), pc.equal(rows["kafka_offset"], offset))
        column = rows[name]
        changed = pc.if_else(at, pa.scalar(value, column.type), column) if name != "headers" else None
        if changed is None:
            listed = [value if here else old for here, old in zip(at.to_pylist(), column.to_pylist(), strict=True)]
            changed = pa.chunked_array([pa.array(listed, column.type)])
        return rows.set_column(rows.schema.get_field_index(name), name, changed)

    return change


def without(*offsets: int) -> Change:
    return lambda rows: rows.filter(
        pc.invert(pc.and_(pc.equal(rows["kafka_partition"], 0), pc.is_in(rows["kafka_offset"], pa.array(offsets))))
    )


def shuffled(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("kafka_offset", "descending")])


def ranges(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details of a partition that are not empty, without the digests."""
    kept = {name: found[name] for name in ("only_live", "only_fresh", "repeated") if found[name]}
    return {**kept, **({"altered": found["altered"]} if found["altered"]["offsets"] else {})}


def test_the_same_rows_are_equal_however_they_lie_in_files(tables: Tables) -> None:
    tables.fill(tables.live, shuffled, files=3)
    tables.fill(tables.fresh)
    found = tables.compared()
    assert found.equal
    assert found.rows == 24
    assert [(p.partition, p.live.rows, p.live == p.fresh) for p in found.partitions] == [(0, 20, True), (1, 4, True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("value", b"0/8"),
        ("value", None),
        ("key", b""),
        ("kafka_timestamp_type", 1),
        ("kafka_timestamp", samples.START.replace(year=2025)),
        ("headers", [{"key": "a", "value": None}]),
        ("headers", []),
    ],
)
def test_a_record_with_another_value_in_any_column_is_named_by_its_offset(
    tables: Tables, name: str, value: object
) -> None:
    tables.fill(tables.live, with_value(7, name, value))
    tables.fill(tables.fresh)
    found = tables.compared()
    assert not found.equal
    assert [p.equal for p in found.partitions] == [False, True]
    assert ranges(found.partitions[0].details()) == {"altered": {"offsets": [[7, 8]], "columns": [name]}}


def test_rows_that_one_table_lacks_or_has_twice_are_named(tables: Tables) -> None:
    tables.fill(tables.live, without(3, 4, 19), lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    tables.fill(tables.fresh, without(10))
    found = tables.compared()
    assert ranges(found.partitions[0].details()) == {
        "only_live": [[10, 11]], "only_fresh": [[3, 5], [19, 20]], "repeated": [[0, 1]]
    }  # fmt: skip


def test_few_records_among_many_are_found_in_bounded_steps(tables: Tables) -> None:
    window = samples.sealed(TOPIC, "2026-01-01-00:00", p0=(100, 50_100))
    changes = [with_value(offset, "value", b"other") for offset in (100, 16_483, 16_484, 50_099)]
    tables.fill(tables.live, *changes, files=4, window=window)
    tables.fill(tables.fresh, shuffled, window=window)
    found = tables.compared(window)
    assert found.partitions[0].altered.offsets == (
        OffsetRange(100, 101), OffsetRange(16_483, 16_485), OffsetRange(50_099, 50_100),
    )  # fmt: skip


def test_offsets_that_kafka_has_no_more_take_no_part(tables: Tables) -> None:
    tables.fill(tables.live, with_value(2, "value", b"altered where nobody can tell"))
    gone = {0: (OffsetRange(0, 5),)}
    tables.fill(tables.fresh, without(*range(5)))
    Ledger(Lake.at(tables.fresh)).record_acceptance(WINDOW, gone, "Kafka no longer had them")
    found = tables.compared()
    assert found.equal
    assert (found.rows, found.rows_left_out, found.left_out) == (19, 5, gone)


# --- faults other than in rows --------------------------------------------------------------------------------------


def test_a_window_that_the_live_table_lacks_differs_and_says_how_to_load_it(tables: Tables) -> None:
    tables.fill(tables.fresh)
    found = tables.compared()
    assert not found.equal
    assert found.problem.endswith(f"`platform-assets load raw/{TOPIC} {WINDOW.key}`")
    assert found.partitions[0].only_fresh == (OffsetRange(0, 20),)


def test_a_fresh_table_that_somebody_changed_proves_nothing(tables: Tables) -> None:
    tables.fill(tables.live)
    tables.fill(tables.fresh)
    DeltaTable(tables.fresh / "raw" / TOPIC).delete("kafka_offset = 6")
    assert "was changed after it was loaded" in tables.compared().problem


def test_a_receipt_of_other_rows_or_of_another_topic_id_is_noticed(tables: Tables) -> None:
    tables.fill(tables.live)
    tables.fill(tables.fresh)
    ledger = Ledger(Lake.at(tables.live))
    (entry,) = ledger.receipts(TableRef.raw(TOPIC)).values()
    for change, said in (
        ({"content_digest": 4711}, "receipt describes different rows"),
        ({"topic_id": "B" * 22}, "B" * 22),
    ):
        ledger.record_receipts([replace(entry, **change)])
        found = tables.compared()
        assert not found.equal
        assert said in found.problem


def test_files_that_cannot_be_read_are_a_problem_of_their_window(tables: Tables) -> None:
    tables.fill(tables.live)
    tables.fill(tables.fresh)
    for file in (tables.live / "raw" / TOPIC).rglob("*.parquet"):
        file.write_bytes(b"no Parquet")
    found = tables.compared()
    assert not found.equal
    assert "are missing or damaged" in found.problem


def test_rows_without_an_offset_are_a_problem_of_their_window(tables: Tables) -> None:
    tables.fill(tables.live)
    tables.fill(tables.fresh)
    samples.append(tables.live, TOPIC, with_value(3, "kafka_offset", None)(samples.rows(WINDOW.key, {0: [3]})))
    assert "which every load writes" in tables.compared().problem
