"""The fast path: kernels turn a block of values into columns, without Python code for each value.

The fast path decides values that are clearly correct, and marks the other rows. It never rejects a value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.scalars import EARLIEST, LATEST
from platform_assets.decoding.maps import repeated_keys
from platform_assets.decoding.pieces import Marks
from platform_assets.kernels.json_objects import (
    ABSENT,
    DAY,
    EXTRA_SIZE,
    FLAG,
    INSTANT,
    LIST,
    MAP,
    MOST_EXTRAS,
    MOST_PENDING,
    NULL,
    OBJECT,
    PENDING,
    REAL,
    TEXT,
    WHOLE,
    find_fields,
)
from platform_assets.kernels.json_scalars import PADDING
from platform_assets.kernels.json_texts import (
    gather_base64,
    gather_extras,
    gather_texts,
    is_ascii,
    split_lists,
    split_maps,
    texts_size,
)
from platform_assets.kernels.json_times import LENIENT, OR_UTC, STRICT
from platform_assets.kernels.text import mark_invalid_utf8

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_WHOLES: Final = (WHOLE, FLAG, DAY, INSTANT)
_LONGS: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The fields of one object or, if `bare` is true, of one value, in the form that `find_fields` needs.

    `inner` contains the programs for nested objects, for the elements of lists and for the values of maps. `keys`
    contains the programs for the keys of maps.

    `slots` contains the index of each field among the columns with the same kind of storage (numbers, doubles, places).
    `columns` contains the number of columns for each kind of storage.
    """

    fields: tuple[pa.Field, ...]
    bare: bool
    names: npt.NDArray[np.uint8]
    name_starts: Ints
    name_sizes: Ints
    kinds: Ints
    slots: Ints
    scales: Ints
    required: Ints
    lows: Longs
    highs: Longs
    columns: tuple[int, int, int]
    inner: dict[int, Program]
    keys: dict[int, Program]

    @property
    def padding(self) -> int:
        """Number of bytes that must be readable past the end of the data."""
        return (
            PADDING
            + max((program.padding for program in (*self.inner.values(), *self.keys.values())), default=0)
            + int(self.name_sizes.max())
        )

    @property
    def followers(self) -> int:
        """Required number of entries in the scratch memory."""
        return len(self.fields) + MOST_EXTRAS + 2


@lru_cache(maxsize=64)
def program_of(dialect: Dialect) -> Program:
    """Return the program that reads the columns of a value."""
    return _program(tuple(dialect.fields), dialect, bare=False)


def _program(fields: tuple[pa.Field, ...], dialect: Dialect, *, bare: bool) -> Program:
    names = [json.dumps(field.name, ensure_ascii=False).encode() + b":" for field in fields]
    starts = np.cumsum([0, *(len(name) for name in names)])
    declared = [_declared(field.type, dialect) for field in fields]
    kinds = [kind for kind, _, _, _ in declared]
    slots, columns = [], [0, 0, 0]
    for kind in kinds:
        sort = 0 if kind in _WHOLES else 1 if kind == REAL else 2
        slots.append(columns[sort])
        columns[sort] += 1
    inner, keys = {}, {}
    for index, field in enumerate(fields):
        if kinds[index] == OBJECT:
            inside = tuple(field.type.field(i) for i in range(field.type.num_fields))
            inner[index] = _program(inside, dialect, bare=False)
        elif kinds[index] == LIST:
            inner[index] = _program((field.type.value_field,), dialect, bare=True)
        elif kinds[index] == MAP:
            inner[index] = _program((field.type.item_field,), dialect, bare=True)
            keys[index] = _program((field.type.key_field,), dialect, bare=True)
    return Program(
        fields,
        bare,
        np.frombuffer(b"".join(names) + bytes(8), np.uint8),
        starts[:-1].astype(np.int32),
        np.diff(starts).astype(np.int32),
        np.array(kinds, np.int32),
        np.array(slots, np.int32),
        np.array([scale for _, scale, _, _ in declared], np.int32),
        np.array([not field.nullable for field in fields], np.int32),
        np.array([low for _, _, low, _ in declared], np.int64),
        np.array([high for _, _, _, high in declared], np.int64),
        (columns[0], columns[1], columns[2]),
        inner,
        keys,
    )


