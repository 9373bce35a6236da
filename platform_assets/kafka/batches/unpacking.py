"""Undoing the compression of record batches. Codecs are numbered as in a batch's attributes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, TypeVar

import cramjam
import numpy as np
import numpy.typing as npt

from platform_assets.kafka.batches.damage import Damage

UNPACKED_LIMIT = 1 << 29
"""Bytes that one compressed batch may unpack to: more is taken for damage or malice, not for records."""

_XERIAL = b"\x82SNAPPY\x00"
_SMALLEST_ROOM: Final = 1 << 16
_GUESSED: Final = 8
"""How many times a body's size it is first taken to unpack to, since a frame need not state it."""
_length_at = struct.Struct(">i").unpack_from
T = TypeVar("T")
_FRAMES: Final = {3: cramjam.lz4, 4: cramjam.zstd}
"""Codecs that unpack into memory which is there."""


class Room:
    """Memory into which bodies are unpacked, one behind the other.

    It is used again: memory that the system has to clear first costs nearly as much as unpacking into it.
    """

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)

    def add(self, codec: int, packed: memoryview, offset: int, at: int) -> int:
        """Unpack `packed` behind the first `at` bytes, which stay; gives where it ends. `offset` is for the message. Raises Damage."""
        if codec in _FRAMES:
            return at + _guarded(lambda: self._unpack(_FRAMES[codec], packed, at), offset)
        body = np.frombuffer(unpacked(codec, packed, offset), np.uint8)
        self._reserve(at, len(body))
        self._data[at : at + len(body)] = body
        return at + len(body)

    def filled(self, size: int) -> npt.NDArray[np.uint8]:
        """The first `size` bytes; they are good until the next `add`."""
        return self._data[:size]

    def _unpack(self, codec: object, packed: memoryview, at: int) -> int:
        size = min(max(_SMALLEST_ROOM, _GUESSED * len(packed)), UNPACKED_LIMIT)
        while True:
            self._reserve(at, size)
            room = self._data[at : at + UNPACKED_LIMIT]
            try:
                return int(codec.decompress_into(packed, room))  # type: ignore[attr-defined]
            except cramjam.DecompressionError:
                if len(room) >= UNPACKED_LIMIT:
                    raise
                size = min(_GUESSED * len(room), UNPACKED_LIMIT)

    def _reserve(self, at: int, size: int) -> None:
        if len(self._data) - at < size:
            held, self._data = self._data, np.empty(max(at + size, 2 * len(self._data)), np.uint8)
            self._data[:at] = held[:at]


def unpacked(codec: int, packed: memoryview, offset: int) -> bytes | bytearray | memoryview:
    """Undo a batch's compression; `codec` as in its attributes, `offset` for the message. Raises Damage."""
    if codec == 0:
        return packed
    if codec in _FRAMES:
        room = Room()
        return room.filled(room.add(codec, packed, offset, 0)).data
    if codec == 1:
        return _guarded(lambda: _gunzip(packed), offset)
    if codec == 2:
        return _guarded(lambda: _unsnap(bytes(packed)), offset)
    raise Damage(offset, f"its compression {codec} is unknown")


def _guarded(unpack: Callable[[], T], offset: int) -> T:
    try:
        return unpack()
    except (cramjam.DecompressionError, zlib.error, ValueError, struct.error) as error:
        raise Damage(offset, f"its records cannot be unpacked: {error}") from None


def _gunzip(packed: memoryview) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    data = stream.decompress(packed, UNPACKED_LIMIT)
    if not stream.eof:
        raise ValueError("cut off, or too large")
    return data


def _unsnap(packed: bytes) -> bytes:
    if not packed.startswith(_XERIAL):
        pieces = [packed]
    else:  # the framing of snappy-java: 16 bytes, then blocks behind their length
        pieces, at = [], 16
        while at < len(packed):
            size = _length_at(packed, at)[0]
            if size <= 0 or at + 4 + size > len(packed):
                raise ValueError("a block is cut off")
            pieces.append(packed[at + 4 : at + 4 + size])
            at += 4 + size
    if sum(cramjam.snappy.decompress_raw_len(p) for p in pieces) > UNPACKED_LIMIT:
        raise ValueError("too large")
    return b"".join(bytes(cramjam.snappy.decompress_raw(p)) for p in pieces)
