"""The changes of a window: the record of each key that counts, chosen from the window's decoded rows in this process.

The decoded rows are read twice, in blocks. The first pass reads keys and versions and chooses; the second pass copies
the chosen rows. Memory is bounded by the keys of a window, whatever the size of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.decoding.digests import measured
from platform_assets.engines.decoding.engine import files_layout
from platform_assets.engines.decoding.reading import measured_window
from platform_assets.engines.decoding.rows import aligned, by_partition, in_order
from platform_assets.engines.decoding.task import encodings
from platform_assets.engines.folding import sweeps
from platform_assets.engines.protocol import NO_ROWS, StagedFiles
from platform_assets.engines.shared.files import FileSeries, not_written
from platform_assets.errors import FilesLostError, PlatformError
from platform_assets.lake.changes_table import DELETED, GENERATION, PLACE
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.decoded_table import TOMBSTONE
from platform_assets.lake.field_ids import FieldIds
from platform_assets.lake.location import Lake, load_folder
from platform_assets.lake.rows import batches_of
from platform_assets.model import debezium
from platform_assets.model.digest import Measured
from platform_assets.model.expectations import MOST_SAMPLES, FailingRow, Figures
from platform_assets.model.state import (
    NO_KEY,
    NO_VALUE,
    NO_VERSION,
    OTHER_KEY,
    RECORD_KEY,
    SEVERAL_PARTITIONS,
    SUPERSEDED,
    TRUNCATE,
    StateDeclaration,
)
from platform_assets.model.tables import TableRef

_BLOCK_ROWS: Final = 16_384
_MOST_WAITING: Final = 1 << 20
"""Number of rows that wait until they are compared with the chosen ones."""
_PARTITION, _OFFSET = "kafka_partition", "kafka_offset"
_VERSION, _LOW, _HIGH, _RANK = "version", "low", "high", "rank"
Offsets = Mapping[int, npt.NDArray[np.int64]]
"""Sorted offsets by partition."""


@dataclass(frozen=True, slots=True)
class ChangesOrder:
    """An order to make the changes of a window from `version` of the topic's decoded table.

    The window has offsets of `partitions` partitions. `layout` has the columns of the table of changes. `window_column` is
    true if its files get a window column; `field_ids` are the ids of their columns.
    """

    topic: str
    window: str
    version: int
    generation: int
    state: StateDeclaration
    layout: pa.Schema
    load_id: str
    records_per_file: int
    window_column: bool
    field_ids: FieldIds
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class ChangesFiles:
    """Files of a window's changes that no commit refers to yet, the window's figures by name, and the digests of the
    decoded rows from which the changes were made."""

    changes: StagedFiles
    figures: Mapping[str, Figures]
    source: Measured


@dataclass(frozen=True)
class ChangesEngine:
    """Makes changes of windows of `lake` in this process, without Spark."""

    lake: Lake
    name: str = "changes"

    def write(self, order: ChangesOrder) -> ChangesFiles:
        """Write the changes of a window to new files. After a failure, delete the new files as far as possible.

        Raises FilesLostError for files of the decoded table, LakeNotWritableError and LakeUnavailableError.
        """
        source = self.lake.table(TableRef("decoded", order.topic))
        choice = Choice(order.state, order.partitions)
        for block in batches_of(source, order.window, order.version, choice.columns, rows_at_once=_BLOCK_ROWS):
            choice.add(block)
        chosen, figures = choice.finished()
        folder, below = self.lake.table(TableRef("changes", order.topic)), load_folder(order.window, order.load_id)
        layout, whole = files_layout(order.layout), NO_ROWS
        dictionaries, deltas = encodings(layout)
        series = FileSeries(
            folder.content,
            below,
            "00000",
            order.records_per_file,
            measure=measured,
            dictionaries=dictionaries,
            deltas=deltas,
            window=order.window if order.window_column else None,
            field_ids=order.field_ids,
        )
        try:
            for block in batches_of(source, order.window, order.version, rows_at_once=_BLOCK_ROWS):
                rows = in_order(block)
                whole += measured(rows)
                found = rows.filter(pa.array(_is_among(rows, chosen)))
                for part in by_partition(changes_of(found, order.state, order.generation, layout)):
                    series.add(part)
            series.close()
        except OSError as e:
            series.discard()
            raise not_written(e, str(folder)) from e
        except BaseException:
            series.discard()
            raise
        files = tuple(NewFile(f.path, f.bytes, f.rows, f.statistics) for f in series.written)
        total = sum((f.measured for f in series.written), NO_ROWS)
        return ChangesFiles(StagedFiles(below, files, total, None), figures, whole)

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `TableReader`."""
        for key in keys:
            try:
                yield key, measured_window(self.lake.table(table), key, version)
            except FilesLostError as error:
                yield key, error


