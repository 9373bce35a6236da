"""The latest row of each key among decoded rows, restricted to transactions that a snapshot includes, sorted by key.

Rows are sorted outside of memory: sorted runs go to temporary files, which are then merged. Memory depends on the
number of runs, not on the number of rows.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.postgres.database import Snapshot
from platform_assets.engines.changes import key_columns
from platform_assets.lake import holdings, state_table
from platform_assets.lake.decoded_table import TOMBSTONE
from platform_assets.lake.location import Folder
from platform_assets.lake.rows import Opened
from platform_assets.model import debezium
from platform_assets.model.debezium import DELETE, READ, TRUNCATE
from platform_assets.model.state import RECORD_KEY, StateDeclaration

_BLOCK_ROWS: Final = 1 << 15
_BLOCK_BYTES: Final = 16 << 20
_RUN_BYTES: Final = 64 << 20
_MERGED_ROWS: Final = 1 << 10
_MERGED_BYTES: Final = 1 << 20
"""Number and size of the rows of a batch in a file. A batch of each file that is merged is in memory."""
_MERGED_RUNS: Final = 64
"""Number of runs that are merged at once, and so of open files."""
_MOST_ROWS: Final = 1_000
_MOST_BYTES: Final = 16 << 20
"""Number and size of the rows of one key in memory that may be the one in the snapshot."""
_MOST_TRUNCATES: Final = 10_000
"""Number of truncates in memory for which it is unknown whether the snapshot includes them."""
_ROLE: Final = "\0role"
_SEEN, _LATER, _TOMBSTONE, _UNPLACED, _AMBIGUOUS = 0, 1, 2, 3, 4
"""An event that the snapshot includes, one that it does not, and a record without a value. Last, events for which it is
unknown whether the snapshot includes them: because they name no transaction, or because transaction ids began again."""
_RANK, _PARTITION, _OFFSET = "\0rank", "kafka_partition", "kafka_offset"
_PLACE: Final = (_RANK, _PARTITION, _OFFSET)
Place = tuple[int, int, int]
"""The rank of a window, a partition and an offset: the order of the records of a key."""
Key = tuple[str | None, ...]
"""The texts of a key's columns. None is null."""
_Row = tuple[Key, Place, dict[str, Any], int]
"""A key, a place, the row, and its size in bytes: the mean of its batch."""
_NO_PLACE: Final = (-1, -1, -1)
"""Comes before all places."""
Cause = Literal["unplaced", "ambiguous", "tombstone"]
"""Why the row of a key is unknown. unplaced: an event after its last one that is known to be in the snapshot names no
transaction; ambiguous: the transaction id of such an event may be that of a running transaction, or be from before ids
began again; tombstone: a tombstone follows the last one that is known to be in the snapshot, without an event that tells of
the delete and its transaction."""
_UNKNOWN: Final[dict[int, Cause]] = {_UNPLACED: "unplaced", _AMBIGUOUS: "ambiguous"}
"""The causes of events for which it is unknown whether the snapshot includes them, by role."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The row of a key in the snapshot. If `cause` is given, it is one of `rows`, in the order of their records; else it is
    the only one. None is no row. Unless `are_all`, there are too many, and some are left out: rows before the last one, and
    truncates, which leave no row."""

    rows: tuple[dict[str, Any] | None, ...]
    cause: Cause | None = None
    are_all: bool = True


@dataclass(slots=True)
class _Held:
    """The rows that the runs have of a key: the last one that is `seen`, and, after it, `others` up to the place of the first
    `later` one. Unless `are_all`, there are too many others, and those before the last one are left out: more than `_MOST_ROWS`,
    or larger than `_MOST_BYTES`. `others_bytes` is their size."""

    key: Key
    seen: _Row | None = None
    others: list[_Row] = field(default_factory=list)
    others_bytes: int = 0
    later: Place | None = None
    are_all: bool = True


def order_of(key: Key) -> tuple[tuple[bool, str], ...]:
    """Return what sorts keys like PostgreSQL: by the bytes of their texts, null last."""
    return tuple((text is None, text or "") for text in key)


def _order(row: _Row) -> tuple[tuple[tuple[bool, str], ...], Place]:
    return order_of(row[0]), row[1]


