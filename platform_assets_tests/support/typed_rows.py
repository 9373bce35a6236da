"""Random rows with every type that a decoded table can have, with nulls at every depth and with values that are
difficult for hashes."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

_LEAVES: tuple[pa.DataType, ...] = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2),
    pa.decimal128(18, 0), pa.decimal128(19, 3), pa.decimal128(38, 10), pa.string(), pa.binary(), pa.date32(),
    pa.timestamp("us", tz="UTC"),
)  # fmt: skip
_FLOATS = (0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1.5, -1e-40)


def typed_rows(rng: random.Random, rows: int) -> pa.RecordBatch:
    """Return rows with a column of each type, a struct of all types, lists of lists, lists of structs, and maps.
    Offsets ascend within each partition."""
    everything = pa.struct([(f"f{i}", kind) for i, kind in enumerate(_LEAVES)])
    kinds = [*_LEAVES, everything, *(pa.list_(kind) for kind in (*_LEAVES[:4], pa.string())), pa.list_(everything),
             pa.list_(pa.list_(pa.int16())), pa.struct([("deep", pa.list_(pa.struct([("x", pa.decimal128(30, 0))])))]),
             pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), everything),
             pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.map_(pa.string(), pa.float64()))))]))]  # fmt: skip
    columns = [pa.array([_value(rng, kind) for _ in range(rows)], kind) for kind in kinds]
    partitions = sorted(rng.randrange(3) for _ in range(rows))
    fields = [
        pa.field("kafka_partition", pa.int32()),
        pa.field("kafka_offset", pa.int64()),
        *(pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)),
    ]
    own = [pa.array(partitions, pa.int32()), pa.array(range(rows), pa.int64())]
    return pa.RecordBatch.from_arrays([*own, *columns], schema=pa.schema(fields))


def _value(rng: random.Random, kind: pa.DataType) -> Any:
    if rng.random() < 0.25:
        return None
    if pa.types.is_struct(kind):
        return {f.name: _value(rng, f.type) for f in kind}
    if pa.types.is_map(kind):
        names = rng.sample(("", "a", "é", "x" * 40, "key"), rng.choice((0, 1, 2, 5)))
        return [(name, _value(rng, kind.item_type)) for name in names]
    if pa.types.is_list(kind):
        return [_value(rng, kind.value_type) for _ in range(rng.choice((0, 1, 2, 5)))]
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return rng.choice((-most, -1, 0, 1, most - 1, rng.randrange(-most, most)))
    if pa.types.is_floating(kind):
        return rng.choice((*_FLOATS, rng.uniform(-1e9, 1e9)))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        whole = rng.choice((0, 1, -1, 127, 128, -128, -129, 255, most, -most, rng.randrange(-most, most)))
        return Decimal(f"{whole}E-{kind.scale}")
    if pa.types.is_date(kind):
        return date(1970, 1, 1) + timedelta(days=rng.randrange(-100_000, 100_000))
    if pa.types.is_timestamp(kind):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(-(10**15), 10**16))
    text = rng.choice(("", "a", "\0", "träume", "x" * 31, "y" * 32, "z" * rng.randrange(200)))
    return text if kind == pa.string() else text.encode()
