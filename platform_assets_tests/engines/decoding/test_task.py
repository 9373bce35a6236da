"""A Spark task returns the same rows and dead letters, however its share is divided into blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.decoding import engine, task
from platform_assets.engines.decoding.work import Piece, Share, Work
from platform_assets.lake import dead_letter_table, decoded_table
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets_tests.support.raw_records import raw

RECORDS = 40
BROKEN = (3, 17, 18, 39)
SCHEMA = FormatSpec("json", {"schema": "id BIGINT NOT NULL"})


def values(*, backwards: bool) -> pa.RecordBatch:
    """Return records of two partitions, some of them broken. Each record has a different key and different headers."""
    offsets = list(range(RECORDS))
    found = [(o % 2, o, f"key {o}".encode(), b"{" if o in BROKEN else b'{"id": %d}' % o) for o in offsets]
    return raw(*(reversed(found) if backwards else sorted(found)))


def decoded(folder: Path, records: pa.RecordBatch, key: FormatSpec | None) -> tuple[list[Any], list[Any]]:
    """Decode a raw table that has one file with one row group, as a task does. Return the rows and the dead letters."""
    raw_folder = folder / "raw"
    raw_folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_batches([records]), raw_folder / "0.parquet", row_group_size=RECORDS)
    group = pq.ParquetFile(raw_folder / "0.parquet").metadata.row_group(0)
    declared = DecodeDeclaration(SCHEMA, key)
    columns = decoded_table.columns(None if key is None else decoder_of(key).fields, decoder_of(SCHEMA).fields)
    piece = Piece("0.parquet", 0, group.num_rows, group.total_byte_size)
    work = Work(
        topic="t",
        raw=str(raw_folder),
        decoded=str(folder / "decoded"),
        dead_letters=str(folder / "dead"),
        schemas=str(folder / "schemas"),
        registry="",
        declaration=declared,
        layout=engine.files_layout(columns),
        dead_layout=engine.files_layout(dead_letter_table.columns()),
        shares=(Share("w", "window=w/load", 0, (piece,)),),
        rows_apart=1_000,
    )
    reports = list(task.reports(work, [0]))
    assert [report.error for report in reports] == [None] * len(reports)

    def rows(target: str, table: str) -> list[Any]:
        files = [r.file for r in reports if r.file is not None and r.target == target]
        return [row for file in files for row in pq.ParquetFile(folder / table / file.path).read().to_pylist()]

    return rows("decoded", "decoded"), rows("dead_letters", "dead")


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize("key", [None, FormatSpec("string")], ids=["without keys", "with keys"])
@pytest.mark.parametrize("large", [False, True], ids=["a small row group", "a large one"])
def test_blocks_do_not_show(
    large: bool, key: FormatSpec | None, backwards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dead letters have the keys, headers and times of their own records, wherever blocks begin."""
    records = values(backwards=backwards)
    whole = decoded(tmp_path / "whole", records, key)
    monkeypatch.setattr(task, "BLOCK_ROWS", 7)
    if large:
        monkeypatch.setattr(task, "BLOCK_BYTES", 1)
    parts = decoded(tmp_path / "parts", records, key)
    for rows, others in zip(whole, parts, strict=True):
        ordered = [sorted(found, key=lambda r: r["kafka_offset"]) for found in (rows, others)]
        assert ordered[0] == ordered[1]
    rows, letters = parts
    assert sorted(row["id"] for row in rows) == [o for o in range(RECORDS) if o not in BROKEN]
    sent = {row["kafka_offset"]: row for row in records.to_pylist()}
    assert sorted(letter["kafka_offset"] for letter in letters) == list(BROKEN)
    for letter in letters:
        assert {name: letter[name] for name in sent[letter["kafka_offset"]]} == sent[letter["kafka_offset"]]


def test_columns_that_dead_letters_alone_need_are_not_read_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = values(backwards=False).filter(
        pa.array([r["kafka_offset"] not in BROKEN for r in values(backwards=False).to_pylist()])
    )

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a row group was read whole")

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", refused)
    rows, letters = decoded(tmp_path / "good", good, None)
    assert (len(rows), letters) == (RECORDS - len(BROKEN), [])