def _declared(kind: Any, dialect: Dialect) -> tuple[int, int, int, int]:
    """Return four numbers for a type: the kind of field, the power of ten that turns a value into a whole number, and
    the lower and upper bound."""
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return WHOLE, 0, -bound, bound - 1
    if pa.types.is_decimal(kind):
        most = min(10**kind.precision - 1, int(_LONGS.max))
        return WHOLE, kind.scale, -most, most
    if pa.types.is_timestamp(kind):
        if dialect.decimals is None:
            return INSTANT, 0, EARLIEST, LATEST
        return WHOLE, dialect.decimals, EARLIEST, LATEST
    if pa.types.is_struct(kind):
        return OBJECT, 0, 0, 0
    if pa.types.is_list(kind):
        return LIST, 0, 0, 0
    if pa.types.is_map(kind):
        return MAP, 0, 0, 0
    others = {
        pa.bool_(): FLAG,
        pa.float32(): REAL,
        pa.float64(): REAL,
        pa.string(): TEXT,
        pa.date32(): DAY,
        pa.binary(): TEXT,
    }
    return others[kind], 0, int(_LONGS.min), int(_LONGS.max)


Bytes = npt.NDArray[np.uint8]


_FORMS: Final[Mapping[str, int]] = MappingProxyType(
    {"iso8601": STRICT, "iso8601_or_utc": OR_UTC, "iso8601_lenient": LENIENT}
)
_SOME_EXTRAS: Final = 1_024


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    """Columns of a block. Rows that are `undecided` are null in all columns and in `rescued`."""

    columns: list[Any]
    rescued: Any
    undecided: Marks


@dataclass(frozen=True, slots=True)
class Spans:
    """Values `data[starts[i]:ends[i]]`; a value is null if its start is NULL. A few bytes of `data` past the last value
    must be readable."""

    data: Bytes
    starts: Ints
    ends: Ints


def find(values: pa.BinaryArray, dialect: Dialect) -> DecodedBlock:
    """Decode the clearly correct values of a block."""
    program = program_of(dialect)
    spans = spans_of(values, program.padding)
    undecided = np.zeros(len(values), np.uint8)
    undecided[spans.ends - spans.starts > dialect.max_bytes] = 1
    if not is_ascii(spans.data, 0, spans.data.size - program.padding):
        mark_invalid_utf8(spans.data, spans.starts, spans.ends - spans.starts, undecided)
    block = Block(program, spans, dialect, undecided, extras=True)
    columns = block.columns()
    rescued = rescued_of(block.spans.data, block.extras, block.extra_count, undecided)
    return DecodedBlock(columns, rescued, undecided.view(np.bool_))


def spans_of(values: pa.BinaryArray, padding: int) -> Spans:
    """Return the values of a block, copied one after another and followed by padding, because reading past the end of
    an Arrow buffer is not allowed."""
    _, offset_buffer, data_buffer = values.buffers()
    count = len(values)
    offsets = np.frombuffer(offset_buffer, np.int32, count + 1, 4 * values.offset) if count else np.zeros(1, np.int32)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = np.empty(end - begin + padding, np.uint8)
    if end > begin:
        data[: end - begin] = np.frombuffer(data_buffer, np.uint8, end - begin, begin)
    data[end - begin :] = 0
    starts, ends = offsets[:-1] - np.int32(begin), offsets[1:] - np.int32(begin)
    if values.null_count:
        starts = np.where(values.is_null().to_numpy(zero_copy_only=False), np.int32(NULL), starts)
        ends = np.where(starts == NULL, np.int32(NULL), ends)
    return Spans(data, starts, ends)


