"""What the dead letters of some windows are: how many by reason and place, with a few of each. Read without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake import datasets
from platform_assets.lake.location import Folder
from platform_assets.lake.python_values import python_values
from platform_assets.lake.rows import reading_files
from platform_assets.model.samples import shown

_COLUMNS: Final = ["window", "kafka_partition", "kafka_offset", "side", "reason", "place", "detail", "key", "value"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One dead letter; `key` and `value` are shortened and escaped, None where they are null."""

    window: str
    partition: int
    offset: int
    detail: str
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters of one reason at one place of key or value: how many, and the first of them."""

    side: str
    reason: str
    place: str | None
    count: int
    samples: tuple[Sample, ...]


def groups(table: Folder, keys: Sequence[str], samples: int = 3) -> tuple[Group, ...]:
    """The dead letters of the windows `keys`, the most frequent first. Memory is flat in their number."""
    counts: dict[tuple[str, str, str | None], int] = {}
    found: dict[tuple[str, str, str | None], list[Sample]] = {}
    for key in keys:
        with table.reading():
            dataset = datasets.of(table.delta(), "window", key)
        with reading_files(table, key):
            for batch in dataset.to_batches(columns=_COLUMNS, filter=pc.field("window") == key, batch_size=4096):
                _count(batch, counts, found, samples)
    ordered = sorted(counts, key=lambda what: (-counts[what], what[0], what[1], what[2] or ""))
    return tuple(Group(*what, counts[what], tuple(found[what])) for what in ordered)


def rows(table: Folder, key: str, version: int) -> Iterator[dict[str, Any]]:
    """Each dead letter of one window, whole, by the table's column names. Raises FilesLostError.

    A timestamp that Python has not is a number of microseconds.
    """
    with table.reading():
        dataset = datasets.of(table.delta(version), "window", key)
    batches = dataset.to_batches(filter=pc.field("window") == key, batch_size=1024)
    while True:
        with reading_files(table, key):
            batch = next(batches, None)
        if batch is None:
            return
        columns = [python_values(column) for column in batch.columns]
        yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def _count(
    batch: pa.RecordBatch,
    counts: dict[tuple[str, str, str | None], int],
    found: dict[tuple[str, str, str | None], list[Sample]],
    samples: int,
) -> None:
    grouped = pa.Table.from_batches([batch]).group_by(["side", "reason", "place"]).aggregate([([], "count_all")])
    for row in grouped.to_pylist():
        what = (row["side"], row["reason"], row["place"])
        counts[what] = counts.get(what, 0) + row["count_all"]
        held = found.setdefault(what, [])
        if len(held) < samples:
            same = (pc.field("side") == what[0]) & (pc.field("reason") == what[1])
            same &= pc.field("place").is_null() if what[2] is None else pc.field("place") == what[2]
            held += [_sample(each) for each in batch.filter(same).slice(0, samples - len(held)).to_pylist()]


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(
        row["window"],
        row["kafka_partition"],
        row["kafka_offset"],
        row["detail"],
        shown(row["key"]),
        shown(row["value"]),
    )
