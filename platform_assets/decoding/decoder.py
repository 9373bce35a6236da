"""The interface of a decoder, which turns the values of a block of records into typed columns and dead letters.

A decoder is a pure function of its declaration and the values. If a window is decoded again a year later, the same
input gives the same columns and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import pyarrow as pa

from platform_assets.errors import PlatformError
from platform_assets.model.untrusted import MOST_PLACE, cut

Reason = Literal[
    "malformed", "wrong_type", "out_of_range", "missing", "too_deep", "too_large", "unmatched", "unknown_schema", "bad_schema",
    "not_admitted", "failed",
]  # fmt: skip
"""Reason of a dead letter. malformed: the value is not in the format; wrong_type: the value is in the format, but does
not fit the schema; out_of_range: the value has the right type, but is larger or more precise than its column allows;
missing: a required field is absent or null; too_deep and too_large: the value exceeds the declared bounds; unmatched:
no pattern fits; unknown_schema: the value names a schema that the registry has never had; bad_schema: the value names a
schema that is unreadable or does not fit the declared columns; not_admitted: the value does not match the schema that
it names; failed: the decoder raised an error for the value, which is a defect."""
MOST_DETAIL: Final = 300
"""Maximum number of characters in a dead letter's detail. Longer details are truncated."""

DEAD_LETTER_FIELDS: Final = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("place", pa.string()),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One value that could not be decoded.

    `place` is the faulty column or path, for example `$.legs[2].carrier`, or None for the value as a whole. `detail`
    describes what was found and what was expected, and never contains the whole value. `place` is truncated after
    `MOST_PLACE` characters, and `detail` after `MOST_DETAIL` characters.
    """

    row: int
    reason: Reason
    place: str | None
    detail: str

    def __post_init__(self) -> None:
        if self.place is not None:
            object.__setattr__(self, "place", cut(_utf8(self.place), MOST_PLACE))
        object.__setattr__(self, "detail", cut(_utf8(self.detail), MOST_DETAIL))


def _utf8(text: str) -> str:
    """Return the text with surrogates escaped. Names in a registry's schema can contain surrogates, which JSON can
    represent but UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded block of values.

    `columns` has the decoder's `fields` and one row for each value. If a value is null or dead, all columns of its row
    are null, so even required fields can be null. `rescued` contains a string for each value: a JSON object with the
    fields that the schema lacks, or null if there are no such fields. `dead` has the columns `DEAD_LETTER_FIELDS`, in
    ascending order of `row`, and each row occurs at most once.
    """

    columns: pa.RecordBatch
    rescued: pa.Array
    dead: pa.RecordBatch


class Decoder(Protocol):
    """A decoder for one format with one schema. It can be pickled and contains no secrets."""

    @property
    def fields(self) -> pa.Schema:
        """Columns of decoded values. A field that is not nullable has a value in each row that is neither null nor
        dead."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block with vectorized code, which passes values that it cannot decide to the exact path.

        Raises only those of the platform's errors that are retryable, and only if a service that the decoder needs (a
        schema registry) is not available.
        """

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block value by value in plain Python, with the same result as `decode`. Tests compare the two
        results."""


@runtime_checkable
class ReadsHeaders(Protocol):
    """A decoder that also needs the headers of records, to identify the schemas of their values."""

    def decode_records(self, values: pa.BinaryArray, headers: pa.ListArray, side: Literal["value", "key"]) -> Decoded:
        """Decode a block like `Decoder.decode`, but with the headers of the values' records. `headers` contains lists
        of structs with key and value."""


def dead_letters(found: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return dead letters in the form of `Decoded.dead`. `found` must be in ascending order of rows."""
    columns = [
        [each.row for each in found],
        [each.reason for each in found],
        [each.place for each in found],
        [each.detail for each in found],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DEAD_LETTER_FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_FIELDS)


_OF_NO_VALUE: Final = (
    PlatformError, MemoryError, OSError, ImportError, KeyboardInterrupt, SystemExit, GeneratorExit,
)  # fmt: skip
"""Errors that come from the process, the machine or a service. They might not occur in a later run."""


def decode_each(fields: pa.Schema, decode: Callable[..., Decoded], values: pa.Array, *others: pa.Array) -> Decoded:
    """Decode a block with `decode`, which turns `values` into `fields`. Each of `others` has one row for each value.

    If `decode` raises an unexpected error for a value, the value becomes a dead letter with the reason `failed`. Errors
    that do not depend on a value are not caught: errors that a null also causes, and errors of the platform, the
    operating system or a missing module.
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
    """Return the dead letter for one value for which the decoder raised `error`."""
    text = f"{type(error).__name__}: {error}".encode("ascii", "backslashreplace").decode()
    detail = f"the decoder failed on this value because of a defect in this release. Report the defect with this text: {text}"
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


class DecodeFault(Exception):
    """Raised if a value, or a part of it, cannot be decoded. Decoders turn this error into a dead letter."""

    def __init__(self, reason: Reason, detail: str, place: str | None = None) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.place = reason, detail, place


def text_of(value: bytes, max_bytes: int) -> str:
    """Decode `value` as UTF-8. Raises DecodeFault."""
    if len(value) > max_bytes:
        raise DecodeFault("too_large", f"{len(value)} bytes, but max_bytes is {max_bytes}")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeFault(
            "malformed", f"not UTF-8: {error.reason} at byte {error.start}, which is 0x{value[error.start]:02x}"
        ) from error
