"""Merging of the fast path's result for a block with the exact path's result for the remaining rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.decoder import DeadLetter, Decoded, Decoder, dead_letters
from platform_assets.decoding.pieces import Marks


def with_fallback(
    decoder: Decoder,
    values: pa.BinaryArray,
    columns: Sequence[pa.Array],
    undecided: Marks,
    *,
    rescued: pa.Array | None = None,
    voided: bool = False,
    dead: Sequence[DeadLetter] = (),
) -> Decoded:
    """Return `columns` from the fast path, with the results of `decoder`'s exact path in the `undecided` rows.

    The content of `columns` in the undecided rows does not matter. If `voided` is true, however, `columns` and
    `rescued` must be null in these rows, so that nothing is copied if all of these rows are dead letters. `dead`
    contains, in ascending order, the dead letters that the fast path itself found in other rows. In the rows of these
    dead letters, `columns` and `rescued` are null.
    """
    if rescued is None:
        rescued = pa.nulls(len(values), pa.string())
    if not undecided.any():
        return Decoded(_batch(decoder, columns), rescued, dead_letters(dead))
    rows = np.flatnonzero(undecided)
    exact = decoder.decode_exactly(values.take(pa.array(rows)))
    found = exact.dead.set_column(0, exact.dead.schema.field(0), pa.array(rows[exact.dead["row"]], pa.int32()))
    letters = _joined(found, dead_letters(dead))
    if voided and len(found) == rows.size:
        return Decoded(_batch(decoder, columns), rescued, letters)
    order = np.arange(len(values))
    order[rows] = len(values) + np.arange(rows.size)
    taken = pa.array(order)
    both = [
        pa.concat_arrays([fast, slow]).take(taken) for fast, slow in zip(columns, exact.columns.columns, strict=True)
    ]
    return Decoded(_batch(decoder, both), pa.concat_arrays([rescued, exact.rescued]).take(taken), letters)


def _joined(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    """Merge dead letters in ascending order of rows."""
    if not len(one) or not len(other):
        return one if len(one) else other
    both = pa.concat_batches([one, other])
    return both.take(pc.sort_indices(both["row"]))


def _batch(decoder: Decoder, columns: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=decoder.fields)
