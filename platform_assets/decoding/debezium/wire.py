"""Wire types: the types in which kernels read a row's JSON values, and the conversion of whole columns to their declared
types.

A wire type only decides how fast a value is decoded. A value that it does not fit is left to the exact path.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.conversion import Conversion
from platform_assets.decoding.debezium.declaration import Declared
from platform_assets.decoding.debezium.scalars import FIRST_DAY, LAST_DAY
from platform_assets.decoding.json.scalars import EARLIEST, LATEST
from platform_assets.decoding.maps import map_type
from platform_assets.decoding.pieces import Marks, pieces_of
from platform_assets.decoding.times import ISO_DATE
from platform_assets.kernels.json_scalars import PADDING
from platform_assets.kernels.json_texts import gather_base64

Longs = npt.NDArray[np.int64]
_VARIABLE: Final = pa.struct([("scale", pa.int32()), ("value", pa.binary())])
"""Wire type of a number without a declared scale in the database."""
_INT64: Final = np.iinfo(np.int64)
_MOST_SHIFT: Final = 18
"""Largest power of ten that is multiplied in 64 bits."""
_MOST_BYTES: Final = 16
_HEX: Final = np.full(256, 255, np.uint8)
_HEX[list(b"0123456789")] = np.arange(10)
_HEX[list(b"abcdef")] = _HEX[list(b"ABCDEF")] = np.arange(10, 16)
_OF_URLS: Final = np.arange(256, dtype=np.uint8)
_OF_URLS[list(b"-_")] = list(b"+/")
_OF_URLS[list(b"+/")] = ord("!")


def wire_type(kind: pa.DataType, sample: Any, d: Declared) -> pa.DataType:
    """Return the wire type for a declared type. `sample` is a value of the column, or None if none is known."""
    if pa.types.is_struct(kind):
        parts = sample if isinstance(sample, dict) else {}
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.struct([field.with_type(wire_type(field.type, parts.get(field.name), d)) for field in fields])
    if pa.types.is_list(kind):
        first = next((each for each in sample if each is not None), None) if isinstance(sample, list) else None
        return pa.list_(kind.value_field.with_type(wire_type(kind.value_type, first, d)))
    if pa.types.is_map(kind):
        first = next(iter(sample.values()), None) if isinstance(sample, dict) else None
        return map_type(kind.item_field.with_type(wire_type(kind.item_type, first, d)))
    if pa.types.is_decimal(kind):
        if d.decimals == "precise":
            return _VARIABLE if isinstance(sample, dict) else pa.binary()
        return pa.string() if d.decimals == "string" else kind
    if pa.types.is_timestamp(kind):
        is_text = isinstance(sample, str) or (sample is None and d.times == "isostring")
        return kind if is_text else pa.int64()
    if pa.types.is_date(kind):
        return pa.string() if d.times == "isostring" else pa.int32()
    if pa.types.is_binary(kind) and d.binary in ("hex", "base64-url-safe"):
        return pa.string()
    return kind


def converted(array: pa.Array, kind: pa.DataType, d: Declared, unit: int) -> tuple[pa.Array, Marks]:
    """Return a column of a wire type as a column of the declared type, and marks of the undecided rows, whose content does
    not matter. `unit` is the number of nanoseconds in one unit of the column's timestamps."""
    if array.type == kind:
        return array, np.zeros(len(array), np.bool_)
    if pa.types.is_struct(kind):
        return _struct(array, kind, d, unit)
    if pa.types.is_list(kind):
        values, marks = converted(array.values, kind.value_type, d, unit)
        made = pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, children=[values])
        return made, _of_parts(array, marks)
    if pa.types.is_map(kind):
        items, marks = converted(array.items, kind.item_type, d, unit)
        entries = pa.StructArray.from_arrays([array.keys, items], fields=[kind.key_field, kind.item_field])
        made = pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, children=[entries])
        return made, _of_parts(array, marks)
    if pa.types.is_decimal(kind):
        return decimal(array, kind)
    if pa.types.is_timestamp(kind):
        return timestamp(array, kind, unit)
    if pa.types.is_date(kind):
        return date(array)
    return of_hex(array) if d.binary == "hex" else of_base64(array, of_urls=True)