def _has_key(schema: pa.Schema, key: Collection[str]) -> bool:
    """Return True if the column of the record's key has these columns of the row, or is the only one, with the same types."""
    if RECORD_KEY not in schema.names:
        return False
    kind = schema.field(RECORD_KEY).type
    if not pa.types.is_struct(kind):
        return [schema.field(name).type for name in key] == [kind]
    return all(kind.get_field_index(n) >= 0 and kind.field(n).type == schema.field(n).type for n in key)


@dataclass
class LatestRows:
    """The latest rows of a decoded table, sorted in runs of `run_bytes` in memory.

    `windows` are the topic's windows in their order. `facts` maps the facts of `model/debezium` to columns. `key` maps
    the columns of the key to the functions that give the texts of their values. `later` counts rows of transactions that
    the snapshot does not include, and `later_reads` rows that a snapshot of the connector read and that the database's
    snapshot does not include, or may not include.

    `_truncated` is the place of the last truncate that the snapshot includes, and `_truncated_perhaps` are, in their order,
    the last `_MOST_TRUNCATES` truncates for which that is unknown. Those that are left out are up to `_left_out`.
    """

    table: Folder
    windows: Sequence[str]
    facts: Mapping[str, str]
    key: Mapping[str, Callable[[Any], str]]
    columns: Sequence[str]
    snapshot: Snapshot
    temporary: Path
    run_bytes: int = _RUN_BYTES
    later: int = 0
    later_reads: int = 0
    _truncated: Place = _NO_PLACE
    _truncated_perhaps: list[tuple[Place, Cause]] = field(default_factory=list)
    _left_out: Place = _NO_PLACE
    _runs: list[Path] = field(default_factory=list)
    _made: int = 0
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0

    def sorted(self) -> Iterator[tuple[Key, Latest]]:
        """Yield the key, as texts, and the row of each key that has one or may have one, sorted by the keys' texts.

        A delete ends a key, as does a tombstone, and a truncate all keys whose latest row comes before it. Raises
        FilesLostError.
        """
        for block in self._blocks():
            self._add(block)
        self._end_run()
        while len(self._runs) > _MERGED_RUNS:
            first, self._runs = self._runs[:_MERGED_RUNS], self._runs[_MERGED_RUNS:]
            self._runs.append(self._merged(first))
        for held in self._held():
            found = self._found(held)
            if not found.are_all or any(row is not None for row in found.rows):
                yield held.key, found

    def _found(self, held: _Held) -> Latest:
        """Return the row of a key. Pure."""
        operation, start = self.facts[debezium.OPERATION], _NO_PLACE
        row: dict[str, Any] | None = None
        if held.seen is not None:
            _, start, last, _ = held.seen
            row = last if last[operation] != DELETE and start > self._truncated else None
        floor = max(start, self._truncated)
        found = list[tuple[Place, dict[str, Any] | None, Cause]]()
        # What follows an event of a later transaction belongs to a later transaction too. Of the truncates before it, the
        # last one counts: none leaves a row.
        perhaps = self._truncated_perhaps
        before = len(perhaps) if held.later is None else bisect_left(perhaps, held.later, key=itemgetter(0))
        if before and (truncate := perhaps[before - 1])[0] > floor:
            found.append((truncate[0], None, truncate[1]))
        for _, place, other, _ in held.others:
            if place > floor:
                cause = _UNKNOWN.get(other[_ROLE])
                is_row = cause is not None and other[operation] != DELETE
                found.append((place, other if is_row else None, cause or "tombstone"))
        found.sort(key=itemgetter(0))
        causes = {cause for _, _, cause in found}
        # A truncate before the later event may be among those that are left out.
        are_all = (held.are_all or held.others[-1][1] <= floor) and (before > 0 or self._left_out <= floor)
        return Latest(
            (row, *(each for _, each, _ in found)),
            next((cause for cause in get_args(Cause) if cause in causes), None),
            are_all,
        )

    @property
    def _key_names(self) -> list[str]:
        return [f"\0key{number}" for number in range(len(self.key))]

    def _blocks(self) -> Iterator[pa.RecordBatch]:
        """Yield the table's rows, once each, with the rank of their window."""
        opened = Opened.at(self.table)
        held: dict[str, list[str]] = {}
        for window, files in opened.files.items():
            for path in files.paths:
                held.setdefault(path, []).append(window)
        schema = pa.schema(self.table.delta().schema().to_arrow())
        names = dict.fromkeys([_PARTITION, _OFFSET, *self.facts.values(), *self.key, *self.columns])
        if _has_key(schema, self.key):
            names |= dict.fromkeys([RECORD_KEY, TOMBSTONE])
        wanted = pa.schema([*(schema.field(name) for name in names), pa.field(holdings.WINDOW, pa.string())])
        known = pa.array(self.windows, pa.string())
        for path, windows in held.items():
            for block in state_table.blocks(self.table, path, wanted, _BLOCK_ROWS, _BLOCK_BYTES):
                # In a partitioned table, only the log names a file's window.
                window = pc.fill_null(block[holdings.WINDOW], windows[0])
                rank = pc.index_in(window, value_set=known)
                yield block.append_column(_RANK, rank).filter(pc.is_valid(rank))

    def _add(self, block: pa.RecordBatch) -> None:
        is_event = pc.is_valid(block[self.facts[debezium.OPERATION]])
        events, others = block.filter(is_event), block.filter(pc.invert(is_event))
        roles, is_truncate = self._roles(events), pc.equal(events[self.facts[debezium.OPERATION]], TRUNCATE)
        truncates = events.filter(is_truncate)
        places = zip(*(truncates[name].to_pylist() for name in _PLACE), strict=True)
        for place, role in zip(places, roles.filter(is_truncate).to_pylist(), strict=True):
            if role == _SEEN:
                self._truncated = max(self._truncated, place)
            elif role in _UNKNOWN:
                insort(self._truncated_perhaps, (place, _UNKNOWN[role]))
                if len(self._truncated_perhaps) > _MOST_TRUNCATES:
                    self._left_out = max(self._left_out, self._truncated_perhaps.pop(0)[0])
        is_row = pc.invert(is_truncate)
        rows = events.filter(is_row)
        self._wait(rows, self._keys(rows), roles.filter(is_row))
        if RECORD_KEY in others.schema.names:
            others = others.filter(pc.is_valid(others[RECORD_KEY]))
            keys = others[RECORD_KEY]
            if not pa.types.is_struct(keys.type):
                keys = pa.StructArray.from_arrays([keys], [*self.key])
            self._wait(others, keys, pa.repeat(_TOMBSTONE, others.num_rows))

    def _keys(self, events: pa.RecordBatch) -> pa.StructArray:
        """Return the columns of the key, like the state: those of a delete come from the record's key, if it has them."""
        if RECORD_KEY not in events.schema.names:
            return events.to_struct_array()
        state = StateDeclaration((*self.key,), deletes="debezium", operation=self.facts[debezium.OPERATION])
        return pa.StructArray.from_arrays(key_columns(events, state), [*self.key])

    def _wait(self, rows: pa.RecordBatch, keys: pa.StructArray, roles: pa.Array) -> None:
        """Add rows to those that wait for the end of the run. `keys` has the columns of the key, `roles` the role of each row."""
        if not rows.num_rows:
            return
        table = pa.Table.from_batches([rows.select([*_PLACE, *self.columns, self.facts[debezium.OPERATION]])])
        for name, (column, of) in zip(self._key_names, self.key.items(), strict=True):
            texts = [None if value is None else of(value) for value in keys.field(column).to_pylist()]
            table = table.append_column(name, pa.array(texts, pa.string()))
        table = table.append_column(_ROLE, roles.cast(pa.int8()))
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= self.run_bytes:
            self._end_run()

    def _roles(self, block: pa.RecordBatch) -> pa.Array:
        ids, lsns = block[self.facts[debezium.TX_ID]], block[self.facts[debezium.LSN]]
        is_read = np.asarray(pc.fill_null(pc.equal(block[self.facts[debezium.OPERATION]], READ), False))
        has_id = np.asarray(pc.is_valid(ids))
        numbers, places = (
            np.asarray(pc.fill_null(ids, 0)).astype(np.int64), np.asarray(pc.fill_null(lsns, -1)).astype(np.int64),
        )  # fmt: skip
        is_doubted = has_id & self.snapshot.doubts(numbers, places)
        # A row of the connector's snapshot may lack a transaction: its position is the one of that snapshot.
        seen = np.where(has_id, self.snapshot.sees(numbers, places), places <= self.snapshot.before)
        is_placed = has_id | (is_read & (places >= 0))
        is_later = is_placed & ~seen
        self.later += int((is_later & ~is_doubted).sum())
        self.later_reads += int((is_later & is_read).sum())
        roles = np.select([is_doubted, ~is_placed, seen], [_AMBIGUOUS, _UNPLACED, _SEEN], _LATER)
        return pa.array(roles, pa.int8())

    def _end_run(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        rows = rows.sort_by([(name, "ascending") for name in (*self._key_names, *_PLACE)]).combine_chunks()
        starts = np.ones(rows.num_rows, bool)
        same = np.ones(max(rows.num_rows - 1, 0), bool)
        for name in self._key_names:
            later, earlier = rows[name][1:], rows[name][:-1]
            both_null = pc.and_(pc.is_null(later), pc.is_null(earlier))
            same &= np.asarray(pc.or_(pc.fill_null(pc.equal(later, earlier), False), both_null))
        starts[1:] = ~same
        # Of each key, the last event that is seen, and all rows after it.
        group = np.cumsum(starts) - 1
        places = np.arange(rows.num_rows)
        newest = np.flatnonzero(starts)
        seen = np.asarray(rows[_ROLE]) == _SEEN
        np.maximum.at(newest, group[seen], places[seen])
        kept = places >= newest[group]
        rows = rows.select([*self._key_names, *_PLACE, _ROLE, *self.columns, self.facts[debezium.OPERATION]])
        path = self._new_run()
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as writer:
            _write(writer, rows.filter(pa.array(kept)))
        self._runs.append(path)

    def _new_run(self) -> Path:
        self._made += 1
        return self.temporary / f"run{self._made}"

    def _held(self) -> Iterator[_Held]:
        """Yield what the runs have of each key, sorted by key."""
        for key, rows in groupby(self._sorted(self._runs), key=itemgetter(0)):
            held = _Held(key)
            for row in rows:
                role = row[2][_ROLE]
                if role == _SEEN:
                    held = _Held(key, row)
                elif held.later is None and role == _LATER:
                    held.later = row[1]
                elif held.later is None:
                    if held.others and (len(held.others) == _MOST_ROWS or held.others_bytes + row[3] > _MOST_BYTES):
                        held.others_bytes -= held.others.pop()[3]
                        held.are_all = False
                    held.others.append(row)
                    held.others_bytes += row[3]
            yield held

    def _sorted(self, runs: Iterable[Path]) -> Iterator[_Row]:
        """Yield the rows of these runs, sorted by key and place."""
        return heapq.merge(*map(self._rows_of, runs), key=_order)

    def _merged(self, runs: Sequence[Path]) -> Path:
        """Merge runs into a new one, and delete them."""
        with pa.OSFile(str(runs[0]), "rb") as source, pa.ipc.open_stream(source) as reader:
            schema = reader.schema
        path, rows = self._new_run(), self._sorted(runs)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for batch in _batches(rows):
                names = (*self._key_names, *_PLACE)
                dicts = [row | dict(zip(names, (*key, *place), strict=True)) for key, place, row, _ in batch]
                _write(writer, pa.Table.from_pylist(dicts, schema))
        for each in runs:
            each.unlink()
        return path

    def _rows_of(self, path: Path) -> Iterator[_Row]:
        names = [_ROLE, *self.columns, self.facts[debezium.OPERATION]]
        with pa.OSFile(str(path), "rb") as source, pa.ipc.open_stream(source) as reader:
            for batch in reader:
                keys = zip(*(batch[name].to_pylist() for name in self._key_names), strict=True)
                places = zip(*(batch[name].to_pylist() for name in _PLACE), strict=True)
                rows = batch.select(names).to_pylist()
                size = batch.nbytes // max(batch.num_rows, 1)
                yield from zip(keys, places, rows, repeat(size, batch.num_rows), strict=True)


def _batches(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Divide rows into batches."""
    batch, size = list[_Row](), 0
    for row in rows:
        if batch and (len(batch) == _MERGED_ROWS or size + row[3] > _MERGED_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += row[3]
    if batch:
        yield batch


def _write(writer: pa.RecordBatchStreamWriter, rows: pa.Table) -> None:
    """Write rows in batches. Wide rows may be next to each other, so a batch that is too large is halved."""
    for start in range(0, rows.num_rows, _MERGED_ROWS):
        waiting = [rows.slice(start, _MERGED_ROWS)]
        while waiting:
            part = waiting.pop()
            if part.num_rows > 1 and part.nbytes > _MERGED_BYTES:
                half = part.num_rows // 2
                waiting += [part.slice(half), part.slice(0, half)]
            else:
                writer.write_table(part)