@dataclass
class Choice:
    """The choice of one record for each key, from rows of `partitions` partitions, which are added in any order.

    A truncate deletes all keys, so the window's records before its last truncate do not count. The truncate itself is
    chosen too. With several partitions, truncates are refused.

    If snapshots are whole, the first row of each attempt in each partition is chosen too, and the first one that ends it:
    these tell which keys the attempt deletes.
    """

    state: StateDeclaration
    partitions: int = 1
    _chosen: pa.Table | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_rows: int = 0
    _rows: int = 0
    _refused: dict[str, Figures] = field(default_factory=dict)
    _noted: dict[str, Figures] = field(default_factory=dict)
    _truncate: tuple[int, int] | None = None
    """Partition and offset of the last truncate."""
    _of_snapshots: dict[tuple[bool, int, int], int] = field(default_factory=dict)
    """The offset of the first row of an attempt, by whether it ends it, its partition, and the attempt's log position."""

    @property
    def columns(self) -> list[str]:
        """The columns of decoded rows that the choice needs."""
        of_key = [RECORD_KEY] if self.state.has_deletes else []
        of_operation = [self.state.operation] if self.state.deletes == "debezium" else []
        of_operation += [self.state.lsn, self.state.snapshot] if self.state.has_sweeps else []
        of_version = [] if self.state.version is None else [self.state.version]
        own = (_PARTITION, _OFFSET, TOMBSTONE, *of_key, *of_operation, *self.state.key, *of_version)
        return list(dict.fromkeys(own))

    def add(self, rows: pa.RecordBatch) -> None:
        """Add decoded rows of a window."""
        self._rows += rows.num_rows
        if not self.state.has_deletes:
            rows = self._without(rows, rows[TOMBSTONE], NO_VALUE)
        if self.state.has_truncates:
            rows = self._without_truncates(rows)
        keys = key_columns(rows, self.state)
        lacking = pc.is_null(keys[0])
        for key in keys[1:]:
            lacking = pc.or_(lacking, pc.is_null(key))
        rows = self._without(rows, lacking, NO_KEY)
        if self.state.version is not None:
            rows = self._without(rows, pc.is_null(rows[self.state.version]), NO_VERSION)
        if not rows.num_rows:
            return
        if self.state.has_sweeps:
            self._note_snapshots(rows)
        self._note_other_keys(rows)
        found = {f"key{number}": key for number, key in enumerate(key_columns(rows, self.state))}
        if self.state.version is not None:
            found[_VERSION] = rows[self.state.version]
        found |= dict.fromkeys((_PARTITION, _LOW, _HIGH), rows[_PARTITION])
        self._waiting.append(pa.table({**found, _OFFSET: rows[_OFFSET]}))
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= max(_MOST_WAITING, 0 if self._chosen is None else self._chosen.num_rows):
            self._choose()

    def finished(self) -> tuple[Offsets, dict[str, Figures]]:
        """Return the positions of the chosen records, and the window's figures."""
        self._choose()
        chosen, several, places = self._chosen, Figures(), dict[int, npt.NDArray[np.int64]]()
        if chosen is not None and self._truncate is not None:
            chosen = chosen.filter(pc.greater(chosen[_OFFSET], self._truncate[1]))
        if chosen is not None:
            partitions, offsets = chosen[_PARTITION].to_numpy(), chosen[_OFFSET].to_numpy()
            places = {int(p): np.sort(offsets[partitions == p]) for p in np.unique(partitions)}
            found = chosen.filter(pc.not_equal(chosen[_LOW], chosen[_HIGH]))
            # Threads group keys in any order.
            found = found.sort_by([(_PARTITION, "ascending"), (_OFFSET, "ascending")])
            several = Figures(chosen.num_rows, found.num_rows, _samples(found))
        others = [(partition, offset) for (_, partition, _), offset in self._of_snapshots.items()]
        for partition, offset in [*others, *([] if self._truncate is None else [self._truncate])]:
            known = places.get(partition, np.zeros(0, np.int64))
            places[partition] = np.union1d(known, np.array([offset], np.int64))
        return places, self._figures(sum(map(len, places.values())), several)

    def _figures(self, chosen: int, several: Figures) -> dict[str, Figures]:
        """Return the figures that are not zero, but always the number of superseded records."""
        refused = sum(figures.failing for figures in self._refused.values())
        found = {SUPERSEDED: Figures(self._rows, self._rows - refused - chosen), SEVERAL_PARTITIONS: several}
        found |= self._noted | self._refused
        return {name: f for name, f in found.items() if f.failing or name == SUPERSEDED}

    def _without_truncates(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        truncates = truncates_of(rows, self.state)
        if self.partitions > 1 or not truncates.true_count:
            return self._without(rows, truncates, TRUNCATE)
        own = rows.filter(truncates)
        last = own[_PARTITION][0].as_py(), pc.max(own[_OFFSET]).as_py()
        self._truncate = last if self._truncate is None else max(self._truncate, last)
        return rows.filter(pc.invert(truncates))

    def _note_snapshots(self, rows: pa.RecordBatch) -> None:
        read = sweeps.snapshot_rows(rows, self.state)
        for is_end, own in ((False, read), (True, sweeps.ends(read, self.state))):
            held = pa.table({"partition": own[_PARTITION], "lsn": own[self.state.lsn], "offset": own[_OFFSET]})
            for row in held.group_by(["partition", "lsn"]).aggregate([("offset", "min")]).to_pylist():
                place = (is_end, row["partition"], row["lsn"])
                self._of_snapshots[place] = min(row["offset_min"], self._of_snapshots.get(place, row["offset_min"]))

    def _note_other_keys(self, rows: pa.RecordBatch) -> None:
        """Count the rows whose record has another key: a delete with that key would not reach them."""
        parts = record_keys(rows, self.state)
        if not parts:
            return
        differ = [pc.not_equal(part, rows[name]) for name, part in zip(self.state.key, parts, strict=True)]
        kept = pc.invert(deletes_of(rows, self.state))
        self._note(rows, pc.and_(kept, pc.fill_null(reduce(pc.or_kleene, differ), False)), OTHER_KEY, self._noted)

    def _note(self, rows: pa.RecordBatch, which: pa.BooleanArray, name: str, among: dict[str, Figures]) -> int:
        """Add the rows for which `which` is true to a figure. Return their number."""
        number: int = which.true_count
        if number:
            found = Figures(0, number, _samples(in_order(rows.filter(which).select([_PARTITION, _OFFSET]))))
            among[name] = among.get(name, Figures()) + found
        return number

    def _without(self, rows: pa.RecordBatch, refused: pa.BooleanArray, name: str) -> pa.RecordBatch:
        """Return the rows that are not refused, and count the others."""
        return rows.filter(pc.invert(refused)) if self._note(rows, refused, name, self._refused) else rows

    def _choose(self) -> None:
        if not self._waiting:
            return
        tables = self._waiting if self._chosen is None else [self._chosen, *self._waiting]
        rows = pa.concat_tables(tables).combine_chunks()
        self._waiting, self._waiting_rows = [], 0
        order = [*([_VERSION] if self.state.version is not None else []), _PARTITION, _OFFSET]
        rows = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in order]))
        keys = [name for name in rows.column_names if name.startswith("key")]
        winner = "max" if self.state.keep == "last" else "min"
        best = (
            rows.select([*keys, _LOW, _HIGH])
            .append_column(_RANK, pa.array(np.arange(rows.num_rows)))
            .group_by(keys)
            .aggregate([(_RANK, winner), (_LOW, "min"), (_HIGH, "max")])
        )
        chosen = rows.take(best[f"{_RANK}_{winner}"])
        for name, now in ((_LOW, best[f"{_LOW}_min"]), (_HIGH, best[f"{_HIGH}_max"])):
            chosen = chosen.set_column(chosen.schema.get_field_index(name), name, now)
        self._chosen = chosen