class Block:
    """One pass over objects, or over bare values, and the resulting columns.

    `undecided` is set to 1 for each undecided row. If `extras` is true, fields that the schema lacks are kept in
    `extras`; if false, rows with such fields are undecided; if it is "ignored", such fields are ignored.
    """

    def __init__(
        self,
        program: Program,
        spans: Spans,
        dialect: Dialect,
        undecided: Bytes,
        *,
        extras: bool | Literal["ignored"],
    ) -> None:
        self.program, self.dialect, self.undecided = program, dialect, undecided
        self.rows = rows = spans.starts.size
        if undecided.any():  # these rows need no further work
            spans = Spans(spans.data, np.where(undecided, np.int32(NULL), spans.starts), spans.ends)
        self.spans = spans
        fields, (wholes, reals, placed) = len(program.fields), program.columns
        self.wholes = np.empty(wholes * rows, np.int64)
        self.reals = np.empty(reals * rows, np.float64)
        self.places, self.sizes = np.empty(placed * rows, np.int32), np.empty(placed * rows, np.int32)
        self.states = np.empty(fields * rows, np.uint8)
        self.tallies = np.empty(2 * fields, np.int32)
        room = 0 if not extras else 1 if extras == "ignored" else rows + _SOME_EXTRAS
        self.extras = np.empty(EXTRA_SIZE * room, np.int32)
        self.stack = np.empty(dialect.max_depth, np.uint8)
        self.extra_count = self._find()
        if extras is True and self.extra_count > room:
            self.extras = np.empty(EXTRA_SIZE * self.extra_count, np.int32)
            self._find()

    def _find(self) -> int:
        program, spans, fields = self.program, self.spans, len(self.program.fields)
        return int(
            find_fields(
                spans.data,
                spans.starts,
                spans.ends,
                int(program.bare),
                self.dialect.max_depth - (not program.bare),
                _FORMS.get(self.dialect.timestamps, STRICT),
                program.names,
                program.name_starts,
                program.name_sizes,
                program.kinds,
                program.slots,
                program.scales,
                program.required,
                program.lows,
                program.highs,
                self.wholes,
                self.reals,
                self.places,
                self.sizes,
                self.states,
                self.tallies,
                self.undecided,
                self.extras,
                np.empty(program.followers, np.int32),
                np.empty(fields, np.int32),
                np.empty(EXTRA_SIZE * MOST_EXTRAS, np.int32),
                self.stack,
            )
        )

    def spans_of(self, name: str) -> tuple[Ints, Ints]:
        """Return the starts and the ends of a field that is an object or a text. Both are NULL in rows without it, and
        in undecided rows."""
        field = [each.name for each in self.program.fields].index(name)
        starts, sizes = self._column(self.places, field), self._column(self.sizes, field)
        starts = np.where(self.undecided, np.int32(NULL), starts)
        return starts, np.where(starts == NULL, np.int32(NULL), starts + sizes)

    def columns(self) -> list[Any]:
        """Return the columns. Nested columns are built first, because building them can mark more rows as undecided.
        Scalar columns follow."""
        fields = range(len(self.program.fields))
        made: dict[int, Any] = {}
        for field in fields:
            if self.program.kinds[field] == REAL:
                self._read_pending(field)
        known = self.undecided.copy()
        self._void(np.flatnonzero(known))
        for field in self.program.inner:
            made[field] = {LIST: self._list, MAP: self._map}.get(int(self.program.kinds[field]), self._struct)(field)
        for field in fields:
            if self.program.fields[field].type == pa.binary():
                made[field] = self._binary(field)
        if (known != self.undecided).any():
            self._void(np.flatnonzero(known != self.undecided))
            kept = pa.array(np.arange(self.rows, dtype=np.int32), mask=self.undecided.astype(bool))
            made = {field: column.take(kept) for field, column in made.items()}
        return [made[field] if field in made else self._scalar(field) for field in fields]

    def _void(self, rows: npt.NDArray[np.int64]) -> None:
        """Set the results in `rows` to null."""
        if rows.size:
            self.states.reshape(-1, self.rows)[:, rows] = ABSENT
            self.tallies[::2] += rows.size
            if self.places.size:
                self.places.reshape(-1, self.rows)[:, rows] = NULL
                self.sizes.reshape(-1, self.rows)[:, rows] = NULL

    def _column(self, all_columns: npt.NDArray[Any], field: int) -> npt.NDArray[Any]:
        slot = int(self.program.slots[field])
        return all_columns[slot * self.rows : (slot + 1) * self.rows]

    def _states(self, field: int) -> Bytes:
        return self.states[field * self.rows : (field + 1) * self.rows]

    def _validity(self, field: int) -> tuple[int, Any]:
        """Return the number of nulls and, if there are any, the validity bitmap."""
        if not self.tallies[2 * field]:
            return 0, None
        absent = self._states(field) == ABSENT
        nulls = int(np.count_nonzero(absent))
        return nulls, pa.py_buffer(np.packbits(~absent, bitorder="little")) if nulls else None

    def _read_pending(self, field: int) -> None:
        """Read numbers that have more digits than the kernel supports. Set `undecided` for the numbers that cannot be
        decided here."""
        reals = self._column(self.reals, field)
        single = self.program.fields[field].type == pa.float32()
        if self.tallies[2 * field + 1]:
            rows = np.flatnonzero((self._states(field) == PENDING) & (self.undecided == 0))
            where = reals[rows].astype(np.int64)
            texts = _texts(
                self.spans.data, (where // MOST_PENDING).astype(np.int32), (where % MOST_PENDING).astype(np.int32)
            )
            reals[rows] = pc.cast(texts, pa.float64()).to_numpy()
            self.undecided[rows[np.isinf(reals[rows])]] = 1
        if single:
            decided = np.flatnonzero((self._states(field) != ABSENT) & (self.undecided == 0))
            far = np.abs(reals[decided]) > np.finfo(np.float32).max
            self.undecided[decided[far]] = 1

    def _scalar(self, field: int) -> Any:
        kind, arrow = self.program.kinds[field], self.program.fields[field].type
        nulls, validity = self._validity(field)
        if kind == TEXT:
            places, sizes = self._column(self.places, field), self._column(self.sizes, field)
            return _texts(self.spans.data, places, sizes, nulls, validity)
        return pa.Array.from_buffers(arrow, self.rows, [validity, pa.py_buffer(self._values(field))], nulls)

    def _values(self, field: int) -> npt.NDArray[Any]:
        """Return the contents of a fixed-width buffer."""
        kind, arrow = self.program.kinds[field], self.program.fields[field].type
        if kind == REAL:
            reals = self._column(self.reals, field)
            if arrow == pa.float64():
                return reals
            with np.errstate(over="ignore", invalid="ignore"):  # in rows that are null
                return reals.astype(np.float32)
        wholes = self._column(self.wholes, field)
        if kind == FLAG:
            return np.packbits(wholes.astype(np.uint8), bitorder="little")
        if pa.types.is_decimal(arrow):
            return np.stack([wholes, wholes >> 63], axis=1)
        return wholes if arrow.bit_width == 64 else wholes.astype(f"i{arrow.bit_width // 8}")

    def _binary(self, field: int) -> Any:
        places, sizes = self._column(self.places, field), self._column(self.sizes, field)
        offsets = np.empty(self.rows + 1, np.int32)
        values = np.empty(texts_size(sizes) + PADDING, np.uint8)
        filled = gather_base64(self.spans.data, places, sizes, offsets, values, self.undecided)
        nulls, validity = self._validity(field)
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values[:filled])]
        return pa.Array.from_buffers(pa.binary(), self.rows, buffers, nulls)

    def _struct(self, field: int) -> Any:
        places, sizes = self._column(self.places, field), self._column(self.sizes, field)
        ends = np.where(places == NULL, np.int32(NULL), places + sizes)
        inner = Block(
            self.program.inner[field], Spans(self.spans.data, places, ends), self.dialect, self.undecided, extras=False
        )
        children = inner.columns()
        nulls, validity = self._validity(field)
        return pa.Array.from_buffers(self.program.fields[field].type, self.rows, [validity], nulls, children=children)

    def _list(self, field: int) -> Any:
        places, sizes = self._column(self.places, field), self._column(self.sizes, field)
        offsets = np.empty(self.rows + 1, np.int32)
        starts = np.empty(4 * self.rows + _SOME_EXTRAS, np.int32)
        ends = np.empty_like(starts)
        levels = self.dialect.max_depth
        count = split_lists(self.spans.data, places, sizes, levels, self.stack, offsets, starts, ends)
        if count > starts.size:
            starts, ends = np.empty(count, np.int32), np.empty(count, np.int32)
            split_lists(self.spans.data, places, sizes, levels, self.stack, offsets, starts, ends)
        undecided = np.zeros(count, np.uint8)
        spans = Spans(self.spans.data, starts[:count], ends[:count])
        inner = Block(self.program.inner[field], spans, self.dialect, undecided, extras=False)
        [elements] = inner.columns()
        bad = np.flatnonzero(undecided)
        if bad.size:
            self.undecided[np.searchsorted(offsets, bad, side="right") - 1] = 1
        nulls, validity = self._validity(field)
        buffers = [validity, pa.py_buffer(offsets)]
        return pa.Array.from_buffers(self.program.fields[field].type, self.rows, buffers, nulls, children=[elements])

    def _map(self, field: int) -> Any:
        places, sizes = self._column(self.places, field), self._column(self.sizes, field)
        offsets = np.empty(self.rows + 1, np.int32)
        room, levels = 4 * self.rows + _SOME_EXTRAS, self.dialect.max_depth
        spans = np.empty((4, room), np.int32)
        count = split_maps(self.spans.data, places, sizes, levels, self.stack, offsets, *spans)
        if count > room:
            spans = np.empty((4, count), np.int32)
            split_maps(self.spans.data, places, sizes, levels, self.stack, offsets, *spans)
        undecided = np.zeros(count, np.uint8)
        children = []
        for program, (starts, ends) in ((self.program.keys[field], spans[:2]), (self.program.inner[field], spans[2:])):
            inside = Spans(self.spans.data, starts[:count], ends[:count])
            children += Block(program, inside, self.dialect, undecided, extras=False).columns()
        keys, values = children
        bad = np.concatenate([np.flatnonzero(undecided), repeated_keys(keys, offsets)])
        if bad.size:
            self.undecided[np.searchsorted(offsets, bad, side="right") - 1] = 1
            keys = pc.fill_null(keys, "")
        nulls, validity = self._validity(field)
        kind = self.program.fields[field].type
        entries = pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, self.rows, [validity, pa.py_buffer(offsets)], nulls, children=[entries])


