"""The history of a state: the rows of each key that counted one after another, and when each gave way. Pure.

A row counts from its own window on, until a later window has a record that counts more, a truncate, or the end of a
snapshot that deletes it. So the rows alone
determine the history, whatever the order in which windows arrive: it needs no other record of its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.folding.winners import POSITION_COLUMNS, ascending, ranks
from platform_assets.lake.state_table import ENDED_BY, VALID_FROM, VALID_TO
from platform_assets.model.snapshots import Position
from platform_assets.model.state import StateDeclaration

_WINDOW: Final = "window"
_NEVER: Final = np.iinfo(np.int64).max


def chained(
    rows: pa.Table,
    truncates: pa.Table,
    state: StateDeclaration,
    columns: pa.Schema,
    snapshots: Sequence[tuple[Position, Position]] = (),
) -> pa.Table:
    """Return the history with these columns, sorted by key and position. `rows` has changes with keys, and `truncates`
    those without; both have the same columns, and may have the same row more than once. `snapshots` has the positions of
    the first row and of the end of each complete snapshot. Pure."""
    number, with_truncates = rows.num_rows, rows.num_rows + truncates.num_rows
    both = pa.concat_tables([rows.select(POSITION_COLUMNS), truncates.select(POSITION_COLUMNS)])
    columns_of = zip(POSITION_COLUMNS, zip(*(place for pair in snapshots for place in pair), strict=True), strict=False)
    of_snapshots = {name: pa.array(values, both.schema.field(name).type) for name, values in columns_of}
    if of_snapshots:
        both = pa.concat_tables([both, pa.table(of_snapshots, schema=both.schema)])
    places = _places(both)
    keys = _numbered(rows, state.key)
    order = np.lexsort([places[:number], keys])
    keys, own = keys[order], places[:number][order]
    counts = _counts(rows, order, keys, own, state)
    order, keys, own = order[counts], keys[counts], own[counts]
    # The place of the next row of the same key, of the first truncate after the row, or of the end of a snapshot that begins
    # after the row, whichever comes first.
    following = np.full(len(own), _NEVER)
    if len(own) > 1:
        following[:-1] = np.where(keys[1:] == keys[:-1], own[1:], _NEVER)
    ends = np.append(np.unique(places[number:with_truncates]), _NEVER)
    following = np.minimum(following, ends[np.searchsorted(ends[:-1], own, side="right")])
    if of_snapshots:
        # The end that comes first, of the snapshots that begin after the row.
        pairs = places[with_truncates:].reshape(-1, 2)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        earliest = np.append(np.minimum.accumulate(pairs[::-1, 1])[::-1], _NEVER)
        following = np.minimum(following, earliest[np.searchsorted(pairs[:, 0], own, side="right")])
    by_place = np.zeros(len(both), np.int64)
    by_place[places] = np.arange(len(both))
    is_last = following == _NEVER
    ended = both.take(pa.array(by_place[np.where(is_last, 0, following)], mask=is_last))
    found = rows.take(pa.array(order))
    made: dict[str, Any] = {VALID_FROM: found[_WINDOW], VALID_TO: ended[_WINDOW]}
    made |= {name: ended[name.removeprefix("ended_")] for name in ENDED_BY}
    held = dict(zip(found.column_names, found.columns, strict=True)) | made
    made_rows = pa.table([held[f.name].cast(f.type) for f in columns], schema=columns)
    return made_rows.take(pc.sort_indices(made_rows, [(name, "ascending") for name in (*state.key, *POSITION_COLUMNS)]))


def _places(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Return the rank of each row's position. Equal positions have equal ranks, which are indices of rows in the total
    order."""
    order = ascending(rows)
    sorted_rows = rows.take(pa.array(order))
    is_new = np.ones(len(order), bool)
    if len(order) > 1:
        same = [
            pc.equal(sorted_rows[name].slice(1), sorted_rows[name].slice(0, len(order) - 1)).to_numpy()
            for name in POSITION_COLUMNS
        ]
        is_new[1:] = ~np.logical_and.reduce(same)
    found = np.empty(len(order), np.int64)
    found[order] = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    return found


def _numbered(rows: pa.Table, key: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return numbers that are equal for equal keys."""
    found = np.zeros(rows.num_rows, np.int64)
    for name in key:
        values = rows[name].combine_chunks()
        own = pc.fill_null(values.dictionary_encode().indices, -1).to_numpy(zero_copy_only=False) + 1
        found = np.unique(found * (own.max(initial=0) + 1) + own, return_inverse=True)[1].astype(np.int64)
    return found


def _counts(
    rows: pa.Table,
    order: npt.NDArray[np.int64],
    keys: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    state: StateDeclaration,
) -> npt.NDArray[np.bool_]:
    """Return, for each row in `order`, whether it counts more than all rows of its key before it, and is not one of them
    again. `keys` and `places` ascend."""
    if not len(order):
        return np.zeros(0, bool)
    value = places
    if state.version is not None:
        value = value + (places.max() + 1) * ranks(rows[state.version])[order]
    if state.keep == "first":
        value = -value
    value = value - value.min()
    # A key's values are all greater than those of the key before it, so that one pass serves all keys.
    value = np.unique(value, return_inverse=True)[1] + keys * len(order)
    best = np.maximum.accumulate(value)
    found = np.ones(len(order), bool)
    found[1:] = (keys[1:] != keys[:-1]) | (best[1:] > best[:-1])
    return found
