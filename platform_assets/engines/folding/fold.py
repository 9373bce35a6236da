"""A fold: new rows of a state and of its deleted keys, from the rows that both have and from pending changes.

The rows are divided into buckets by their keys, and one bucket is in memory at a time. Each written bucket is one file
per table, sorted by key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.decoding.digests import measured
from platform_assets.engines.folding.buckets import Bucketed
from platform_assets.engines.folding.history import chained
from platform_assets.engines.folding.sweeps import Attempts
from platform_assets.engines.folding.winners import POSITION_COLUMNS, Hashes, after, key_hashes, winners
from platform_assets.lake.state_table import HISTORY_OWN
from platform_assets.model.digest import Measured
from platform_assets.model.snapshots import Attempt, Position, swept_to
from platform_assets.model.state import StateDeclaration

WINDOW: Final = "window"
DELETED: Final = "deleted"
"""The column of changes that tells whether a record deletes its key."""

Blocks = Callable[[], Iterator[pa.RecordBatch]]
"""Reads rows in blocks. Each call reads them again."""


class Side(Protocol):
    """One of the two tables of a state: its present rows, and the place for its new rows."""

    @property
    def columns(self) -> pa.Schema:
        """The table's columns."""

    def blocks(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the present rows, with the columns `names`, by default with all."""

    def has_buckets(self, count: int) -> bool:
        """Return True if the present rows are stored in `count` buckets."""

    def bucket(self, number: int) -> pa.Table:
        """Return the present rows of a bucket, if `has_buckets`."""

    def write(self, number: int, count: int, rows: pa.Table) -> None:
        """Write the new rows of a bucket, of `count` buckets; they are sorted by key."""


@dataclass(frozen=True, slots=True)
class FoldOrder:
    """A fold to compute, into `count` buckets.

    `changes` reads the rows of the pending windows `windows`, and `others` all other rows of the table of changes. Both
    have the columns of the live rows and `DELETED`. The present rows of a `history` are changes too.

    The present deleted keys lack those that were deleted in windows up to `collected`, and the new ones lack those up to
    `collects`, which is the same window or a later one.

    `snapshots` are the attempts at a snapshot that are known from earlier folds. The present rows lack all keys whose last
    record comes before `swept`.
    """

    state: StateDeclaration
    live: Side
    dead: Side
    windows: Collection[str]
    changes: Blocks
    others: Blocks
    count: int
    history: Side | None = None
    collected: str = ""
    collects: str = ""
    snapshots: Sequence[Attempt] = ()
    swept: Position | None = None

    @property
    def sides(self) -> tuple[Side, ...]:
        """All tables of the state."""
        return (self.live, self.dead) if self.history is None else (self.live, self.dead, self.history)


class SweptBackError(Exception):
    """A snapshot attempt turns out to begin earlier than the one up to which keys were deleted: some of them may have to
    come back, which only all changes can tell. The text says so."""


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of a fold: the digests of live and deleted keys and of the history, if there is one. `truncated` is the
    window of the last truncate, or an empty text. `snapshots` are all attempts at a snapshot."""

    live: Measured
    dead: Measured
    history: Measured | None
    truncated: str
    snapshots: tuple[Attempt, ...] = ()

    @property
    def all(self) -> tuple[Measured, ...]:
        """The digests, in the order of `FoldOrder.sides`."""
        return (self.live, self.dead) if self.history is None else (self.live, self.dead, self.history)


def fold(order: FoldOrder, progress: Callable[[int, int], None] = lambda done, all: None) -> Folded:
    """Write new rows for all live and deleted keys.

    A pending window may have been folded before, with other rows. So rows that come from it are dropped, and their keys
    are computed again from all changes. A row of that window that is not in the state needs nothing: it lost to another
    row of its key, and this row is still there.

    It is not if it deletes the key and was collected. So the keys of pending windows up to `collected` are computed again
    from all changes too, which still have each delete. A window up to `collected` that was folded before is not folded
    again: the state is then made from all changes.

    A truncate is a row of the changes and of the deleted keys without a key. The last one deletes all rows before it,
    whatever bucket they are in, so nothing else has to be known about these: their keys are in neither table. If the last
    truncate itself is gone, the state is made from all changes.

    A complete snapshot deletes all rows before its first record in the same way. Raises SweptBackError, before anything is
    written, if the first record turns out to be an earlier one.
    """
    totals = [Measured.of_nothing() for _ in order.sides]
    with (
        closing(Bucketed(order.state.key, order.count)) as changes,
        ExitStack() as opened,
    ):
        of_live, of_dead, *of_history = (opened.enter_context(closing(_Present(side, order))) for side in order.sides)
        truncates, late = _Truncates(order), [np.zeros(0, np.uint64)]
        attempts = Attempts(order.state, order.snapshots)
        changes.add(truncates.apart(attempts.noted(_noting_late(order, late))))
        snapshots = attempts.found
        swept = swept_to(snapshots)
        if order.swept is not None and (swept is None or swept < order.swept):
            raise SweptBackError("a snapshot begins earlier than the changes that were folded before showed")
        again = np.unique(np.concatenate([_hashes_from(order, truncates), *late]))
        if again.size:
            changes.add(truncates.apart(_with_hashes(order, again)))
        last = truncates.last()
        # Without its time, which may be after the year 9999, where Python's times end.
        place = last.select(POSITION_COLUMNS).to_pylist()[0] if last.num_rows else None
        cut = _cut(None if place is None else tuple(place[name] for name in POSITION_COLUMNS), swept)
        ended = [(each.first, each.end) for each in snapshots if each.is_complete and each.end is not None]
        for number in range(order.count):
            new = changes.bucket(number)
            found = [*folded(of_live.bucket(number), of_dead.bucket(number), new, order.state, cut)]
            if order.collects:
                found[1] = found[1].filter(pc.greater(found[1][WINDOW], order.collects))
            if number == 0 and place is not None:
                found[1] = pa.concat_tables([found[1], last])
            for side, present in zip(order.sides[2:], of_history, strict=True):
                found.append(
                    _history(
                        present.bucket(number),
                        new,
                        truncates.all(),
                        order.state,
                        side,
                        ended,
                        with_truncates=number == 0,
                        is_same=not order.windows,
                    )
                )
            for at, (side, rows) in enumerate(zip(order.sides, found, strict=True)):
                if rows.num_rows:
                    side.write(number, order.count, rows)
                totals[at] += digests_of(rows)
            progress(number + 1, order.count)
    truncated = "" if place is None else place[WINDOW]
    return Folded(totals[0], totals[1], totals[2] if order.history else None, truncated, snapshots)


def _cut(truncate: tuple[Any, ...] | None, swept: Position | None) -> Mapping[str, Any] | None:
    """Return the position up to which all rows are deleted: that of a truncate, or the one before `swept`."""
    before = None if swept is None else (*swept[:-1], swept[-1] - 1)
    found = max((each for each in (truncate, before) if each is not None), default=None)
    return None if found is None else dict(zip(POSITION_COLUMNS, found, strict=True))


def _history(
    present: pa.Table,
    changes: pa.Table | None,
    truncates: pa.Table,
    state: StateDeclaration,
    side: Side,
    ended: Sequence[tuple[Position, Position]],
    *,
    with_truncates: bool,
    is_same: bool,
) -> pa.Table:
    """Return the history of the keys of a bucket and, if asked for, of the truncates."""
    columns = pa.schema([f for f in side.columns if f.name not in HISTORY_OWN])
    rows = pa.concat_tables(
        [each.select(columns.names).cast(columns) for each in (present, changes) if each is not None]
    )
    none = columns.empty_table()
    truncates = _as(truncates, columns, deleted=True)
    # Without changes, rows stay as they are, so that a comparison with all changes finds those that are wrong.
    found = [present if is_same else chained(rows, truncates, state, side.columns, ended)]
    if with_truncates:
        found.append(chained(truncates, none, state, side.columns))
    return pa.concat_tables(found)


def folded(
    live: pa.Table,
    dead: pa.Table,
    changes: pa.Table | None,
    state: StateDeclaration,
    cut: Mapping[str, Any] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Return the live rows and the deleted keys after `changes`, each sorted by key. Rows up to the position `cut` are
    deleted. Pure.

    `live` and `dead` may have the same key if the last fold ended after its first commit; the changes that the other
    table lacks then decide.
    """
    if changes is None or not changes.num_rows:
        return _sorted(_kept(live, cut), state.key), _sorted(_kept(dead, cut), state.key)
    # Not numpy's functions for sets: these take ten times as long.
    among = pa.array(key_hashes(changes, state.key))
    touched = [pc.is_in(pa.array(key_hashes(rows, state.key)), value_set=among) for rows in (live, dead)]
    columns = changes.schema
    candidates = pa.concat_tables(
        [
            _as(live.filter(touched[0]), columns, deleted=False),
            _as(dead.filter(touched[1]), columns, deleted=True),
            changes,
        ]
    )
    won = winners(candidates, state)
    is_deleted = won[DELETED]
    now_live = won.filter(pc.invert(is_deleted)).select(live.column_names).cast(live.schema)
    now_dead = won.filter(is_deleted).select(dead.column_names).cast(dead.schema)
    kept = [rows.filter(pc.invert(hit)) for rows, hit in zip((live, dead), touched, strict=True)]
    return (
        _sorted(_kept(pa.concat_tables([kept[0], now_live]), cut), state.key),
        _sorted(_kept(pa.concat_tables([kept[1], now_dead]), cut), state.key),
    )


def _kept(rows: pa.Table, cut: Mapping[str, Any] | None) -> pa.Table:
    """Return the rows after the position `cut`."""
    return rows if cut is None else rows.filter(after(rows, cut))


class _Truncates:
    """The truncates among rows that are read, with the columns of deleted keys."""

    def __init__(self, order: FoldOrder) -> None:
        self._order = order
        self._found = [order.dead.columns.empty_table()]

    def apart(self, blocks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not truncates, and keep the others."""
        if not self._order.state.has_truncates:
            yield from blocks
            return
        for block in blocks:
            is_truncate = _is_truncate(block, self._order)
            if not is_truncate.true_count:
                yield block
                continue
            self.add(block.filter(is_truncate))
            if (others := block.filter(pc.invert(is_truncate))).num_rows:
                yield others

    def add(self, rows: pa.RecordBatch) -> None:
        """Add truncates."""
        columns = self._order.dead.columns
        self._found.append(pa.Table.from_batches([rows]).select(columns.names).cast(columns))

    def last(self) -> pa.Table:
        """Return the last truncate; no row if there is none."""
        return winners(self.all(), self._order.state)

    def all(self) -> pa.Table:
        """Return all truncates that were read, some of them more than once. Without a history, these may be only the last
        ones."""
        return pa.concat_tables(self._found)


def _is_truncate(rows: pa.RecordBatch | pa.Table, order: FoldOrder) -> Any:
    return reduce(pc.and_, (pc.is_null(rows[name]) for name in order.state.key))


def _as(rows: pa.Table, columns: pa.Schema, *, deleted: bool) -> pa.Table:
    """Return rows of a state with the columns of changes."""
    held = {name: rows[name].cast(columns.field(name).type) for name in rows.column_names}
    held[DELETED] = pa.repeat(pa.scalar(deleted), rows.num_rows)
    return pa.table(
        [held[f.name] if f.name in held else pa.nulls(rows.num_rows, f.type) for f in columns], schema=columns
    )


def _sorted(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in key]))


