"""Header keys as text. Kafka does not check that they are UTF-8, and the raw table's column is a string.

Bytes that are not UTF-8 become U+FFFD as in the Java client, so that both engines load the same: one for each part of a
sequence that could be the beginning of a character. For Java, an encoded surrogate is one such part; for Python, it is three.
"""

from __future__ import annotations

import codecs

import pyarrow as pa

_REPLACEMENT = "\ufffd"


def as_text(keys: pa.Array) -> pa.Array:
    """Return a binary array without nulls as a string array, with unchanged bytes where they are UTF-8."""
    text = pa.Array.from_buffers(pa.string(), len(keys), keys.buffers(), 0)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        distinct = keys.dictionary_encode()
        return pa.array([java_text(k) for k in distinct.dictionary.to_pylist()], pa.string()).take(distinct.indices)
    return text


def java_text(key: bytes) -> str:
    """Decode `key` like the Java client."""
    return key.decode("utf-8", "java_replace")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    if data[start] == 0xED and 0xA0 <= (data[start + 1] if start + 1 < len(data) else 0) <= 0xBF:
        third = data[start + 2] if start + 2 < len(data) else 0
        return _REPLACEMENT, start + (3 if 0x80 <= third <= 0xBF else 2)
    return _REPLACEMENT, error.end


codecs.register_error("java_replace", _replaced)
