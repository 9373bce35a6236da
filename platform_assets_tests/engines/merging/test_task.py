"""Merging tasks. Read with polars and DuckDB, the new files contain exactly the rows of the old files, in order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.engines.decoding.digests import measured as typed
from platform_assets.engines.merging import sorting, task
from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.engines.merging.work import Report, Share, Work
from platform_assets.engines.shared.digests import measured
from platform_assets.errors import FilesLostError, LakeNotWritableError
from platform_assets.model.tables import TableKind

TOPIC = "A" * 22
RAW = pa.schema(
    {
        "topic_id": pa.string(),
        "kafka_partition": pa.int32(),
        "kafka_offset": pa.int64(),
        "kafka_timestamp": pa.timestamp("us", "UTC"),
        "kafka_timestamp_type": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "window": pa.string(),
    }
)
DECODED = pa.schema(
    {
        "topic_id": pa.string(),
        "kafka_partition": pa.int32(),
        "kafka_offset": pa.int64(),
        "kafka_timestamp": pa.timestamp("us", "UTC"),
        "carrier": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "more": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
        "window": pa.string(),
    }
)
STATISTICS = ("kafka_partition", "kafka_offset", "kafka_timestamp", "window")
START = datetime(2026, 1, 1, tzinfo=UTC)


def window(number: int) -> str:
    return f"{START + timedelta(hours=number):%Y-%m-%d-%H:%M}"


def raw_rows(rng: random.Random, of: int, rows: int) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": TOPIC,
            "kafka_partition": 0,
            "kafka_offset": of * 1000 + n,
            "kafka_timestamp": START + timedelta(hours=of, milliseconds=n),
            "kafka_timestamp_type": 0,
            "key": rng.choice([None, b"", rng.randbytes(5)]),
            "value": rng.choice([None, rng.randbytes(rng.randrange(300))]),
            "headers": rng.choice([None, [], [{"key": "h", "value": rng.choice([None, b"x"])}]]),
            "window": window(of),
        }
        for n in range(rows)
    ]


def decoded_rows(rng: random.Random, of: int, rows: int) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": TOPIC,
            "kafka_partition": rng.randrange(3),
            "kafka_offset": of * 1000 + n,
            "kafka_timestamp": START,
            "carrier": rng.choice([None, "AA", "B6", "é" * 40, ""]),
            "at": rng.choice([None, START + timedelta(microseconds=rng.randrange(10**12))]),
            "more": rng.choice([None, {"a": rng.randrange(9), "b": rng.choice([None, ["x", None]])}]),
            "window": window(of),
        }
        for n in range(rows)
    ]


def write(folder: Path, rows: Sequence[dict[str, Any]], layout: pa.Schema) -> str:
    name = f"window=x/{uuid.uuid4()}.parquet"
    (folder / "window=x").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), layout), folder / name, store_schema=False)
    return name


def work(folder: Path, layout: pa.Schema, sources: Sequence[str], *by: str, most: int = 1 << 28) -> Work:
    kind: TableKind = "raw" if layout is RAW else "decoded"
    share = Share(tuple(sources), "windows/a_b/c", most, by)
    return Work(str(folder), "raw/t", kind, layout, (share,), (*STATISTICS, *by))


def merged(of: Work) -> Report:
    (report,) = task.reports(of, [0])
    assert report.error is None
    return report


def test_rows_keep_their_values_order_and_digests(tmp_path: Path, rng: random.Random) -> None:
    parts = [raw_rows(rng, of, rng.randrange(1, 90)) for of in range(7)]
    report = merged(work(tmp_path, RAW, [write(tmp_path, part, RAW) for part in parts]))
    (path,) = report.files
    found = pl.read_parquet(tmp_path / path).to_arrow().cast(RAW)
    assert found.equals(pa.Table.from_pylist([row for part in parts for row in part], RAW))
    expected = {}
    for of, part in enumerate(parts):
        (block,) = pa.Table.from_pylist(part, RAW).to_batches()
        expected[window(of), TOPIC] = measured(block)
    assert dict(report.digests) == expected
    assert report.odd == ()


def test_memory_stays_bounded_and_files_are_divided(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups are small, and a new file is begun once a file reaches the target size."""
    monkeypatch.setattr(task, "ROW_GROUP_BYTES", 10_000)
    rows = raw_rows(rng, 0, 900)
    source = write(tmp_path, rows, RAW)
    assert task._rows_at_once(pq.ParquetFile(tmp_path / source)) < 900
    report = merged(work(tmp_path, RAW, [source], most=30_000))
    sizes = [(tmp_path / name).stat().st_size for name in report.files]
    assert len(sizes) > 2
    assert max(sizes) < 50_000
    assert min(pq.ParquetFile(tmp_path / name).num_row_groups for name in list(report.files)[:-1]) > 1
    found = [row for name in report.files for row in pq.read_table(tmp_path / name, schema=RAW).to_pylist()]
    assert found == rows


