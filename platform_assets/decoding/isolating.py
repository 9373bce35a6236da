"""Isolation of a value for which a decoder raises an error, so that the other values of its window are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from platform_assets.decoding.decoder import DeadLetter, Decoded, dead_letters
from platform_assets.errors import PlatformError

_OF_NO_VALUE: Final = (
    PlatformError, MemoryError, OSError, ImportError, KeyboardInterrupt, SystemExit, GeneratorExit,
)  # fmt: skip
"""Errors of the process, the machine or a service, which another run may not have."""


def decode_each(fields: pa.Schema, decode: Callable[..., Decoded], values: pa.Array, *others: pa.Array) -> Decoded:
    """Decode a block with `decode`, which turns values, and `others` with a row for each, into `fields`.

    A value for which it raises an error of its own becomes a dead letter, `failed`. Errors that do not depend on a value are raised:
    those that a null causes too, and errors of the platform, the operating system or a missing module.
    """
    block = [values, *others]
    found = _attempted(decode, block)
    if isinstance(found, Decoded):
        return found
    if not isinstance(_attempted(decode, [pa.nulls(1, each.type) for each in block]), Decoded):
        raise found
    parts: list[Decoded] = []
    pending = [block]
    while pending:
        part = pending.pop()
        attempt = found if part is block else _attempted(decode, part)
        if isinstance(attempt, Decoded):
            parts.append(attempt)
        elif len(part[0]) == 1:
            parts.append(_failed(fields, attempt))
        else:
            middle = len(part[0]) // 2
            pending += [[each[middle:] for each in part], [each[:middle] for each in part]]
    return _joined(fields, parts)


def _attempted(decode: Callable[..., Decoded], block: Sequence[pa.Array]) -> Decoded | BaseException:
    try:
        return decode(*block)
    except _OF_NO_VALUE:
        raise
    except BaseException as error:  # noqa: BLE001  # Rust libraries raise their panics as BaseException
        return error


def _failed(fields: pa.Schema, error: BaseException) -> Decoded:
    """Return the dead letter of one value for which the decoder raised `error`."""
    text = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()
    detail = f"the decoder failed over this value, which is a defect of this release: report it with this text: {text}"
    batch = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in fields], schema=fields)
    return Decoded(batch, pa.nulls(1, pa.string()), dead_letters([DeadLetter(0, "failed", None, detail)]))


def _joined(fields: pa.Schema, parts: list[Decoded]) -> Decoded:
    dead, begin = [], 0
    for part in parts:
        dead += [DeadLetter(**{**letter, "row": letter["row"] + begin}) for letter in part.dead.to_pylist()]
        begin += len(part.rescued)
    columns = [pa.concat_arrays([part.columns.column(at) for part in parts]) for at in range(len(fields))]
    return Decoded(
        pa.RecordBatch.from_arrays(columns, schema=fields),
        pa.concat_arrays([part.rescued for part in parts]),
        dead_letters(dead),
    )