def _hashes_from(order: FoldOrder, truncates: _Truncates) -> Hashes:
    """Return the hashes of the keys with a present row from a pending window. Add the present truncates from other
    windows."""
    found = [np.zeros(0, np.uint64)]
    for side in order.sides:
        has_truncates = side is not order.live and order.state.has_truncates
        for block in side.blocks(None if has_truncates else [*order.state.key, WINDOW]):
            is_pending = _is_in(block, order.windows)
            of_window = block.filter(is_pending)
            if has_truncates:
                is_kept = pc.and_(_is_truncate(block, order), pc.invert(is_pending))
                truncates.add(block.filter(is_kept))
            if of_window.num_rows:
                found.append(key_hashes(of_window, order.state.key))
    return np.unique(np.concatenate(found))


def _noting_late(order: FoldOrder, hashes: list[Hashes]) -> Iterator[pa.RecordBatch]:
    """Yield the pending changes. Add the hashes of keys with changes in windows up to `collected` to `hashes`."""
    for block in order.changes():
        if order.collected:
            late = block.filter(pc.less_equal(block[WINDOW], order.collected))
            if late.num_rows:
                hashes.append(np.unique(key_hashes(late, order.state.key)))
        yield block


def _is_in(rows: pa.RecordBatch | pa.Table, windows: Collection[str]) -> pa.Array:
    return pc.is_in(rows[WINDOW], value_set=pa.array(sorted(windows), pa.string()))