def _of_parts(array: pa.Array, marks: Marks) -> Marks:
    """Return marks of the lists or maps that contain a marked part."""
    found = np.zeros(len(array), np.bool_)
    if marks.any():
        offsets = np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1]
        found[np.searchsorted(offsets, np.flatnonzero(marks), side="right") - 1] = True
    return found


def _struct(array: pa.StructArray, kind: pa.DataType, d: Declared, unit: int) -> tuple[pa.Array, Marks]:
    marks = np.zeros(len(array), np.bool_)
    parts = []
    for index in range(kind.num_fields):
        part, bad = converted(array.field(index), kind.field(index).type, d, unit)
        parts.append(part)
        marks |= bad
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=[kind.field(i) for i in range(kind.num_fields)], mask=mask), marks


def _nulls(array: pa.Array) -> Marks:
    found: Marks = array.is_null().to_numpy(zero_copy_only=False)
    return found


def timestamp(array: pa.Array, kind: pa.DataType, unit: int) -> tuple[pa.Array, Marks]:
    """Return whole numbers of a unit as timestamps, and marks of the undecided rows."""
    nulls = _nulls(array)
    numbers: Longs = array.fill_null(0).to_numpy()
    if unit >= 1_000:
        factor = unit // 1_000
        marks = (numbers < EARLIEST // factor) | (numbers > LATEST // factor)
        micros = np.where(marks, 0, numbers) * factor
    else:
        micros, rest = np.divmod(numbers, 1_000 // unit)
        marks = (rest != 0) | (micros < EARLIEST) | (micros > LATEST)
    return pa.array(micros, mask=nulls | marks).cast(kind), marks


def date(array: pa.Array) -> tuple[pa.Array, Marks]:
    """Return numbers of days, or texts, as dates, and marks of the undecided rows."""
    if pa.types.is_string(array.type):
        is_utc = pc.fill_null(pc.ends_with(array, "Z"), False)
        days, marks = Conversion(pa.date32(), ISO_DATE).column(pieces_of(pc.utf8_slice_codeunits(array, 0, 10)))
        exact = pc.equal(pc.binary_length(array), pc.if_else(is_utc, 11, 10))
        return days, marks | ~pc.fill_null(exact, True).to_numpy(zero_copy_only=False)
    days = array.fill_null(0).to_numpy()
    marks = (days < FIRST_DAY) | (days > LAST_DAY)
    return pa.array(days, pa.int32(), mask=_nulls(array) | marks).cast(pa.date32()), marks


def decimal(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Marks]:
    """Return texts, unscaled numbers, or unscaled numbers with scales as decimals, and marks of the undecided rows."""
    if pa.types.is_string(array.type):
        return Conversion(kind).column(pieces_of(array))
    if pa.types.is_struct(array.type):
        lows, highs, marks = _words(array.field("value"))
        scales = array.field("scale")
        shifts = kind.scale - scales.fill_null(kind.scale).to_numpy()
        nulls = _nulls(array)
        marks |= ~nulls & (_nulls(scales) | _nulls(array.field("value")))
        lows, highs, beyond = _shifted(lows, highs, shifts)
        marks |= beyond & ~nulls
    else:
        lows, highs, marks = _words(array)
        nulls = _nulls(array)
    marks |= ~nulls & _beyond(lows, highs, kind.precision)
    words = np.stack([lows.view(np.int64), highs], axis=1)
    nothing = nulls | marks
    validity = pa.py_buffer(np.packbits(~nothing, bitorder="little")) if nothing.any() else None
    return pa.Array.from_buffers(kind, len(array), [validity, pa.py_buffer(words)]), marks


def _words(array: pa.BinaryArray) -> tuple[npt.NDArray[np.uint64], Longs, Marks]:
    """Return the low and the high 64 bits of signed big-endian numbers, and marks of those that are empty or do not fit."""
    pieces = pieces_of(array)
    sizes = np.maximum(pieces.sizes, 0).astype(np.int64)
    marks: Marks = ((sizes == 0) | (sizes > _MOST_BYTES)) & (pieces.sizes >= 0)
    sizes[marks] = 0
    ends = pieces.starts + sizes
    data = pieces.data if pieces.data.size else np.zeros(1, np.uint8)
    negative = (sizes > 0) & (data[np.minimum(pieces.starts, data.size - 1)] >= 128)
    fill = np.where(negative, np.uint64(255), np.uint64(0))
    most = int(sizes.max(initial=0))
    words = [np.zeros(len(pieces), np.uint64), np.zeros(len(pieces), np.uint64)]
    for index in range(_MOST_BYTES):
        if index < most:
            there = data[np.clip(ends - 1 - index, 0, data.size - 1)].astype(np.uint64)
            byte = np.where(index < sizes, there, fill)
        else:
            byte = fill
        words[index // 8] |= byte << np.uint64(8 * (index % 8))
    return words[0], words[1].view(np.int64), marks


def _shifted(
    lows: npt.NDArray[np.uint64], highs: Longs, shifts: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], Longs, Marks]:
    """Multiply numbers by powers of ten. Return the products, and marks of the numbers for which that takes more than 64
    bits, or a division."""
    if not shifts.any():
        return lows, highs, np.zeros(lows.size, np.bool_)
    small = lows.view(np.int64)
    fits = highs == (small >> 63)
    power = np.int64(10) ** np.clip(shifts, 0, _MOST_SHIFT)
    bound = _INT64.max // power
    beyond = (shifts != 0) & ((shifts < 0) | (shifts > _MOST_SHIFT) | ~fits | (small > bound) | (small < -bound))
    product = np.where(beyond | ~fits, 0, small) * np.where(beyond, 1, power)
    moved = (shifts != 0) & ~beyond
    return (
        np.where(moved, product.view(np.uint64), lows),
        np.where(moved, product >> 63, highs),
        beyond,
    )


def _beyond(lows: npt.NDArray[np.uint64], highs: Longs, precision: int) -> Marks:
    """Return marks of the numbers with more than `precision` digits."""
    most = 10**precision - 1
    high, low = np.int64(most >> 64), np.uint64(most & (2**64 - 1))
    negative_high, negative_low = np.int64(-most >> 64), np.uint64(-most & (2**64 - 1))
    above = (highs > high) | ((highs == high) & (lows > low))
    below = (highs < negative_high) | ((highs == negative_high) & (lows < negative_low))
    found: Marks = above | below
    return found


def of_hex(array: pa.StringArray) -> tuple[pa.Array, Marks]:
    """Return the bytes of texts in hexadecimal digits, and marks of the undecided rows."""
    pieces = pieces_of(array)
    sizes = np.maximum(pieces.sizes, 0)
    begin = int(pieces.starts[0]) if len(pieces) else 0
    digits = _HEX[pieces.data[begin : begin + int(sizes.sum())]]
    marks = sizes % 2 == 1
    edges = np.concatenate([[0], np.cumsum(sizes)])
    bad = np.flatnonzero(digits == 255)
    if bad.size:
        marks[np.searchsorted(edges, bad, side="right") - 1] = True
    if marks.any():
        return pa.nulls(len(array), pa.binary()), marks | ~_nulls(array)
    content = (digits[::2] << 4) | digits[1::2]
    offsets = (edges // 2).astype(np.int32)
    validity = array.buffers()[0]
    made = pa.Array.from_buffers(
        pa.binary(), len(array), [validity, pa.py_buffer(offsets), pa.py_buffer(content)], array.null_count
    )
    return made, marks


def of_base64(array: pa.StringArray, *, of_urls: bool) -> tuple[pa.Array, Marks]:
    """Return the bytes of texts in base64, or in base64 for URLs, and marks of the undecided rows."""
    pieces = pieces_of(array)
    undecided = np.zeros(len(array), np.uint8)
    sizes = np.ascontiguousarray(pieces.sizes)
    data = np.concatenate([_OF_URLS[pieces.data] if of_urls else pieces.data, np.zeros(PADDING, np.uint8)])
    offsets = np.empty(len(array) + 1, np.int32)
    values = np.empty(int(np.maximum(sizes, 0).sum()) + PADDING, np.uint8)
    filled = gather_base64(data, np.ascontiguousarray(pieces.starts), sizes, offsets, values, undecided)
    made = pa.Array.from_buffers(
        pa.binary(),
        len(array),
        [array.buffers()[0], pa.py_buffer(offsets), pa.py_buffer(values[:filled])],
        array.null_count,
    )
    return made, undecided.view(np.bool_)
