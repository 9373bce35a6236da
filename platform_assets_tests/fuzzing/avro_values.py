"""Avro: random schemas, with values that fastavro writes and reads, resolving schemas by its own rules."""

from __future__ import annotations

import io
import math
import random
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import fastavro

from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.fuzzing.target import Wrong, damaged
from platform_assets_tests.support import near_powers
from platform_assets_tests.support.avro_data import avro
from platform_assets_tests.support.decoding import decoded

_PLAIN: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")
_PROMOTED: Final = {
    "int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",), "string": ("bytes",), "bytes": ("string",),
}  # fmt: skip
_DEPTH: Final = 3


class _Names:
    """Generator of unused type names."""

    def __init__(self) -> None:
        self._next = 0

    def new(self) -> str:
        """Return a new name."""
        self._next += 1
        return f"N{self._next}"


def _schema(rng: random.Random, names: _Names, times: bool, level: int = 0) -> Any:
    """Return a random schema. With `times`, the schema may include types for which fastavro's values do not represent
    all bytes."""
    kinds = [
        *_PLAIN,
        "enum",
        "fixed",
        "decimal",
        *(("uuid", "date", "timestamp-millis", "timestamp-micros") if times else ()),
    ]
    kinds += ["array", "map", "nullable", "record", "union"] if level < _DEPTH else []
    kind = rng.choice(kinds)
    if kind in _PLAIN:
        return kind if rng.random() < 0.8 else {"type": kind}
    if kind == "enum":
        return {"type": "enum", "name": names.new(), "symbols": ["A", "B", "C", "D"][: rng.randint(1, 4)]}
    if kind == "fixed":
        return {"type": "fixed", "name": names.new(), "size": rng.choice((1, 3, 16))}
    if kind == "decimal":
        size = rng.randint(1, 16)
        of: Any = rng.choice(({"type": "bytes"}, {"type": "fixed", "name": names.new(), "size": size}))
        precision = rng.randint(1, min(38, int((8 * size - 1) * 0.30103) or 1) if of["type"] == "fixed" else 38)
        return {**of, "logicalType": "decimal", "precision": precision, "scale": rng.randint(0, precision)}
    if kind == "uuid":
        return {"type": "string", "logicalType": "uuid"}
    if kind == "date":
        return {"type": "int", "logicalType": "date"}
    if kind.startswith("timestamp"):
        return {"type": "long", "logicalType": kind}
    if kind == "array":
        return {"type": "array", "items": _schema(rng, names, times, level + 1)}
    if kind == "map":
        return {"type": "map", "values": _schema(rng, names, times, level + 1)}
    if kind in ("nullable", "union"):
        of = _schema(rng, names, times, level + 1)
        return of if isinstance(of, list) else rng.choice((["null", of], [of, "null"]))
    fields = [{"name": f"f{n}", "type": _schema(rng, names, times, level + 1)} for n in range(rng.randint(1, 4))]
    return {"type": "record", "name": names.new(), "fields": fields}


def _value(rng: random.Random, schema: Any) -> Any:
    if isinstance(schema, list):
        return None if rng.random() < 0.3 else _value(rng, next(each for each in schema if each != "null"))
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if logical == "decimal":
        units = rng.choice((0, 1, -1, rng.randint(1 - 10 ** schema["precision"], 10 ** schema["precision"] - 1)))
        digits = tuple(map(int, str(abs(units))))
        return Decimal((int(units < 0), digits, -schema["scale"]))
    if logical == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128)))
    if logical == "date":
        return date.fromordinal(rng.randint(1, date.max.toordinal()))
    if logical is not None:
        step = 1_000 if logical.endswith("millis") else 1
        micros = rng.randint(-62_135_596_800_000_000, 253_402_300_799_999_999) // step * step
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind in ("int", "long"):
        bits = 31 if kind == "int" else 63
        near = [each for each in near_powers.wholes(rng, 3) if -(1 << bits) <= each < 1 << bits]
        return rng.choice((0, 1, -1, rng.choice(near), rng.randint(-(1 << bits), (1 << bits) - 1)))
    if kind in ("float", "double"):
        return rng.choice((0.0, -0.0, 0.5, -1.25, math.inf, -math.inf, float(rng.randint(-(1 << 24), 1 << 24))))
    if kind == "bytes":
        return rng.randbytes(rng.choice((0, 1, 5, 70, 200)))
    if kind == "string":
        return rng.choice(("", "a", "ü€😀", "x" * 64, "\0", "\u2028", "y" * 500))
    if kind == "enum":
        return rng.choice(schema["symbols"])
    if kind == "fixed":
        return rng.randbytes(schema["size"])
    if kind == "array":
        return [_value(rng, schema["items"]) for _ in range(rng.choice((0, 1, 2, 7)))]
    if kind == "map":
        return {f"k{n}ü": _value(rng, schema["values"]) for n in range(rng.choice((0, 1, 3)))}
    return {field["name"]: _value(rng, field["type"]) for field in schema["fields"]}


def _reader(rng: random.Random, schema: Any) -> Any:
    """Return a schema that can read values of `schema`: it may promote types, add or omit fields, change their order,
    or be a union."""
    if isinstance(schema, list):
        return [each if each == "null" else _reader(rng, each) for each in rng.sample(schema, len(schema))]
    if isinstance(schema, str) and rng.random() < 0.3:
        return rng.choice(_PROMOTED.get(schema, (schema,)))
    if not isinstance(schema, str):
        if schema["type"] == "array":
            schema = {**schema, "items": _reader(rng, schema["items"])}
        elif schema["type"] == "map":
            schema = {**schema, "values": _reader(rng, schema["values"])}
        elif schema["type"] == "record":
            kept = [each for each in schema["fields"] if rng.random() < 0.85] or schema["fields"][:1]
            fields = [{**each, "type": _reader(rng, each["type"])} for each in rng.sample(kept, len(kept))]
            if rng.random() < 0.3:
                fields.append({"name": "added", "type": rng.choice(("long", "int")), "default": rng.randint(-5, 5)})
            schema = {**schema, "fields": fields}
    return ["null", schema] if rng.random() < 0.08 else schema