def _with_hashes(order: FoldOrder, hashes: Hashes) -> Iterator[pa.RecordBatch]:
    """Yield the rows of other windows whose keys have one of `hashes`, which are not empty, unique and ascending."""
    for block in order.others():
        looked_up = key_hashes(block, order.state.key)
        at = np.minimum(np.searchsorted(hashes, looked_up), len(hashes) - 1)
        found = block.filter(pa.array(hashes[at] == looked_up))
        if found.num_rows:
            yield found


class _Present:
    """The present rows of a table by bucket, without those from pending windows. Call `close` after use."""

    def __init__(self, side: Side, order: FoldOrder) -> None:
        self._side, self._order = side, order
        self._divided: Bucketed | None = None
        if not side.has_buckets(order.count):
            self._divided = Bucketed(order.state.key, order.count)
            self._divided.add(side.blocks())

    def bucket(self, number: int) -> pa.Table:
        """Return the rows of a bucket, without the truncate."""
        rows = self._side.bucket(number) if self._divided is None else self._divided.bucket(number)
        if rows is None:
            return self._side.columns.empty_table()
        if self._order.state.has_truncates:
            rows = rows.filter(pc.invert(_is_truncate(rows, self._order)))
        return rows.filter(pc.invert(_is_in(rows, self._order.windows)))

    def close(self) -> None:
        """Free the disk space."""
        if self._divided is not None:
            self._divided.close()


def digests_of(rows: pa.Table) -> Measured:
    """Return the digests of rows of a state, which also cover their windows. Pure."""
    names = [name for name in rows.column_names if name not in ("kafka_partition", "kafka_offset")]
    found, place = Measured.of_nothing(), f"in_{WINDOW}"
    while place in names:
        place = f"in_{place}"
    for block in rows.select(["kafka_partition", "kafka_offset", *names]).to_batches():
        # Digests of windows leave the column out, under its own name.
        found += measured(block.rename_columns([place if n == WINDOW else n for n in block.schema.names]))
    return found
