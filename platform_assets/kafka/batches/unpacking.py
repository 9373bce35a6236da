"""Decompression of record batches. A codec is given by its number in a batch's attributes."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final, TypeVar

import cramjam
import numpy as np
import numpy.typing as npt

from platform_assets.kafka.settings import BATCH_VARIABLES


class Damage(Exception):
    """Bytes that are not an intact batch; `offset` is the start offset that the batch states."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset, self.reason = offset, reason
        super().__init__(f"offset {offset}: {reason}")


class TooLarge(Damage):
    """A batch that exceeds one of the limits. `variable` is the environment variable that sets this limit. The batch
    was not opened."""

    def __init__(self, offset: int, reason: str, variable: str) -> None:
        self.variable = variable
        super().__init__(offset, reason)


_XERIAL = b"\x82SNAPPY\x00"
_SMALLEST_BUFFER: Final = 1 << 16
_TOO_SMALL: Final = "failed to write whole buffer"
"""Cramjam's error message if unpacked data does not fit in the given memory."""
_GUESSED: Final = 8
"""Initial estimate of the ratio of unpacked to packed size. An estimate is needed because a frame need not state its
unpacked size."""
_length_at = struct.Struct(">i").unpack_from
T = TypeVar("T")
_FRAMES: Final = {3: cramjam.lz4, 4: cramjam.zstd}
"""Codecs that can unpack into existing memory."""


class UnpackBuffer:
    """Memory into which batch bodies are unpacked, one after another. The memory is reused, because the system needs
    nearly as much time to clear new memory as to unpack into it."""

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)

    def add(self, codec: int, packed: memoryview, offset: int, at: int, limit: int) -> int:
        """Unpack `packed` to position `at` of the buffer; the first `at` bytes of the buffer are kept. Return the end
        of the unpacked bytes. `offset` is for the error message.

        Raises Damage, and TooLarge for more than `limit` bytes. The limit is checked before memory is allocated.
        """
        if codec in _FRAMES:
            return at + _guarded(lambda: self._unpack(_FRAMES[codec], packed, offset, at, limit), offset)
        body = np.frombuffer(unpacked(codec, packed, offset, limit), np.uint8)
        self._reserve(at, len(body))
        self._data[at : at + len(body)] = body
        return at + len(body)

    def filled(self, size: int) -> npt.NDArray[np.uint8]:
        """Return the first `size` bytes of the buffer; they are valid until the next `add`."""
        return self._data[:size]

    def _unpack(self, codec: object, packed: memoryview, offset: int, at: int, limit: int) -> int:
        size = min(max(_SMALLEST_BUFFER, _GUESSED * len(packed)), limit)
        while True:
            self._reserve(at, size)
            buffer = self._data[at : at + limit]
            try:
                return int(codec.decompress_into(packed, buffer))  # type: ignore[attr-defined]
            except cramjam.DecompressionError as error:
                if _TOO_SMALL not in str(error):
                    raise
                if len(buffer) >= limit:
                    raise _too_large(offset, limit) from None
                size = min(_GUESSED * len(buffer), limit)

    def _reserve(self, at: int, size: int) -> None:
        if len(self._data) - at < size:
            held, self._data = self._data, np.empty(max(at + size, 2 * len(self._data)), np.uint8)
            self._data[:at] = held[:at]


def unpacked(codec: int, packed: memoryview, offset: int, limit: int) -> bytes | bytearray | memoryview:
    """Decompress a batch. `codec` is the codec number in the batch's attributes, and `offset` is for the error message.

    Raises Damage, and TooLarge for more than `limit` bytes. The limit is checked before memory is allocated.
    """
    if codec == 0:
        if len(packed) > limit:
            raise _too_large(offset, limit)
        return packed
    if codec in _FRAMES:
        buffer = UnpackBuffer()
        return buffer.filled(buffer.add(codec, packed, offset, 0, limit)).data
    if codec == 1:
        return _guarded(lambda: _gunzip(packed, offset, limit), offset)
    if codec == 2:
        return _guarded(lambda: _unsnap(bytes(packed), offset, limit), offset)
    raise Damage(offset, f"its compression codec {codec} is unknown")


def _too_large(offset: int, limit: int) -> TooLarge:
    return TooLarge(offset, f"unpacks to more than {limit:,} bytes", BATCH_VARIABLES["bytes"])


def _guarded(unpack: Callable[[], T], offset: int) -> T:
    try:
        return unpack()
    except (cramjam.DecompressionError, zlib.error, ValueError, struct.error) as error:
        raise Damage(offset, f"its records cannot be unpacked: {error}") from None


def _gunzip(packed: memoryview, offset: int, limit: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    data = stream.decompress(packed, limit + 1)
    if len(data) > limit:
        raise _too_large(offset, limit)
    if not stream.eof:
        raise ValueError("cut off")
    return data


def _unsnap(packed: bytes, offset: int, limit: int) -> bytes:
    if not packed.startswith(_XERIAL):
        pieces = [packed]
    else:  # the framing of snappy-java: 16 bytes, then blocks, each after its length
        pieces, at = [], 16
        while at < len(packed):
            size = _length_at(packed, at)[0]
            if size <= 0 or at + 4 + size > len(packed):
                raise ValueError("a block is cut off")
            pieces.append(packed[at + 4 : at + 4 + size])
            at += 4 + size
    if sum(cramjam.snappy.decompress_raw_len(p) for p in pieces) > limit:
        raise _too_large(offset, limit)
    return b"".join(bytes(cramjam.snappy.decompress_raw(p)) for p in pieces)
