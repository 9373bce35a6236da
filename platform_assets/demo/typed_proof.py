"""Proof that a decoded table matches the CSV file. The proof does not use the platform's own means: pandas reads the
file, delta-rs reads the table, and JSON is not involved. Totals of each column are computed from the file itself, and
compared with the totals of the table's columns."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.demo.dataset import Dataset, Source, content, data_folder, row_numbers
from platform_assets.lake import datasets
from platform_assets.lake.location import Lake
from platform_assets.model.tables import TableRef


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of a column: the number of non-null values, the number of distinct values, and the sum.

    For a column of numbers, the sum is the sum of the numbers; for strings, the sum of their lengths in characters; for
    times, the sum of the seconds since 1970. The sum is correctly rounded, so it does not depend on the order of the
    values.
    """

    values: int
    distinct: int
    total: float


@dataclass(frozen=True, slots=True)
class TypedExactness:
    """Result of a comparison.

    Attributes:
        topic: the topic.
        rows: number of rows in the decoded table.
        dead: maps the row number of each dead letter to its reason.
        expected: maps the row number of each expected dead letter to its reason.
        columns: number of columns that were compared.
        different: maps each column whose totals differ to the totals from the file and from the table.
    """

    topic: str
    rows: int
    dead: Mapping[int, str]
    expected: Mapping[int, str]
    columns: int
    different: Mapping[str, tuple[Totals, Totals]]

    def faults(self) -> list[str]:
        """Return a description of each difference."""
        found = [
            f"column {name}: {of_file} in the file, but {now} in the table"
            for name, (of_file, now) in self.different.items()
        ]
        if self.dead != self.expected:
            found.append(f"dead letters by reason: {_by_reason(self.dead)}; expected: {_by_reason(self.expected)}")
        return found

    def sentence(self) -> str:
        """Describe the result in one sentence. Use this only if there are no faults."""
        return (
            f"{self.topic}: {self.rows:,} rows decoded; the totals of {self.columns} columns equal those that pandas computes from "
            f"the CSV file; {len(self.dead)} dead letters, exactly those expected ({_by_reason(self.dead)})"
        )


def compare(lake: Lake, source: Source, dataset: Dataset) -> TypedExactness:
    """Compare the decoded table of a topic, and the topic's dead letters, with the source file of the records."""
    of_file = from_file(source)
    decoded = _columns(lake, TableRef("decoded", source.topic), ["row", *source.columns])
    letters = _columns(lake, TableRef("dead_letters", source.topic), ["value", "reason"])
    of_table = {} if decoded is None else {name: totals(decoded[name]) for name in source.columns}
    nothing = Totals(0, 0, 0.0)
    return TypedExactness(
        topic=source.topic,
        rows=0 if decoded is None else decoded.num_rows,
        dead={} if letters is None else dict(
            zip(row_numbers(letters["value"].combine_chunks()).to_pylist(), letters["reason"].to_pylist(), strict=True)
        ),
        expected=dict(dataset.broken),
        columns=len(source.columns),
        different={
            name: (of, of_table.get(name, nothing))
            for name, of in of_file.items()
            if of != of_table.get(name, nothing)
        },
    )  # fmt: skip


def from_file(source: Source) -> dict[str, Totals]:
    """Return the totals of each column in a source's file, computed with pandas."""
    import pandas as pd

    frame = frame_of(source)
    return {name: _of_pandas(pd, name, frame[name], kind) for name, kind in source.columns.items()}


def frame_of(source: Source) -> Any:
    """Return a source's file as pandas reads it."""
    import pandas as pd

    text = io.BytesIO(content(data_folder() / source.file))
    return pd.read_csv(text, keep_default_na=False, na_values=["NA", ""], low_memory=False)


def _of_pandas(pd: Any, name: str, column: Any, kind: str) -> Totals:
    present = column.dropna()
    if name == "time_hour":
        seconds = (pd.to_datetime(present, utc=True) - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
        return Totals(len(present), int(present.nunique()), math.fsum(seconds))
    if kind == "text":
        return Totals(len(present), int(present.nunique()), float(present.str.len().sum()))
    return Totals(len(present), int(present.nunique()), math.fsum(present))


def totals(column: pa.ChunkedArray) -> Totals:
    """Return the totals of a table's column."""
    present = column.drop_null()
    if pa.types.is_timestamp(present.type):
        numbers = pc.divide(present.cast(pa.int64()).cast(pa.float64()), 1e6)
    elif pa.types.is_string(present.type) or pa.types.is_large_string(present.type):
        numbers = pc.utf8_length(present)
    else:
        numbers = present
    return Totals(len(present), pc.count_distinct(present).as_py(), math.fsum(numbers.to_pylist()))


def _columns(lake: Lake, table: TableRef, names: list[str]) -> pa.Table | None:
    folder = lake.table(table)
    return datasets.of(folder.delta()).to_table(names) if folder.has_delta_log() else None


def _by_reason(dead: Mapping[int, str]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in sorted(Counter(dead.values()).items())) or "none"
