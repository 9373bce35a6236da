"""Protobuf schemas and values for tests with a registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from platform_assets.decoding.protobuf.compiler import descriptor_set


def proto(*messages: str, imports: tuple[str, ...] = (), package: str = "shop", syntax: str = "proto3") -> str:
    """Return the text of a file."""
    lines = [f'syntax = "{syntax}";', f"package {package};", *(f'import "{name}";' for name in imports), *messages]
    return "\n".join(lines)


def class_of(text: str, name: str, references: Mapping[str, str] | None = None) -> Any:
    """Return the message class that has the full name `name`."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set(text, references or {})).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def varint(number: int) -> bytes:
    """Encode a number as zigzag."""
    rest, found = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def indexed(message: Any, *path: int) -> bytes:
    """Return a message preceded by its message indexes, by default `[0]`."""
    if not path:
        return b"\0" + bytes(message.SerializeToString())
    return b"".join(map(varint, (len(path), *path))) + bytes(message.SerializeToString())
