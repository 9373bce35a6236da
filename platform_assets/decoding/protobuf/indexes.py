"""The message type of a value in its schema: Confluent's list of indexes, before the message itself.

The number of indexes and each index are zigzag varints. They lead from the file's messages, in order, to nested ones; map entry
messages do not count, since the file's text does not have them. The list `[0]` is written as a single byte 0.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto

from platform_assets.decoding.reading import Unfit

Path = tuple[int, ...]

MOST_LEVELS: Final = 64
"""Maximum nesting of messages; the compiler allows less."""
_FIRST: Final = (0,)
_LONGEST: Final = 5
"""Maximum bytes of a 32-bit varint."""


def read(value: bytes) -> tuple[Path, int]:
    """Return the indexes at the beginning of `value`, and the start of the message. Raises Unfit."""
    count, at = _varint(value, 0)
    if count == 0:
        return _FIRST, at
    if not 0 < count <= MOST_LEVELS:
        raise Unfit("malformed", f"it names its message by {count} indexes, where 1 to {MOST_LEVELS} were expected")
    path: list[int] = []
    for _ in range(count):
        index, at = _varint(value, at)
        path.append(index)
    return tuple(path), at


def names_of(file: FileDescriptorProto) -> dict[Path, str]:
    """Return the full names of all messages in a file, by their indexes."""
    found: dict[Path, str] = {}
    pending: list[tuple[Path, str, DescriptorProto]] = [
        ((number,), file.package, message) for number, message in enumerate(file.message_type)
    ]
    while pending:
        path, around, message = pending.pop()
        found[path] = f"{around}.{message.name}" if around else message.name
        inner = [each for each in message.nested_type if not each.options.map_entry]
        pending += [((*path, number), found[path], each) for number, each in enumerate(inner)]
    return found


def _varint(value: bytes, at: int) -> tuple[int, int]:
    number = 0
    for position in range(_LONGEST):
        if at + position >= len(value):
            raise Unfit("malformed", "the value ends within the indexes of its message")
        byte = value[at + position]
        number |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at + position + 1
    raise Unfit("malformed", f"an index of its message has more than {_LONGEST} bytes")
