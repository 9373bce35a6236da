"""What a decoder is: it turns the values of a block of records into typed columns, and says which of them it could not.

A decoder is a pure function of its declaration and of the values: the same ones give the same columns and the same dead
letters, today and when a window is decoded again in a year.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import pyarrow as pa

from platform_assets.model.samples import MOST_PLACE, cut

Reason = Literal[
    "malformed", "wrong_type", "out_of_range", "missing", "too_deep", "too_large", "unmatched", "unknown_schema", "bad_schema",
    "not_admitted", "failed",
]  # fmt: skip
"""Why a value is a dead letter. malformed: not of its format at all; wrong_type: of the format, and not of the schema;
out_of_range: of the right kind, and larger or more precise than its column; missing: a required field is absent or null;
too_deep and too_large: beyond the declared bounds; unmatched: no pattern fits; unknown_schema: names a schema that the
registry has never had; bad_schema: names one that cannot be read, or not into the declared columns; not_admitted: is not as the
schema that it names has it; failed: the decoder raised an error over it, which is a defect."""
REASONS: Final[tuple[Reason, ...]] = get_args(Reason)
MOST_DETAIL: Final = 300
"""Characters of a dead letter's detail; a longer one is cut."""

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

    `place` is the column or path that is at fault, such as `$.legs[2].carrier`; None where it is the value as a whole. `detail`
    says what was found and what was expected, for people; it never holds the whole value. Both are cut where they are longer than
    `MOST_PLACE` and `MOST_DETAIL`.
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
    """The text with surrogates escaped, which JSON may name and UTF-8 cannot: a registry's schema can have them in its names."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Decoded:
    """A block of values, decoded.

    `columns` has the decoder's `fields` and a row for each value: all null where the value was null, or is dead; so its nulls say
    nothing of whether a field is required. `rescued` is a string for each value: a JSON object of the fields that the schema
    lacks, null where there were none. `dead` has `DEAD_LETTER_FIELDS`, in ascending order of `row`, at most once each.
    """

    columns: pa.RecordBatch
    rescued: pa.Array
    dead: pa.RecordBatch


class Decoder(Protocol):
    """One format with one schema. It may be pickled, and holds no secret."""

    @property
    def fields(self) -> pa.Schema:
        """The columns that values become; a field that is not nullable has a value in each row that is not dead."""

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block by vectorised code, which hands over to the exact path whatever it cannot settle.

        Raises retryable errors of the platform alone, where what it needs (a schema registry) is not to be had.
        """

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """The same, value by value in plain Python. Tests hold both against each other."""


@runtime_checkable
class ReadsHeaders(Protocol):
    """A decoder that needs the headers of records too, to know what wrote their values."""

    def decode_records(self, values: pa.BinaryArray, headers: pa.ListArray, side: Literal["value", "key"]) -> Decoded:
        """Like `Decoder.decode`, for values of records with these headers: lists of structs of key and value."""


def dead_letters(found: Sequence[DeadLetter]) -> pa.RecordBatch:
    """As `Decoded.dead` has them; `found` ascends by row."""
    columns = [
        [each.row for each in found],
        [each.reason for each in found],
        [each.place for each in found],
        [each.detail for each in found],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DEAD_LETTER_FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_FIELDS)
