"""A schema in the kernels' form: each object's fields as plain arrays."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.scalars import EARLIEST, LATEST
from platform_assets.kernels.json_objects import DAY, FLAG, INSTANT, LIST, MAP, MOST_EXTRAS, OBJECT, REAL, TEXT, WHOLE
from platform_assets.kernels.json_scalars import PADDING

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]

_WHOLES: Final = (WHOLE, FLAG, DAY, INSTANT)
_LONGS: Final = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The fields of one object, or with `bare` one value, in the form of `find_fields`.

    `inner` are the programs of its objects, of its lists' elements and of its maps' values; `keys` those of its maps' keys.

    `slots` is the index of a field among the columns of its sort (numbers, doubles, places), and `columns` the number of each
    sort.
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
        """Number of bytes after the data that may be read."""
        return (
            PADDING
            + max((program.padding for program in (*self.inner.values(), *self.keys.values())), default=0)
            + int(self.name_sizes.max())
        )

    @property
    def followers(self) -> int:
        """Required size of the scratch memory."""
        return len(self.fields) + MOST_EXTRAS + 2


@lru_cache(maxsize=64)
def program_of(dialect: Dialect) -> Program:
    """Return the program of a value's columns."""
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
    """Return, for a type, the kind of field, the power of ten that makes it whole, and its bounds."""
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
