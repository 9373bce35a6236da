"""Summary of the dead letters in some windows: counts by reason and place, with samples. It is read without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake.location import Folder
from platform_assets.lake.parquet import python_values
from platform_assets.lake.rows import batches_of
from platform_assets.model.untrusted import MOST_PLACE, shown

MOST_GROUPS: Final = 100
"""Maximum number of groups to list. The dead letters of all other groups are counted together."""
_MOST_KINDS: Final = 8192
_COLUMNS: Final = ["window", "kafka_partition", "kafka_offset", "side", "reason", "place", "detail", "key", "value"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One dead letter. `key` and `value` are shortened and escaped, or None if they are null."""

    window: str
    partition: int
    offset: int
    detail: str
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Group:
    """Dead letters with the same reason at the same place in the key or value: their number, and the first of them."""

    side: str
    reason: str
    place: str | None
    count: int
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Groups:
    """The most frequent groups of dead letters in some windows, and the number of dead letters in other groups."""

    listed: tuple[Group, ...] = ()
    others: int = 0


def groups(table: Folder, keys: Sequence[str], samples: int = 3) -> Groups:
    """Return the groups of dead letters in the windows `keys`, the most frequent group first. Memory does not depend on
    the number of dead letters and places."""
    found = _KindCounts(samples)
    for key in keys:
        for batch in batches_of(table, key, None, _COLUMNS, rows_at_once=4096):
            found.add(batch)
    return found.groups()


def rows(table: Folder, key: str, version: int) -> Iterator[dict[str, Any]]:
    """Yield each complete dead letter of one window, by the table's column names. Raises FilesLostError.

    A timestamp that Python cannot represent is given as a number of microseconds.
    """
    for batch in batches_of(table, key, version, rows_at_once=1024):
        columns = [python_values(column) for column in batch.columns]
        yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


_Kind = tuple[str, str, str | None]
"""Side (key or value), reason and place."""


class _KindCounts:
    """Counts by kind. Rare kinds may be counted in `_others`, because a producer can cause any number of kinds."""

    def __init__(self, samples: int) -> None:
        self._most_samples = samples
        self._counts: dict[_Kind, int] = {}
        self._samples: dict[_Kind, list[Sample]] = {}
        self._others = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the dead letters of a batch."""
        rows = pa.table(
            {
                "side": batch["side"],
                "reason": batch["reason"],
                "place": _cut(batch["place"]),
                "row": pa.array(np.arange(len(batch))),
            }
        )
        of_batch = rows.group_by(["side", "reason", "place"], use_threads=False).aggregate([("row", "list")])
        lists = of_batch["row_list"].combine_chunks()
        ends, members = lists.offsets.to_numpy(), lists.values.to_numpy()
        kinds = zip(*(of_batch[name].to_pylist() for name in ("side", "reason", "place")), strict=True)
        wanted: list[tuple[_Kind, int]] = []
        for kind, start, end in zip(kinds, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            self._counts[kind] = self._counts.get(kind, 0) + end - start
            held = self._samples.setdefault(kind, [])
            wanted += [
                (kind, row) for row in members[start : min(end, start + self._most_samples - len(held))].tolist()
            ]
        if len(self._counts) > _MOST_KINDS:
            self._drop_rarest(_MOST_KINDS // 2)
            wanted = [(kind, row) for kind, row in wanted if kind in self._counts]
        taken = batch.take(pa.array([row for _, row in wanted], pa.int64()))
        for (kind, _), row in zip(wanted, taken.to_pylist(), strict=True):
            self._samples[kind].append(_sample(row))

    def groups(self) -> Groups:
        """Return the most frequent kinds, with their samples."""
        self._drop_rarest(MOST_GROUPS)
        return Groups(
            tuple(Group(*kind, self._counts[kind], tuple(self._samples[kind])) for kind in self._by_count()),
            self._others,
        )

    def _by_count(self) -> list[_Kind]:
        return sorted(self._counts, key=lambda kind: (-self._counts[kind], kind[0], kind[1], kind[2] or ""))

    def _drop_rarest(self, kept: int) -> None:
        for kind in self._by_count()[kept:]:
            self._others += self._counts.pop(kind)
            del self._samples[kind]


def _cut(places: pa.Array) -> pa.Array:
    """Shorten places as this release writes them, because an earlier release wrote them in full."""
    whole = places.cast(pa.string())
    shortened = pc.binary_join_element_wise(pc.utf8_slice_codeunits(whole, 0, MOST_PLACE - 1), "…", "")
    return pc.if_else(pc.greater(pc.utf8_length(whole), MOST_PLACE), shortened, whole)


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(
        row["window"],
        row["kafka_partition"],
        row["kafka_offset"],
        row["detail"],
        shown(row["key"]),
        shown(row["value"]),
    )
