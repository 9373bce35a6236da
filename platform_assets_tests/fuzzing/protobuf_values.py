"""Protobuf: messages are encoded by this module according to the specification, because the decoder uses the Protobuf
library."""

from __future__ import annotations

import base64
import math
import random
import struct
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
from google.protobuf.message import DecodeError

from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.fuzzing.target import Wrong, damaged
from platform_assets_tests.support import near_powers
from platform_assets_tests.support.decoding import decoded
from platform_assets_tests.support.other_readers import base_128

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5


def _wrapped(number: int) -> bytes:
    return base_128(number % (1 << 64))


def _zigzag(number: int) -> bytes:
    return base_128(2 * number if number >= 0 else -2 * number - 1)


_SCALARS: Final[dict[str, tuple[int, int, Callable[[Any], bytes]]]] = {
    "TYPE_INT32": (32, _VARINT, _wrapped),
    "TYPE_INT64": (64, _VARINT, _wrapped),
    "TYPE_UINT32": (-32, _VARINT, base_128),
    "TYPE_UINT64": (-64, _VARINT, base_128),
    "TYPE_SINT32": (32, _VARINT, _zigzag),
    "TYPE_SINT64": (64, _VARINT, _zigzag),
    "TYPE_FIXED32": (-32, _FIXED32, lambda n: n.to_bytes(4, "little")),
    "TYPE_FIXED64": (-64, _FIXED64, lambda n: n.to_bytes(8, "little")),
    "TYPE_SFIXED32": (32, _FIXED32, lambda n: n.to_bytes(4, "little", signed=True)),
    "TYPE_SFIXED64": (64, _FIXED64, lambda n: n.to_bytes(8, "little", signed=True)),
    "TYPE_FLOAT": (0, _FIXED32, lambda x: struct.pack("<f", x)),
    "TYPE_DOUBLE": (0, _FIXED64, lambda x: struct.pack("<d", x)),
    "TYPE_BOOL": (1, _VARINT, lambda x: base_128(int(x))),
    "TYPE_STRING": (0, _SIZED, lambda x: base_128(len(x.encode())) + x.encode()),
    "TYPE_BYTES": (0, _SIZED, lambda x: base_128(len(x)) + x),
}
_DEPTH: Final = 3


def _scalar(rng: random.Random, kind: str) -> Any:
    bits = _SCALARS[kind][0]
    if kind == "TYPE_BOOL":
        return rng.random() < 0.5
    if kind == "TYPE_STRING":
        return rng.choice(("", "a", "ü€😀", "x" * 130, "\0"))
    if kind == "TYPE_BYTES":
        return rng.randbytes(rng.choice((0, 1, 130)))
    if kind in ("TYPE_FLOAT", "TYPE_DOUBLE"):
        return rng.choice((0.0, -0.0, 0.5, math.inf, -math.inf, float(rng.randint(-(1 << 24), 1 << 24))))
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if bits > 0 else (0, (1 << -bits) - 1)
    near = [each for each in near_powers.wholes(rng, 3) if low <= each <= high]
    return rng.choice((0, 1, low, high, rng.choice(near), rng.randint(low, high)))


def _message(rng: random.Random, name: str, level: int = 0) -> descriptor_pb2.DescriptorProto:
    made = descriptor_pb2.DescriptorProto(name=name)
    numbers = rng.sample([*range(1, 16), 16, 2047, 2048, 18_999, 20_000, (1 << 29) - 1], rng.randint(1, 5))
    for number in numbers:
        field = made.field.add(name=f"f{number}", number=number)
        field.label = Proto.LABEL_REPEATED if rng.random() < 0.25 else Proto.LABEL_OPTIONAL
        if level < _DEPTH and rng.random() < 0.2:
            made.nested_type.append(_message(rng, f"M{number}", level + 1))
            field.type, field.type_name = Proto.TYPE_MESSAGE, f"M{number}"
        else:
            field.type = Proto.Type.Value(rng.choice(list(_SCALARS)))
            if field.label == Proto.LABEL_OPTIONAL and rng.random() < 0.3:
                field.proto3_optional = True
                field.oneof_index = len(made.oneof_decl)
                made.oneof_decl.add(name=f"_f{number}")
    # The oneofs that `optional` creates come last, after all others.
    return made