def _texts(data: Bytes, places: Ints, sizes: Ints, nulls: int = 0, validity: Any = None) -> Any:
    offsets = np.empty(places.size + 1, np.int32)
    values = np.empty(texts_size(sizes) + PADDING, np.uint8)
    filled = gather_texts(data, places, sizes, offsets, values)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(values[:filled])]
    return pa.Array.from_buffers(pa.string(), places.size, buffers, nulls)


def rescued_of(data: Bytes, extras: Ints, count: int, undecided: Bytes) -> Any:
    rows = undecided.size
    if not count:
        return pa.nulls(rows, pa.string())
    kept = extras[: EXTRA_SIZE * count].reshape(-1, EXTRA_SIZE)
    kept = np.ascontiguousarray(kept[undecided[kept[:, 0]] == 0])
    sizes = int(kept[:, 2].sum(dtype=np.int64) + kept[:, 4].sum(dtype=np.int64))
    offsets = np.empty(rows + 1, np.int32)
    values = np.empty(sizes + 3 * len(kept) + PADDING, np.uint8)
    validity = np.zeros(rows, np.uint8)
    filled = gather_extras(data, kept.reshape(-1), len(kept), offsets, values, validity)
    buffers = [
        pa.py_buffer(np.packbits(validity, bitorder="little")),
        pa.py_buffer(offsets),
        pa.py_buffer(values[:filled]),
    ]
    return pa.Array.from_buffers(pa.string(), rows, buffers, rows - int(np.count_nonzero(validity)))