def key_columns(rows: pa.RecordBatch, state: StateDeclaration) -> list[pa.Array]:
    """Return the key columns of decoded rows. Those of a delete come from the record's key. Pure.

    A record without a key can only delete a row whose columns it contains. The record's key comes first, because an
    event may contain other values than the row's in columns outside of the replica identity.
    """
    parts, deletes = record_keys(rows, state), deletes_of(rows, state)
    if not parts:
        return [rows[name] for name in state.key]
    return [
        pc.if_else(deletes, pc.coalesce(part, rows[name]), rows[name])
        for name, part in zip(state.key, parts, strict=True)
    ]


def record_keys(rows: pa.RecordBatch, state: StateDeclaration) -> list[pa.Array]:
    """Return the key columns according to the keys of the records; none if the state does not use these, or nothing else. Pure."""
    if not state.has_deletes or RECORD_KEY in state.key:
        return []
    key = rows[RECORD_KEY]
    return [pc.struct_field(key, name) if pa.types.is_struct(key.type) else key for name in state.key]


def deletes_of(rows: pa.RecordBatch, state: StateDeclaration) -> pa.BooleanArray:
    """Return, for each decoded row, whether it deletes its key or, as a truncate, all keys. Pure."""
    if not state.has_truncates:
        return rows[TOMBSTONE]
    deletes = pc.is_in(rows[state.operation], value_set=pa.array([debezium.DELETE, debezium.TRUNCATE]))
    return pc.or_(rows[TOMBSTONE], deletes)