def _encoded(rng: random.Random, of: descriptor_pb2.DescriptorProto) -> tuple[bytes, dict[str, Any]]:
    """Return a message in one of its valid encodings, and the row into which it is decoded."""
    inner = {each.name: each for each in of.nested_type}
    pieces: list[list[bytes]] = []
    row: dict[str, Any] = {}
    for field in of.field:
        kind, many = Proto.Type.Name(field.type), field.label == Proto.LABEL_REPEATED
        tag = field.number << 3
        if kind == "TYPE_MESSAGE":
            found = [
                _encoded(rng, inner[field.type_name])
                for _ in range(rng.choice((0, 1, 2)) if many else rng.randint(0, 1))
            ]
            pieces.append([base_128(tag | _SIZED) + base_128(len(data)) + data for data, _ in found])
            row[field.name] = [each for _, each in found] if many else (found[0][1] if found else None)
            continue
        _, wire, encode = _SCALARS[kind]
        given = [_scalar(rng, kind) for _ in range(rng.choice((0, 1, 3)) if many else rng.choice((0, 1, 1, 2)))]
        if many:
            row[field.name] = given
            if wire != _SIZED and rng.random() < 0.6:
                cut = rng.randint(0, len(given))
                packed = [b"".join(map(encode, part)) for part in (given[:cut], given[cut:])]
                pieces.append([base_128(tag | _SIZED) + base_128(len(each)) + each for each in packed])
                continue
        else:
            # The last occurrence wins.
            row[field.name] = given[-1] if given else (None if field.proto3_optional else _zero(kind))
        pieces.append([base_128(tag | wire) + encode(each) for each in given])
    if rng.random() < 0.2:
        pieces.append([base_128(17_777 << 3 | _VARINT) + _wrapped(rng.getrandbits(64))])
    # Fields may come in any order; the parts of one field stay in order.
    order = [at for at, parts in enumerate(pieces) for _ in parts]
    rng.shuffle(order)
    iterators = [iter(parts) for parts in pieces]
    return b"".join(next(iterators[at]) for at in order), row


def _zero(kind: str) -> Any:
    return {"TYPE_STRING": "", "TYPE_BYTES": b"", "TYPE_BOOL": False, "TYPE_FLOAT": 0.0, "TYPE_DOUBLE": 0.0}.get(
        kind, 0
    )


def _made(rng: random.Random) -> tuple[descriptor_pb2.DescriptorProto, descriptor_pb2.FileDescriptorSet, Any]:
    of = _message(rng, "R")
    file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="t", syntax="proto3", message_type=[of])
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    text = base64.b64encode(files.SerializeToString()).decode()
    return of, files, decoder_of(FormatSpec("protobuf", {"descriptor_set": text, "message": "t.R"}))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, dict):
        return (
            isinstance(ours, dict) and ours.keys() == theirs.keys() and all(_same(ours[n], theirs[n]) for n in theirs)
        )
    if isinstance(theirs, list):
        return isinstance(ours, list) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return repr(ours) == repr(theirs) if isinstance(theirs, float) else bool(ours == theirs)


def whole(rng: random.Random) -> None:
    """Check valid messages."""
    of, _, decoder = _made(rng)
    pairs = [_encoded(rng, of) for _ in range(8)]
    found = decoded(decoder, [value for value, _ in pairs])
    if found.dead.num_rows:
        raise Wrong(f"refused: {found.dead.to_pylist()}: {pairs!r}")
    for (value, theirs), ours in zip(pairs, found.columns.to_pylist(), strict=True):
        if not _same(ours, theirs):
            raise Wrong(f"differs: {ours!r}, and {theirs!r} was written: {value!r} by {of}")


def broken(rng: random.Random) -> None:
    """Check damaged messages: the decoder accepts exactly those that the library parses, and returns the library's
    values."""
    try:
        of, files, decoder = _made(rng)
    except ConfigurationError:
        return
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.R"))
    sound = [_encoded(rng, of)[0] for _ in range(4)]
    values = [damaged(rng, each, sound, 3) for each in sound for _ in range(3)]
    dead = {letter["row"]: letter for letter in decoded(decoder, values).dead.to_pylist()}
    for number, value in enumerate(values):
        try:
            message.FromString(value)
            parses = True
        except DecodeError:
            parses = False
        letter = dead.get(number)
        if parses != (letter is None) and (letter is None or letter["reason"] in ("malformed", "failed")):
            raise Wrong(f"parsed: {parses} by the library, and {letter!r}: {value!r} by {of}")
