"""Conversion of raw records to rows of two tables, one block at a time. Each record becomes one row in one of the two
tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.decoder import DEAD_LETTER_FIELDS, Decoded, Decoder, ReadsHeaders, decode_each
from platform_assets.decoding.maps import entries_of, entries_type, map_of
from platform_assets.model.decoding import Repair

_OWN: Final = ("topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp")
RAW_COLUMNS: Final = (*_OWN, "kafka_timestamp_type", "key", "value", "headers")
"""Columns of raw records. Dead letters have all of these columns."""


class RowMaker:
    """Builder of rows, with the decoder for the value and, if keys are decoded, the decoder for the key.

    `layout` and `dead_layout` are the columns of decoded rows and of dead letters. `declaration` is the digest that
    dead letters record. `repairs` are the repairs for the records' window. A dead letter contains the value as it was
    sent, even if there is a repair for this value.
    """

    def __init__(
        self,
        value: Decoder,
        key: Decoder | None,
        layout: pa.Schema,
        dead_layout: pa.Schema,
        declaration: str,
        repairs: Sequence[Repair] = (),
    ) -> None:
        self._value, self._key = value, key
        self._layout, self._dead_layout, self._declaration = layout, dead_layout, declaration
        self._repairs = {(r.partition, r.offset): r.content for r in repairs}

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns among `RAW_COLUMNS` that are read for every record."""
        sides = ("value",) if self._key is None else ("key", "value")
        headers = any(isinstance(decoder, ReadsHeaders) for decoder in (self._value, self._key))
        return (*_OWN, *sides, *(("headers",) if headers else ()))

    def rows(
        self, records: pa.RecordBatch, whole: Callable[[], pa.RecordBatch] | None = None
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the decoded rows and the dead letters of `records`, which have the columns `needed`. Decoded rows and
        dead letters keep the order of `records`.

        `whole` returns the same records with `RAW_COLUMNS`, and is called if some of the records are dead letters.
        Without `whole`, `records` must have all of these columns.
        """
        values = self._repaired(records)
        value = _side(self._value, values, records, "value")
        key = None if self._key is None else _side(self._key, _binary(records["key"]), records, "key")
        dead, sides = _all_dead(value, key)
        all_columns = whole() if whole is not None and dead.num_rows else records
        return self._decoded(records, values.is_null(), value, key, dead), self._dead(all_columns, dead, sides)

    def _decoded(
        self, records: pa.RecordBatch, tombstones: pa.Array, value: Decoded, key: Decoded | None, dead: pa.RecordBatch
    ) -> pa.RecordBatch:
        found: dict[str, pa.Array] = {name: records[name] for name in _OWN}
        found["tombstone"] = tombstones
        found |= {name: value.columns[name] for name in value.columns.schema.names}
        found["rescued"] = value.rescued
        if key is not None:
            found["key"] = _key_column(records["key"], key)
            found["key_rescued"] = key.rescued
        columns = [aligned(found[field.name], field.type) for field in self._layout]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._layout)
        if not dead.num_rows:
            return rows
        alive = np.ones(records.num_rows, bool)
        alive[dead["row"].to_numpy()] = False
        return rows.filter(pa.array(alive))

    def _repaired(self, records: pa.RecordBatch) -> pa.BinaryArray:
        """Return the values to decode, with repairs applied."""
        values = _binary(records["value"])
        if not self._repairs:
            return values
        places = zip(records["kafka_partition"].to_pylist(), records["kafka_offset"].to_pylist(), strict=True)
        found = [self._repairs.get(place) for place in places]
        mask = pa.array([value is not None for value in found])
        return pc.replace_with_mask(values, mask, pa.array([v for v in found if v is not None], pa.binary()))

    def _dead(self, records: pa.RecordBatch, dead: pa.RecordBatch, sides: pa.Array) -> pa.RecordBatch:
        if not dead.num_rows:
            return pa.RecordBatch.from_pylist([], self._dead_layout)
        whole = records.take(dead["row"])
        found = {name: whole[name] for name in RAW_COLUMNS}
        found |= {name: dead[name] for name in ("reason", "place", "detail")} | {"side": sides}
        found["declaration"] = pa.repeat(pa.scalar(self._declaration, pa.string()), dead.num_rows)
        columns = [aligned(found[field.name], field.type) for field in self._dead_layout]
        return pa.RecordBatch.from_arrays(columns, schema=self._dead_layout)


def _side(decoder: Decoder, values: pa.BinaryArray, records: pa.RecordBatch, side: Literal["value", "key"]) -> Decoded:
    if isinstance(decoder, ReadsHeaders):
        read = partial(decoder.decode_records, side=side)
        return decode_each(decoder.fields, read, values, records["headers"])
    return decode_each(decoder.fields, decoder.decode, values)


def in_order(records: pa.RecordBatch) -> pa.RecordBatch:
    """Sort records by partition and offset. Return the same records if they are already sorted."""
    order = order_of(records)
    return records if order is None else records.take(order)


def order_of(records: pa.RecordBatch) -> pa.Array | None:
    """Return the indices that sort rows by partition and offset, or None if the rows are already sorted."""
    partitions, offsets = records["kafka_partition"].to_numpy(), records["kafka_offset"].to_numpy()
    steps, ahead = np.diff(partitions), np.diff(offsets)
    if bool(np.all((steps > 0) | ((steps == 0) & (ahead >= 0)))):
        return None
    return pa.array(np.lexsort((offsets, partitions)))


def by_partition(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split the rows `in_order` into one part for each partition, and yield the parts."""
    if not rows.num_rows:
        return
    partitions: npt.NDArray[np.int32] = rows["kafka_partition"].to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), rows.num_rows]
    for start, end in itertools.pairwise(edges):
        yield rows.slice(start, end - start)


def aligned(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast an array to a type that is wider, or that differs only in names of elements, in nullability or in the order
    of fields."""
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        fields = [aligned(array.field(array.type.get_field_index(f.name)), f.type) for f in kind]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        elements = aligned(array.values, kind.value_type)
        buffers = array.buffers()[:2]
        return pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, [elements])
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return map_of(aligned(entries_of(array), entries_type(kind)), kind)
    return array.cast(kind)


def _all_dead(value: Decoded, key: Decoded | None) -> tuple[pa.RecordBatch, pa.Array]:
    """Return the dead letters of a block, in ascending order of rows, and the side of each dead letter. If both sides
    of a record fail, return the dead letter for the value."""
    dead = value.dead
    sides = pa.repeat(pa.scalar("value"), dead.num_rows)
    if key is None or not key.dead.num_rows:
        return dead, sides
    more = key.dead.filter(pc.invert(pc.is_in(key.dead["row"], dead["row"])))
    both = pa.Table.from_batches([dead, more], DEAD_LETTER_FIELDS).combine_chunks()
    all_sides = pa.concat_arrays([sides, pa.repeat(pa.scalar("key"), more.num_rows)])
    order = pc.sort_indices(both["row"])
    (batch,) = both.take(order).combine_chunks().to_batches()
    return batch, all_sides.take(order)


def _key_column(keys: pa.Array, key: Decoded) -> pa.Array:
    columns = key.columns
    if columns.schema.names == ["value"]:
        return columns.column(0)
    fields = [f.with_nullable(True) for f in columns.schema]
    mask = keys.is_null() if keys.null_count else None
    return pa.StructArray.from_arrays(columns.columns, fields=fields, mask=mask)


def _binary(values: pa.Array) -> pa.BinaryArray:
    return values if values.type == pa.binary() else values.cast(pa.binary())