@pytest.mark.parametrize("bytes_at_once", [sorting.PART_BYTES, 5_000], ids=["in memory", "in parts"])
def test_rows_are_sorted_by_the_columns_given(
    tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, bytes_at_once: int
) -> None:
    monkeypatch.setattr(sorting, "PART_BYTES", bytes_at_once)
    monkeypatch.setattr(sorting, "_BLOCK_BYTES", 2_000)
    parts = [decoded_rows(rng, of, rng.randrange(1, 200)) for of in range(6)]
    sources = [write(tmp_path, part, DECODED) for part in parts]
    report = merged(work(tmp_path, DECODED, sources, "carrier", "at", "window", "kafka_partition", "kafka_offset"))
    (path,) = report.files
    found = pq.read_table(tmp_path / path, schema=DECODED)
    whole = pa.Table.from_pylist([row for part in parts for row in part], DECODED)
    order = 'carrier NULLS LAST, "at" NULLS LAST, "window", kafka_partition, kafka_offset'
    in_order = duckdb.execute(f"SELECT kafka_offset FROM whole ORDER BY {order}").fetchall()
    assert [(o,) for o in found["kafka_offset"].to_pylist()] == in_order
    by_offset = [("kafka_offset", "ascending")]
    assert found.sort_by(by_offset).to_pylist() == whole.sort_by(by_offset).to_pylist()
    expected = {}
    for of, part in enumerate(parts):
        (block,) = pa.Table.from_pylist(part, DECODED).to_batches()
        expected[window(of), TOPIC] = typed(block)
    assert dict(report.digests) == expected


def test_a_column_that_was_added_later_is_null_in_older_rows(tmp_path: Path, rng: random.Random) -> None:
    older = pa.schema([f for f in DECODED if f.name != "more"])
    rows = [{k: v for k, v in row.items() if k != "more"} for row in decoded_rows(rng, 0, 20)]
    sources = [write(tmp_path, rows, older), write(tmp_path, decoded_rows(rng, 1, 20), DECODED)]
    report = merged(work(tmp_path, DECODED, sources))
    (path,) = report.files
    assert pq.read_table(tmp_path / path, schema=DECODED)["more"].slice(0, 20).null_count == 20
    (block,) = pa.Table.from_pylist(rows, older).to_batches()
    assert report.digests[window(0), TOPIC] == typed(block)


def test_rows_of_another_writer_have_no_digest(tmp_path: Path, rng: random.Random) -> None:
    rows = raw_rows(rng, 0, 20)
    rows[7]["kafka_partition"] = None
    others = raw_rows(rng, 1, 5)
    report = merged(work(tmp_path, RAW, [write(tmp_path, rows, RAW), write(tmp_path, others, RAW)]))
    assert report.odd == (window(0),)
    (block,) = pa.Table.from_pylist(others, RAW).to_batches()
    assert dict(report.digests) == {(window(1), TOPIC): measured(block)}


def test_a_damaged_source_is_named_and_nothing_is_left(tmp_path: Path, rng: random.Random) -> None:
    sources = [write(tmp_path, raw_rows(rng, of, 20), RAW) for of in range(2)]
    (tmp_path / sources[1]).write_bytes(b"PAR1, once")
    (report,) = task.reports(work(tmp_path, RAW, sources), [0])
    assert isinstance(report.error, FilesLostError)
    assert sources[1] in str(report.error)
    assert not list(tmp_path.glob("windows/**/*.parquet"))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, rng: random.Random) -> None:
    source = write(tmp_path, raw_rows(rng, 0, 20), RAW)
    (tmp_path / "windows").write_bytes(b"no folder")
    (report,) = task.reports(work(tmp_path, RAW, [source]), [0])
    assert isinstance(report.error, LakeNotWritableError)


def test_sources_without_rows_make_no_file(tmp_path: Path) -> None:
    assert merged(work(tmp_path, RAW, [write(tmp_path, [], RAW)])).files == {}


def test_a_report_survives_the_way_from_a_worker(tmp_path: Path, rng: random.Random) -> None:
    report = merged(work(tmp_path, RAW, [write(tmp_path, raw_rows(rng, 0, 20), RAW)]))
    assert Report.from_json(report.to_json()) == report
    failed = Report(3, error=FilesLostError("raw/t", "", "it is gone"))
    assert str(Report.from_json(failed.to_json()).error) == str(failed.error)


def test_without_spark_this_process_merges(tmp_path: Path, rng: random.Random) -> None:
    of = work(tmp_path, RAW, [write(tmp_path, raw_rows(rng, 0, 20), RAW)])
    twice = replace(of, shares=(of.shares[0], replace(of.shares[0], below="windows/a_b/d")))
    assert [(r.share, len(r.files)) for r in MergeEngine().merge(twice)] == [(0, 1), (1, 1)]