def truncates_of(rows: pa.RecordBatch, state: StateDeclaration) -> pa.BooleanArray:
    """Return, for each decoded row, whether it deletes all keys. Pure."""
    if not state.has_truncates:
        return pa.repeat(pa.scalar(False), rows.num_rows)
    return pc.is_in(rows[state.operation], value_set=pa.array([debezium.TRUNCATE]))


def changes_of(rows: pa.RecordBatch, state: StateDeclaration, generation: int, layout: pa.Schema) -> pa.RecordBatch:
    """Return decoded rows as changes with the columns `layout`. Deletes only have a key, and truncates not even that. Pure."""
    deletes, keys = deletes_of(rows, state), key_columns(rows, state)
    truncates = truncates_of(rows, state)
    if truncates.true_count:
        named = pc.if_else(truncates, None, pa.array(np.arange(rows.num_rows)))
        keys = [key.take(named) for key in keys]
    own: dict[str, Any] = {
        GENERATION: pa.repeat(pa.scalar(generation, pa.int32()), rows.num_rows),
        DELETED: deletes,
        "topic_id": rows["topic_id"].dictionary_encode(),
        **dict(zip(state.key, keys, strict=True)),
    }
    held = {*rows.schema.names} - set(own)
    values = _without_values(rows, [name for name in held if name not in PLACE], deletes)
    columns = [
        aligned(own[f.name] if f.name in own else values[f.name], f.type)
        if f.name in own or f.name in held
        else pa.nulls(rows.num_rows, f.type)
        for f in layout
    ]
    return pa.RecordBatch.from_arrays(columns, schema=layout)


def _without_values(rows: pa.RecordBatch, names: Sequence[str], deletes: pa.BooleanArray) -> dict[str, pa.Array]:
    """Return all columns of rows, with nulls in the columns `names` of rows that are deletes. An event that deletes a
    row may contain its values before, in part."""
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    if pc.and_(deletes, pc.invert(rows[TOMBSTONE])).true_count:
        kept = pc.if_else(deletes, None, pa.array(np.arange(rows.num_rows)))
        found |= {name: found[name].take(kept) for name in names}
    return found


def _is_among(rows: pa.RecordBatch, chosen: Offsets) -> npt.NDArray[np.bool_]:
    partitions, offsets = rows[_PARTITION].to_numpy(), rows[_OFFSET].to_numpy()
    found = np.zeros(rows.num_rows, bool)
    for partition in np.unique(partitions):
        wanted = chosen.get(int(partition))
        if wanted is not None and len(wanted):
            own = partitions == partition
            places = np.minimum(np.searchsorted(wanted, offsets[own]), len(wanted) - 1)
            found[own] = wanted[places] == offsets[own]
    return found


def _samples(rows: pa.RecordBatch | pa.Table) -> tuple[FailingRow, ...]:
    first = rows.slice(0, MOST_SAMPLES)
    places = zip(first[_PARTITION].to_pylist(), first[_OFFSET].to_pylist(), strict=True)
    return tuple(FailingRow(partition, offset, None) for partition, offset in sorted(places))
