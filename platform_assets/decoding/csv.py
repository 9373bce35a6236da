"""Format `csv`: a value is exactly one row of CSV. The rules are in docs/csv-dialect.md.

Options: `schema` (Spark DDL; columns are matched by position), `delimiter`, `quote`, `escape`, `null`, `trim`,
`timestamps`, `max_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from platform_assets.decoding.by_value import decoded
from platform_assets.decoding.conversion import Conversion, conversion
from platform_assets.decoding.decoder import Decoded, DecodeFault, text_of
from platform_assets.decoding.fallback import with_fallback
from platform_assets.decoding.options import Options
from platform_assets.decoding.pieces import Pieces, pieces_of
from platform_assets.decoding.schema import schema_of_ddl
from platform_assets.decoding.times import TIMESTAMPS
from platform_assets.errors import ConfigurationError
from platform_assets.kernels import csv as kernels
from platform_assets.model.decoding import FormatSpec

_LINE_ENDS: Final = "\n\r"
_BLANKS: Final = " \t"


def decoder(spec: FormatSpec) -> CsvDecoder:
    """Return the decoder. Raises ConfigurationError."""
    options = Options(spec, ("schema", "delimiter", "quote", "escape", "null", "trim", "timestamps", "max_bytes"))
    dialect = Dialect(
        delimiter=_character(options, "delimiter", ",", required=True),
        quote=_character(options, "quote", '"'),
        escape=_character(options, "escape", ""),
        null=options.any_text("null", ""),
        trim=options.flag("trim", False),
    )
    dialect.check()
    timestamps = TIMESTAMPS[options.one_of("timestamps", TIMESTAMPS, "iso8601")]
    schema = schema_of_ddl(options.text("schema"))
    conversions = tuple(
        conversion(field, timestamps if pa.types.is_timestamp(field.type) else None) for field in schema
    )
    return CsvDecoder(schema, conversions, dialect, options.max_bytes())


def _character(options: Options, name: str, default: str, *, required: bool = False) -> str:
    found = options.any_text(name, default)
    if len(found) > 1 or not found.isascii() or found in ("\n", "\r", "\0") or (required and not found):
        raise options.wrong(
            name, f"one ASCII character that is not a line end{'' if required else ', or empty for none'}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Dialect:
    """Special characters. `quote` is an empty string if the format has no quote character. The same applies to
    `escape`."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    null: str = ""
    trim: bool = False

    def check(self) -> None:
        """Raise ConfigurationError if two of the characters are equal."""
        roles = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        used = [character for character in roles.values() if character]
        if len(set(used)) != len(used):
            raise ConfigurationError(
                f"format 'csv': delimiter, quote and escape must differ, but are {self.delimiter!r}, {self.quote!r} and "
                f"{self.escape!r}; without an escape, a quote within quotes is written twice"
            )
        if self.trim and self.delimiter in _BLANKS:
            raise ConfigurationError(
                f"format 'csv': trim cannot be used with the delimiter {self.delimiter!r}, because trim would remove that character"
            )

    def fields(self, text: str) -> list[str | None]:
        """Return the fields of one row, with None for null. Raises DecodeFault if `text` is not exactly one row."""
        if not text.strip(_LINE_ENDS):
            raise DecodeFault(
                "malformed", "there is no field; a row with a single empty field must be written as two quotes"
            )
        found: list[str | None] = []
        at = 0
        while True:
            if self.quote and text.startswith(self.quote, at):
                field, at = self._quoted(text, at + 1)
                found.append(field)
            else:
                field, behind = self._plain(text, at)
                written, at = text[at:behind], behind
                if self.trim:
                    field, written = field.strip(_BLANKS), written.strip(_BLANKS)
                found.append(None if written == self.null else field)
            if at == len(text) or text[at] != self.delimiter:
                break
            at += 1
        if text[at:].strip(_LINE_ENDS):
            raise DecodeFault("malformed", f"a second row begins after the line that ends at character {at}")
        return found

    def _quoted(self, text: str, at: int) -> tuple[str, int]:
        """Return the field whose opening quote is just before `at`, and the position after its closing quote."""
        opened, parts = at - 1, []
        plain = _others(self.quote + self.escape)
        while True:
            behind = plain.match(text, at).end()  # type: ignore[union-attr]  # it matches no character as well
            parts.append(text[at:behind])
            at = behind
            if at == len(text) or (text[at] != self.quote and at + 1 == len(text)):
                raise DecodeFault("malformed", f"the quote at character {opened} is never closed")
            if text[at] != self.quote or text.startswith(self.quote, at + 1):
                parts.append(text[at + 1])
                at += 2
            elif at + 1 == len(text) or text[at + 1] in (self.delimiter, *_LINE_ENDS):
                return "".join(parts), at + 1
            else:
                raise DecodeFault("malformed", f"{text[at + 1]!r} follows the closing quote, at character {at + 1}")

    def _plain(self, text: str, at: int) -> tuple[str, int]:
        """Return the unquoted field that begins at `at`, and the position after that field."""
        parts = []
        plain = _others(self.delimiter + self.escape + _LINE_ENDS)
        while True:
            behind = plain.match(text, at).end()  # type: ignore[union-attr]
            parts.append(text[at:behind])
            at = behind
            if at == len(text) or text[at] != self.escape:
                return "".join(parts), at
            if at + 1 == len(text) or text[at + 1] in _LINE_ENDS:
                raise DecodeFault(
                    "malformed",
                    f"the escape at character {at} is outside of quotes and is the last character of its line",
                )
            parts.append(text[at + 1])
            at += 2


