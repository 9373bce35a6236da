"""Digests of typed rows: compiled code and Spark agree on every type, and columns added later do not change any
digest."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.engines.connector import measure
from platform_assets.engines.decoding.digests import measured, measured_by_run
from platform_assets.engines.decoding.task import encodings
from platform_assets.model.digest import digest_of
from platform_assets_tests.conftest import SEED
from platform_assets_tests.support.typed_rows import typed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_spark_computes(spark: SparkSession, tmp_path: Path) -> None:
    """Random rows of every type, in one file for each window. The files are encoded like the files of a decoded table."""
    from pyspark.sql import functions as F

    windows = {f"w{i}": typed_rows(random.Random(SEED + i), rows) for i, rows in enumerate((1, 40, 2_500))}
    for window, rows in windows.items():
        dictionaries, deltas = encodings(rows.schema)
        of_deltas = dict.fromkeys(deltas, "DELTA_BINARY_PACKED")
        pq.write_table(
            pa.Table.from_batches([rows]),
            tmp_path / window,
            use_dictionary=list(dictionaries),
            column_encoding=of_deltas,
        )
    read = [spark.read.parquet(str(tmp_path / w)).withColumn("window", F.lit(w)) for w in windows]
    frame = read[0].unionAll(read[1]).unionAll(read[2]).withColumn("topic_id", F.lit("id"))
    assert measure.measure_windows(frame) == {window: measured(rows) for window, rows in windows.items()}


def test_digest_of_slices_is_that_of_the_whole() -> None:
    rows = typed_rows(random.Random(SEED), 300)
    cuts = [0, 1, 7, 8, 130, 300]
    parts = [measured(rows.slice(a, b - a)) for a, b in itertools.pairwise(cuts)]
    assert sum(parts[1:], parts[0]) == measured(rows)


def test_runs_of_rows_have_the_digests_of_their_rows() -> None:
    """Runs can be longer than the kernel's scratch memory, and the rows can be a slice."""
    rows = typed_rows(random.Random(SEED), 2_600).slice(3)
    ends = [1, 8, 8, 131, 1_500, rows.num_rows]
    assert measured_by_run(rows, ends) == [measured(rows.slice(a, b - a)) for a, b in itertools.pairwise([0, *ends])]


def test_offsets_digest_is_that_of_the_raw_table() -> None:
    rows = typed_rows(random.Random(SEED), 100)
    table = pa.table({"p": rows["kafka_partition"], "o": rows["kafka_offset"]})
    offsets = {p: table.filter(pa.compute.equal(table["p"], p))["o"].to_numpy() for p in range(3)}
    assert measured(rows).offsets == digest_of(offsets)


def test_column_of_nulls_changes_no_digest() -> None:
    """Older rows have null in a column that was added later, regardless of the position of the column."""
    rows = typed_rows(random.Random(SEED), 50)
    for at in (2, 5, rows.num_columns):
        assert measured(rows.add_column(at, "new", pa.nulls(50, pa.string()))) == measured(rows)


def test_value_that_moved_to_another_column_gives_another_digest() -> None:
    """Digests skip nulls, so without marks, swapping two columns of the same type could remain unnoticed."""
    one, null = pa.array([7], pa.int32()), pa.nulls(1, pa.int32())
    kept = {"kafka_partition": pa.array([0], pa.int32()), "kafka_offset": pa.array([5], pa.int64())}
    right = pa.RecordBatch.from_pydict({**kept, "a": one, "b": null})
    moved = pa.RecordBatch.from_pydict({**kept, "a": null, "b": one})
    assert measured(right).content != measured(moved).content
    empty, none = pa.array([[]], pa.list_(pa.int32())), pa.nulls(1, pa.list_(pa.int32()))
    assert (
        measured(pa.RecordBatch.from_pydict({**kept, "a": empty})).content
        != measured(pa.RecordBatch.from_pydict({**kept, "a": none})).content
    )


@pytest.mark.parametrize("column", range(2, 29))
def test_another_value_gives_another_digest(column: int) -> None:
    rows, others = typed_rows(random.Random(SEED), 60), typed_rows(random.Random(SEED + 1), 60)
    changed = rows.set_column(column, rows.schema.field(column), others.column(column))
    assert measured(changed).content != measured(rows).content
    assert measured(changed).offsets.rows == 60


def test_type_without_a_digest_is_named() -> None:
    rows = typed_rows(random.Random(SEED), 1)
    with pytest.raises(TypeError, match="uint8 has no digest"):
        measured(rows.append_column("m", pa.nulls(1, pa.uint8())))


def test_a_map_is_hashed_as_the_list_of_its_entries() -> None:
    rows = typed_rows(random.Random(SEED), 40)
    maps = pa.array([[("a", 1), ("b", None)], [], None, [("", 7)]] * 10, pa.map_(pa.string(), pa.int32()))
    entry = pa.struct([("key", pa.string()), ("value", pa.int32())])
    pairs = [None if m is None else [{"key": k, "value": v} for k, v in m] for m in maps.to_pylist()]
    lists = pa.array(pairs, pa.list_(entry))
    assert measured(rows.append_column("m", maps)) == measured(rows.append_column("m", lists))