def _written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def _record(rng: random.Random, times: bool) -> dict[str, Any]:
    names = _Names()
    fields = [{"name": f"c{n}", "type": _schema(rng, names, times)} for n in range(rng.randint(1, 4))]
    return {"type": "record", "name": "R", "fields": fields}


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        if isinstance(ours, list):  # a map
            ours = (
                {each["key"]: each["value"] for each in ours} if all(isinstance(e, dict) for e in ours) else dict(ours)
            )
        return (
            isinstance(ours, dict) and ours.keys() == theirs.keys() and all(_same(ours[n], theirs[n]) for n in theirs)
        )
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(theirs, uuid.UUID):
        return bool(ours == str(theirs))
    if isinstance(theirs, float) and isinstance(ours, float):
        return repr(ours) == repr(theirs)
    return type(ours) is type(theirs) and bool(ours == theirs)


def case(rng: random.Random) -> tuple[FormatSpec, list[bytes]]:
    """Return a format that includes the writer's schema, and values that fastavro wrote with that schema."""
    while True:
        writer = _record(rng, times=True)
        reader = _reader(rng, writer)
        spec = FormatSpec("avro", {"schema": reader, "writer_schema": writer})
        try:
            decoder_of(spec)
        except ConfigurationError:
            continue
        return spec, [_written(writer, _value(rng, writer)) for _ in range(6)]


def whole(rng: random.Random) -> None:
    """Check undamaged values that are read with another schema."""
    writer = _record(rng, times=True)
    reader = _reader(rng, writer) if rng.random() < 0.7 else writer
    if isinstance(reader, list):
        reader = writer
    given = [_value(rng, writer) for _ in range(6)]
    values = [_written(writer, each) for each in given]
    try:
        of = avro(reader, writer)
    except ConfigurationError:
        return
    found = decoded(of, values)
    dead = {letter["row"]: letter for letter in found.dead.to_pylist()}
    parsed, wanted = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    for number, (value, row) in enumerate(zip(values, found.columns.to_pylist(), strict=True)):
        letter = dead.get(number)
        try:
            theirs: Any = fastavro.schemaless_reader(io.BytesIO(value), parsed, wanted)
        except (fastavro.read.SchemaResolutionError, UnicodeDecodeError) as error:
            if letter is None:
                raise Wrong(
                    f"decoded: {row!r} of {value!r}, and fastavro refuses it ({error}): {writer} as {reader}"
                ) from error
            continue
        if letter is not None:
            if letter["reason"] not in ("out_of_range", "wrong_type"):
                raise Wrong(f"refused: {value!r}: {letter!r}, and fastavro reads {theirs!r}: {writer} as {reader}")
        elif not _same(row, _narrowed(theirs, reader)):
            raise Wrong(f"differs: {row!r}, and fastavro reads {theirs!r}: {writer} as {reader}")


def _narrowed(value: Any, schema: Any) -> Any:
    """Convert values for which fastavro keeps the writer's type although the reader's type differs: promoted numbers
    and strings."""
    import struct

    if value is None:
        return None
    if isinstance(schema, list):
        return _narrowed(value, next(each for each in schema if each != "null"))
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {field["name"]: _narrowed(value[field["name"]], field["type"]) for field in schema["fields"]}
    if kind == "array":
        return [_narrowed(each, schema["items"]) for each in value]
    if kind == "map":
        return {name: _narrowed(each, schema["values"]) for name, each in value.items()}
    if kind == "float" and math.isfinite(value):
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if kind in ("float", "double"):
        return float(value)
    if kind == "bytes" and isinstance(value, str):
        return value.encode()
    if kind == "string" and isinstance(value, bytes):
        return value.decode()
    return value


def broken(rng: random.Random) -> None:
    """Check damaged values: a decoded value equals what fastavro reads, to the last byte, and a value that fastavro
    would write again is not reported as damaged."""
    writer = _record(rng, times=False)
    try:
        of = avro(writer)
    except ConfigurationError:
        return
    sound = [_written(writer, _value(rng, writer)) for _ in range(4)]
    values = [damaged(rng, each, sound, 3) for each in sound for _ in range(3)]
    found = decoded(of, values)
    dead: Mapping[int, Any] = {letter["row"]: letter for letter in found.dead.to_pylist()}
    parsed = fastavro.parse_schema(writer)
    for number, (value, row) in enumerate(zip(values, found.columns.to_pylist(), strict=True)):
        stream, letter, theirs = io.BytesIO(value), dead.get(number), None
        try:
            theirs = fastavro.schemaless_reader(stream, parsed, None)
            # Otherwise fastavro reads and writes an int of any size.
            is_whole = stream.tell() == len(value) and fastavro.validate(theirs, parsed, raise_errors=False)
            again = _written(writer, theirs) if is_whole else None
        except Exception as error:
            if letter is None:
                raise Wrong(f"decoded: {row!r} of {value!r}, and fastavro raises {error!r}: {writer}") from error
            continue
        if letter is None and (stream.tell() != len(value) or not _same(row, theirs)):
            raise Wrong(
                f"differs: {row!r}, and fastavro reads {theirs!r} to byte {stream.tell()} of {value!r}: {writer}"
            )
        if letter is not None and again == value and letter["reason"] == "malformed":
            raise Wrong(f"refused: {value!r}: {letter!r}, and fastavro reads {theirs!r}: {writer}")