@lru_cache(maxsize=64)
def _others(characters: str) -> re.Pattern[str]:
    """Return a pattern that matches any number of characters that are not in `characters`."""
    return re.compile(f"[^{re.escape(characters)}]*")


@dataclass(frozen=True, slots=True)
class CsvDecoder:
    """Decodes one row of CSV. Fields become columns by position."""

    fields: pa.Schema
    conversions: tuple[Conversion, ...]
    dialect: Dialect
    max_bytes: int

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        pieces = pieces_of(values)
        undecided = pieces.invalid_utf8() | (pieces.sizes > np.int32(self.max_bytes))
        cells, unsplit = self._split(pieces.without(undecided))
        undecided |= unsplit
        dead_or_null = undecided | pieces.nulls
        columns = []
        for field, convert, column in zip(self.fields, self.conversions, cells, strict=True):
            converted, unsure = convert.column(column)
            undecided |= unsure
            if not field.nullable:
                undecided |= column.nulls & ~dead_or_null
            columns.append(converted)
        return with_fallback(self, values, columns, undecided)

    def _split(self, pieces: Pieces) -> tuple[list[Pieces], np.ndarray[Any, Any]]:
        """Return the fields of the values, column by column, and marks for the values that are not clearly one row."""
        number, width = len(pieces), len(self.conversions)
        low = int(pieces.starts[0]) if number else 0
        high = int(pieces.starts[-1]) + max(int(pieces.sizes[-1]), 0) if number else 0
        content = np.empty(high - low, np.uint8)
        starts, sizes = np.empty(width * number, np.int32), np.empty(width * number, np.int32)
        undecided = np.zeros(number, np.uint8)
        dialect = self.dialect
        delimiter, quote, escape = (
            ord(each) if each else -1 for each in (dialect.delimiter, dialect.quote, dialect.escape)
        )
        null = np.frombuffer(dialect.null.encode(), np.uint8)
        kernels.split(
            pieces.data, pieces.starts, pieces.sizes, width, delimiter, quote, escape, int(dialect.trim), null,
            content, starts, sizes, undecided,
        )  # fmt: skip
        cells = [slice(column * number, (column + 1) * number) for column in range(width)]
        return [Pieces(content, starts[each], sizes[each]) for each in cells], undecided.view(np.bool_)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        return decoded(self.fields, values, lambda value: (self._row(value), None))

    def _row(self, value: bytes) -> dict[str, Any]:
        text = text_of(value, self.max_bytes)
        fields = self.dialect.fields(text)
        self._check_width(fields)
        row: dict[str, Any] = {}
        for place, (field, convert) in enumerate(zip(self.fields, self.conversions, strict=True)):
            try:
                row[field.name] = cell(field, convert, fields[place])
            except DecodeFault as fault:
                fault.detail += self._trim_hint(text, place)
                raise
        return row

    def _trim_hint(self, text: str, place: int) -> str:
        """Return a hint that names the option `trim` if it makes the field at `place` of a row readable, else ""."""
        if self.dialect.trim or self.dialect.delimiter in _BLANKS:
            return ""
        trimmed = replace(self.dialect, trim=True).fields(text)[place]
        try:
            cell(self.fields[place], self.conversions[place], trimmed)
        except DecodeFault:
            return ""
        return "; `trim: true` accepts it"

    def _check_width(self, fields: Sequence[str | None]) -> None:
        width = len(self.conversions)
        if len(fields) < width:
            raise DecodeFault(
                "missing", f"{len(fields)} fields, but the schema has {width} columns", self.fields[len(fields)].name
            )
        if len(fields) > width:
            raise DecodeFault("malformed", f"{len(fields)} fields, but the schema has {width} columns")


def cell(field: pa.Field, convert: Conversion, text: str | None) -> Any:
    """Return the value of one column, or None for null. Raises DecodeFault, which names the column."""
    if text is None:
        if not field.nullable:
            raise DecodeFault("missing", f"null, but the column is {convert.name} NOT NULL", field.name)
        return None
    try:
        return convert.value(text)
    except DecodeFault as fault:
        raise DecodeFault(fault.reason, fault.detail, field.name) from None
