"""The record of each key that counts, among rows from changes and from a state. Vectorized, no I/O.

Records of one key are in a total order: the declared version column, if there is one, then generation, window, Kafka
partition and offset. The order does not depend on where a row was read, so the record that counts is a maximum (or a
minimum): rows may be compared in any order, in any groups, and repeatedly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.decoding.digests import row_hashes
from platform_assets.model.state import StateDeclaration

POSITION_COLUMNS: Final = ("generation", "window", "kafka_partition", "kafka_offset")
"""The columns of a record's position, the most significant one first."""

Hashes = npt.NDArray[np.uint64]


def key_hashes(rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> Hashes:
    """Return a hash of each row's key. Different keys may have equal hashes."""
    hashes = [row_hashes([batch[name] for name in key]) for batch in _batches(rows)]
    return np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)


def _batches(rows: pa.Table | pa.RecordBatch) -> list[pa.RecordBatch]:
    return [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()


def winners(rows: pa.Table, state: StateDeclaration) -> pa.Table:
    """Return the row of each key that counts: the last one or, with `keep: first`, the first one. Pure.

    If a row occurs more than once, one of its occurrences is returned.
    """
    if rows.num_rows < 2:
        return rows
    order = ascending(rows, state.version)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    # Not by their own names: a key column may be called `place`.
    keys = {f"key{number}": rows[name] for number, name in enumerate(state.key)}
    best = "max" if state.keep == "last" else "min"
    grouped = pa.table({**keys, "place": places}).group_by(list(keys), use_threads=False)
    chosen = grouped.aggregate([("place", best)])[f"place_{best}"].to_numpy()
    return rows if len(chosen) == rows.num_rows else rows.take(pa.array(order[chosen]))


def after(rows: pa.Table, place: Mapping[str, Any]) -> pa.ChunkedArray:
    """Return, for each row, whether its position comes after `place`, which has a value for each of `POSITION_COLUMNS`.
    Pure."""
    found: Any = pa.scalar(False)
    for name in reversed(POSITION_COLUMNS):
        value = pa.scalar(place[name], rows.schema.field(name).type)
        found = pc.or_(pc.greater(rows[name], value), pc.and_(pc.equal(rows[name], value), found))
    return found


def ascending(rows: pa.Table, version: str | None = None) -> npt.NDArray[np.int64]:
    """Return the indices that sort rows by the total order, the smallest first. Pure."""
    by = [_numbers(rows, "kafka_offset"), _numbers(rows, "kafka_partition"), ranks(rows["window"])]
    by.append(_numbers(rows, "generation"))
    if version is not None:
        by.append(ranks(rows[version]))
    # numpy sorts by the last of the keys first. A key with one value, as most of these are, costs time for nothing.
    return np.lexsort([values for values in by if values.size and values.min() != values.max()] or by[:1])


def _numbers(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = rows[name].to_numpy()
    return values


def ranks(values: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return numbers that are in the same order as the values, none of which is null."""
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not pa.types.is_string(values.type):
        return np.asarray(pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy(), np.int64)
    # Few distinct values: sorting only these is much faster.
    encoded = values.combine_chunks().dictionary_encode()
    ranks = pc.rank(encoded.dictionary, sort_keys="ascending", tiebreaker="dense").to_numpy()
    return np.asarray(ranks[encoded.indices.to_numpy()], np.int64)
