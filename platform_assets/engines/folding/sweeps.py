"""Snapshot attempts among changes that are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.model import debezium
from platform_assets.model.snapshots import Attempt, merged
from platform_assets.model.state import StateDeclaration

_PLACE: Final = ("window", "kafka_partition")


class Attempts:
    """The attempts that are known from earlier folds, `known`, together with those among rows that are read."""

    def __init__(self, state: StateDeclaration, known: Sequence[Attempt]) -> None:
        self._state, self._found = state, list(known)

    @property
    def found(self) -> tuple[Attempt, ...]:
        """All attempts, each once."""
        return merged(self._found)

    def noted(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield changes, and note the attempts that they belong to."""
        for block in blocks:
            if self._state.has_sweeps:
                self._found = list(merged([*self._found, *_attempts(block, self._state)]))
            yield block


def snapshot_rows(rows: pa.RecordBatch, state: StateDeclaration) -> pa.RecordBatch:
    """Return the rows that a snapshot of the whole table wrote. Those of incremental snapshots are left out. Pure."""
    is_read = pc.equal(rows[state.operation], debezium.READ)
    of_attempt = pc.is_in(rows[state.snapshot], value_set=pa.array(debezium.SNAPSHOT_ROWS))
    return rows.filter(pc.fill_null(pc.and_(pc.and_(is_read, of_attempt), pc.is_valid(rows[state.lsn])), False))


def ends(rows: pa.RecordBatch, state: StateDeclaration) -> pa.RecordBatch:
    """Return those of `snapshot_rows` after which the snapshot of the table is complete. Pure."""
    return rows.filter(pc.is_in(rows[state.snapshot], value_set=pa.array(debezium.SNAPSHOT_ENDS)))


def _attempts(block: pa.RecordBatch, state: StateDeclaration) -> Iterator[Attempt]:
    read = snapshot_rows(block, state)
    last = ends(read, state)
    for rows, is_end in ((read, False), (last, True)):
        if not rows.num_rows:
            continue
        held = pa.table(
            {
                "generation": rows["generation"],
                "lsn": rows[state.lsn],
                **{name: rows[name] for name in _PLACE},
                "offset": rows["kafka_offset"],
            }
        )
        firsts = held.group_by(["generation", "lsn", *_PLACE], use_threads=False).aggregate([("offset", "min")])
        for row in firsts.to_pylist():
            place = (row["generation"], row["window"], row["kafka_partition"], row["offset_min"])
            yield Attempt(
                row["generation"],
                row["lsn"],
                place,
                place if is_end else None,
                place if row["kafka_partition"] else None,
            )
